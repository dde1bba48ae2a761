"""`sa.rules_of`: rules from strategies, read back by flax, nnx, PyYAML and haliax's definition."""

import itertools
import json
import random
import warnings
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
import yaml
from flax import nnx
from flax.core import spmd
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.plan.rules.ordered_rules import STYLES, Wanted, conflicts, in_order
from shardalg.planner.propagate.strategy import PerLeaf

MESH = sa.Mesh({"data": 4, "model": 2, "expert": 2})
AXES = [(), ("data",), ("model",), ("expert",), ("data", "expert")]
NAMES = ("batch", "embed", "mlp", "heads", "vocab")
PUBLIC = json.loads((Path(__file__).parent / "public_rules.json").read_text())


def entries(spec):
    """Return a spec as a tuple of tuples of axes."""
    return tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec)


def read_linen(rules, names):
    return entries(nn.logical_to_mesh_axes(tuple(names), rules.linen()))


def read_maxtext(rules, names):
    """MaxText hands the list of its YAML to flax (`nn.logical_to_mesh_axes`)."""
    return entries(nn.logical_to_mesh_axes(tuple(names), listed(rules.yaml())))


@cache
def listed(text):
    return [(name, tuple(axes)) for name, axes in yaml.safe_load(text)["logical_axis_rules"]]


def read_nnx(rules, names):
    return entries(spmd.from_sharding_rules(tuple(names), rules.nnx()))


def read_haliax(rules, names):
    """haliax looks each name up: `PartitionSpec(*(mapping.get(axis.name) for axis in axes))`."""
    mapping = rules.haliax()
    return entries(P(*(mapping.get(name) for name in names)))


READERS = {
    "linen": read_linen,
    "maxtext": read_maxtext,
    "nnx": read_nnx,
    "haliax": read_haliax,
}


def layouts_of(strategy, names):
    """Return the layouts of named arrays, by array."""
    return {key: entries(strategy.in_shardings[0][key]) for key in names}


def padded(layout, rank):
    return layout + ((),) * (rank - len(layout))


def drawn_names(rng):
    return {f"w{i}": tuple(rng.sample(NAMES, rng.randint(1, 3))) for i in range(rng.randint(2, 5))}


def drawn_layout(rng, rank):
    """Return random axes per dimension, each axis on one dimension at most."""
    while True:
        found = tuple(rng.choice(AXES) for _ in range(rank))
        used = [axis for axes in found for axis in axes]
        if len(used) == len(set(used)):
            return found


def strategy_of(layouts):
    specs = {key: P(*(axes or None for axes in dims)) for key, dims in layouts.items()}
    return sa.Strategy(MESH, (specs,))


def reads(rules, names, layouts, style="linen"):
    return all(READERS[style](rules, names[key]) == layouts[key] for key in names)


@pytest.mark.parametrize("seed", range(40))
def test_rules_of_layouts_that_rules_gave(seed):
    """Random fallback rules: those that are found are no more, and flax reads the same layouts."""
    rng = random.Random(seed)
    names = drawn_names(rng)
    given = [(rng.choice(NAMES), rng.choice(AXES[1:])) for _ in range(rng.randint(2, 8))]
    layouts = {k: entries(nn.logical_to_mesh_axes(n, given)) for k, n in names.items()}
    found = sa.rules_of(strategy_of(layouts), (names,))
    assert len(found.rules) <= len(given), (seed, given)
    assert reads(found, names, layouts), (seed, given)
    assert reads(found, names, layouts, "maxtext"), (seed, given)
    assert layouts_of(found.strategy((names,)), names) == layouts, seed
    # No rule is superfluous: without it, some array has another layout.
    for rule in found.linen():
        fewer = sa.logical_rules([one for one in found.linen() if one != rule], MESH)
        assert not reads(fewer, names, layouts), (seed, rule)


@pytest.mark.parametrize("seed", range(40))
def test_layouts_without_rules_are_refused_exactly_when_no_order_exists(seed):
    """Random layouts, against flax on every order of every needed rule."""
    rng = random.Random(seed)
    names = {f"w{i}": tuple(rng.sample(NAMES[:3], rng.randint(1, 3))) for i in range(3)}
    layouts = {key: drawn_layout(rng, len(own)) for key, own in names.items()}
    needed = {
        (name, axes)
        for key, own in names.items()
        for name, axes in zip(own, layouts[key], strict=True)
        if axes
    }
    if len(needed) > 6:
        pytest.skip("720 orders and more")
    orders = itertools.permutations(sorted(needed))
    exists = any(
        all(entries(nn.logical_to_mesh_axes(names[k], order)) == layouts[k] for k in names)
        for order in orders
    )
    wanted = [Wanted((key,), own, layouts[key]) for key, own in names.items()]
    assert (in_order(wanted) is not None) == exists, (seed, names, layouts)
    assert bool(conflicts(wanted, "linen")) != exists, (seed, names, layouts)
    for one in conflicts(wanted, "linen"):
        # The witness has no rules, and each proper part of it has.
        core = (one.arrays, *one.others)
        assert in_order(core) is None, (seed, core)
        for left in range(len(core)):
            assert in_order(core[:left] + core[left + 1 :]) is not None, (seed, core)


@pytest.mark.parametrize("style", ["nnx", "haliax"])
@pytest.mark.parametrize("seed", range(15))
def test_libraries_with_one_rule_per_name(style, seed):
    rng = random.Random(seed)
    names = drawn_names(rng)
    if seed % 3:
        of_name = dict(zip(NAMES, rng.sample([(), (), *AXES[1:4]], 5), strict=True))
        layouts = {key: tuple(of_name[name] for name in own) for key, own in names.items()}
    else:
        layouts = {key: drawn_layout(rng, len(own)) for key, own in names.items()}
    pairs = {p for k, own in names.items() for p in zip(own, layouts[k], strict=True)}
    if len(pairs) > len({name for name, _ in pairs}):
        with pytest.raises(sa.StrategyError, match=f"no rules of {style} .*(.|\n)*one rule for"):
            sa.rules_of(strategy_of(layouts), (names,), style=style)
        return
    found = sa.rules_of(strategy_of(layouts), (names,), style=style)
    assert reads(found, names, layouts, style), seed
    assert layouts_of(found.strategy((names,)), names) == layouts, seed
    split = sum(bool(axes) for _, axes in pairs)
    assert len(found.rules) == (split if style == "haliax" else len(pairs))


def test_swapping_two_rules_of_a_fallback_is_seen():
    names = {"up": ("embed", "mlp"), "out": ("batch", "embed")}
    layouts = {"up": (("data",), ("model",)), "out": (("data",), ("model",))}
    rules = sa.rules_of(strategy_of(layouts), (names,))
    assert reads(rules, names, layouts)
    one, other = (rules.linen().index((name, "data")) for name in ("batch", "embed"))
    for style in ("nnx", "haliax"):
        with pytest.raises(sa.StrategyError, match="one rule for 'embed' applies to both"):
            sa.rules_of(strategy_of(layouts), (names,), style=style)
    swapped = list(rules.linen())
    swapped[one], swapped[other] = swapped[other], swapped[one]
    assert not reads(sa.logical_rules(swapped, MESH), names, layouts)


@pytest.mark.parametrize("case", PUBLIC["rules"], ids=lambda case: case["name"])
def test_published_layouts_are_written_with_fewer_rules(case):
    arrays = case["arrays"]
    arrays = PUBLIC["arrays"][arrays] if isinstance(arrays, str) else arrays
    rules = sa.logical_rules([tuple(rule) for rule in case["rules"]], case["mesh"])
    names = {key: tuple(one["names"]) for key, one in arrays.items()}
    strategy = rules.strategy((names,))
    found = sa.rules_of(strategy, (names,), style="maxtext")
    assert len(found.rules) <= len(rules.rules)

    def live(spec):
        """Axes of size 1 split nothing: they are written only where rules need them."""
        return tuple(tuple(axis for axis in e if rules.mesh.shape[axis] > 1) for e in spec)

    for key, own in names.items():
        read, given = read_maxtext(found, own), entries(rules.spec(own))
        assert live(read) == live(given), (case["name"], key)


# Models of flax: the layouts of recipes


class Mlp(nn.Module):
    """An embedding and two products, with names for every dimension."""

    @nn.compact
    def __call__(self, tokens):
        def named(*names):
            return nn.with_logical_partitioning(nn.initializers.normal(), names)

        table = nn.Embed(512, 64, embedding_init=named("vocab", "embed"), name="table")
        x = table(tokens)
        up = nn.Dense(256, use_bias=False, kernel_init=named("embed", "mlp"), name="up")
        down = nn.Dense(64, use_bias=False, kernel_init=named("mlp", "embed"), name="down")
        return table.attend(x + down(nn.relu(up(x))))


class NnxMlp(nnx.Module):
    """The same for nnx."""

    def __init__(self, rngs):
        def named(*names):
            return nnx.with_partitioning(nnx.initializers.normal(), names, eager_sharding=False)

        self.table = nnx.Embed(512, 64, embedding_init=named("vocab", "embed"), rngs=rngs)
        of = {"use_bias": False, "rngs": rngs}
        self.up = nnx.Linear(64, 256, kernel_init=named("embed", "mlp"), **of)
        self.down = nnx.Linear(256, 64, kernel_init=named("mlp", "embed"), **of)

    def __call__(self, tokens):
        x = self.table(tokens)
        return self.table.attend(x + self.down(nnx.relu(self.up(x))))


TOKENS = jax.ShapeDtypeStruct((32, 16), "int32")
RECIPES = {
    "data": sa.recipes.data("data"),
    "fsdp": sa.recipes.fsdp("data"),
    "zero": sa.recipes.zero(1, "data"),
    "tensor": sa.recipes.tensor("model"),
    "both": sa.recipes.fsdp("data") | sa.recipes.tensor("model"),
}


def step_of(apply):
    def step(params, momentum, tokens):
        loss = jax.grad(lambda p: jax.nn.logsumexp(apply(p, tokens), -1).mean())
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, loss(params))
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum

    return step


@pytest.mark.sampled(3)
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_on_a_model_of_linen(recipe):
    boxed = jax.eval_shape(Mlp().init, jax.random.key(0), jnp.ones((32, 16), "int32"))
    params = jax.eval_shape(lambda: nn.meta.unbox(boxed))
    mesh = sa.Mesh({"data": 4, "model": 2})
    step = step_of(Mlp().apply)
    strategy = RECIPES[recipe].strategy(step, params, params, TOKENS, mesh=mesh)
    arrays = (boxed, None, ("batch", "length"))
    rules = sa.rules_of(strategy, arrays)
    read = nn.logical_to_mesh(nn.get_partition_spec(boxed), rules.linen())
    pairs = zip(*(jax.tree.leaves(each) for each in (read, strategy.in_shardings[0])), strict=True)
    for spec, want in pairs:
        assert padded(entries(spec), 2) == padded(entries(want), 2)
    again = rules.strategy(arrays)
    assert jax.tree.leaves(again.in_shardings[0]) == jax.tree.leaves(read)
    assert sa.logical_rules(rules.yaml(), mesh) == rules
    full = rules.strategy((boxed, boxed, ("batch", "length")))
    if recipe != "zero":
        plans = [sa.plan(step, params, params, TOKENS, strategy=s) for s in (strategy, full)]
        first, second = (p.collectives()[["kind", "mesh_axes"]].values.tolist() for p in plans)
        assert first == second


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_on_a_model_of_nnx(recipe):
    model = nnx.eval_shape(lambda: NnxMlp(nnx.Rngs(0)))
    graph, state = nnx.split(model)
    step = step_of(lambda state, tokens: nnx.merge(graph, state)(tokens))
    mesh = sa.Mesh({"data": 4, "model": 2})
    explained = RECIPES[recipe].explain(step, state, state, TOKENS, mesh=mesh)
    strategy = explained.strategy
    rules = explained.rules((state, None, None), style="nnx")
    with spmd.logical_axis_rules(rules.nnx()):
        read = jax.tree.leaves(nnx.get_partition_spec(state))
    want = jax.tree.leaves(strategy.in_shardings[0], is_leaf=lambda leaf: isinstance(leaf, P))
    assert len(read) == len(want) == 3
    for one, other in zip(read, want, strict=True):
        assert padded(entries(one), 2) == padded(entries(other), 2)


def test_a_named_array_of_haliax_is_read():
    axes = tuple(SimpleNamespace(name=name, size=size) for name, size in (("embed", 8), ("mlp", 4)))
    named = SimpleNamespace(axes=axes, array=jax.ShapeDtypeStruct((8, 4), "float32"))
    strategy = sa.Strategy(MESH, (P("data", "model"),))
    found = sa.rules_of(strategy, (named,), style="haliax")
    assert found.haliax() == {"embed": "data", "mlp": "model"}


# Strategies that are given as rules


def layer(x, params):
    return sa.annotate(jnp.maximum(x @ params["up"], 0), "hidden") @ params["down"]


def test_plan_and_compare_take_rules():
    shapes = {"up": (64, 256), "down": (256, 64)}
    params = {k: jax.ShapeDtypeStruct(shape, "float32") for k, shape in shapes.items()}
    x = jax.ShapeDtypeStruct((128, 64), "float32")
    names = (("batch", "embed"), {"up": ("embed", "mlp"), "down": ("mlp", "embed")})
    hidden = {"hidden": ("batch", "mlp")}
    rules = sa.logical_rules([("batch", "data"), ("mlp", "model")], {"data": 2, "model": 4})
    strategy = rules.strategy(names, sites=hidden)
    specs = (P("data", None), {"up": P(None, "model"), "down": P("model", None)})
    by_hand = sa.Strategy(rules.mesh, specs, None, {"hidden": P("data", "model")})
    plans = [sa.plan(layer, x, params, strategy=each) for each in (strategy, by_hand)]
    assert str(plans[0].program) == str(plans[1].program)
    found = sa.compare(
        layer, x, params, strategies={"rules": strategy, "by hand": by_hand}, hardware="h100:8"
    )
    assert found["rules"].step_s == found["by hand"].step_s
    assert found["rules"].rules(names, sites=hidden) == rules
    row = sa.compare({"plan": plans[0]}).rows[0]
    with pytest.raises(sa.TableError, match="'plan' has no strategy to write as rules"):
        row.rules(names)
    out = rules.strategy(names, results=(("batch", "embed"),), sites=hidden)
    assert out.out_shardings == (P("data", None),)
    # Without the site, nothing else changes: the same names have the same rules.
    assert set(sa.rules_of(strategy, names).rules) == set(rules.rules)


def test_a_prefix_and_layouts_of_every_form():
    names = {"a": ("embed", "mlp"), "b": ("embed",)}
    named = jax.sharding.NamedSharding(sa.Mesh({"data": 1}).to_jax(), P(None))
    layout = sa.Sharding.from_spec(P("data"), MESH, (8, 8))
    for specs in (P("data"), (P("data"),), ({"a": layout, "b": P("data")},)):
        found = sa.rules_of(sa.Strategy(MESH, specs), (names,))
        assert found.linen() == (("embed", "data"),)
    assert sa.rules_of(sa.Strategy(MESH, (named,)), (names,)).rules == ()
    # What is left to completion, and arrays without names, need no rules.
    assert sa.rules_of(sa.Strategy(MESH, None), (names,)).rules == ()
    bare = jax.ShapeDtypeStruct((4,), "float32")
    assert sa.rules_of(sa.Strategy(MESH, (P("model"), P("data"))), (bare, None)).rules == ()


def test_layouts_of_results_are_written():
    """Gradients are sharded, and the parameters that they belong to are whole (ZeRO 2)."""
    names, more = {"up": ("embed", "mlp"), "down": ("mlp", "embed")}, {"loss": None}
    apart = {key: tuple(f"{name}_grad" for name in own) for key, own in names.items()}
    outs = {"up": P("data", "model"), "down": P("model", "data")}
    strategy = sa.Strategy(MESH, (P(),), (outs, {"loss": P()}))
    found = sa.rules_of(strategy, (names,), results=(apart, more))
    assert reads(found, apart, {key: entries(spec) for key, spec in outs.items()})
    again = found.strategy((names,), results=(apart, more))
    assert again.out_shardings == (outs, {"loss": None})
    assert again.in_shardings == ({key: P(None, None) for key in names},)
    # One sharding for all results, and results that are left to completion.
    one = sa.rules_of(sa.Strategy(MESH, None, P("data")), (None,), results=(apart["up"], more))
    assert one.linen() == (("embed_grad", "data"),)
    assert sa.rules_of(sa.Strategy(MESH, None), (names,), results=(apart, more)).rules == ()
    with pytest.raises(sa.StrategyError, match=r"result/0/up: 'embed' on data, 'mlp' on model"):
        sa.rules_of(strategy, (names,), results=(names, more))
    with pytest.raises(
        sa.StrategyError, match=r"layout for array 'result/down'.*Give `results` as"
    ):
        sa.rules_of(strategy, (names,), results=apart)


def test_layouts_of_results_of_a_recipe():
    """The sharding of a result may be given per leaf, too."""
    shapes = {"up": (64, 256), "down": (256, 64)}
    params = {k: jax.ShapeDtypeStruct(shape, "float32") for k, shape in shapes.items()}
    x = jax.ShapeDtypeStruct((128, 64), "float32")
    grads = jax.grad(lambda params, x: jnp.sum((x @ params["up"]) @ params["down"]))
    recipe = sa.recipes.zero(2, "data") | sa.recipes.tensor("model")
    mesh, roles = sa.Mesh({"data": 2, "model": 4}), ("parameters", "data")
    explained = recipe.explain(grads, params, x, mesh=mesh, roles=roles)
    names = {key: (f"{key}_0", f"{key}_1") for key in shapes}
    out = {key: tuple(f"{name}_grad" for name in own) for key, own in names.items()}
    found = explained.rules((names, ("batch", None)), results=out)
    made, want = found.strategy((names, None), results=out), explained.strategy
    for one, other in (
        (made.out_shardings, want.out_shardings),
        (made.in_shardings[0], want.in_shardings[0]),
    ):
        for key in names:
            assert padded(entries(one[key]), 2) == padded(entries(other[key]), 2)
    assert any(any(entries(spec)) for spec in want.out_shardings.values())
    leaves = PerLeaf(want.out_shardings[key] for key in ("down", "up"))
    flat = sa.rules_of(sa.Strategy(mesh, None, leaves), (None, None), results=out)
    assert {*flat.rules} == {rule for rule in found.rules if rule.name.endswith("_grad")}
    with pytest.raises(sa.StrategyError, match="layouts for 2 arrays, and `results` has 1"):
        sa.rules_of(sa.Strategy(mesh, None, leaves), (None,), results={"up": out["up"]})


def test_axes_of_size_one_need_no_rule():
    mesh = sa.Mesh({"data": 4, "model": 1})
    specs = ({"a": P("data", "model"), "b": P(None, "data")},)
    names = ({"a": ("embed", "mlp"), "b": ("mlp", "vocab")},)
    assert sa.rules_of(sa.Strategy(mesh, specs), names).haliax() == {
        "embed": "data", "vocab": "data",
    }  # fmt: skip


def test_a_circle_of_three_arrays_is_shown_whole():
    """Each pair has an order; all three have none."""
    names = {"a": ("x", "y"), "b": ("y", "z"), "c": ("z", "x")}
    layouts = dict.fromkeys(names, (("data",), ()))
    for left in names:
        pair = {key: own for key, own in names.items() if key != left}
        assert reads(
            sa.rules_of(strategy_of({k: layouts[k] for k in pair}), (pair,)), pair, layouts
        )
    # A fourth array has no part in it.
    names, layouts = {**names, "d": ("w",)}, {**layouts, "d": (("model",),)}
    with pytest.raises(sa.StrategyError) as caught:
        sa.rules_of(strategy_of(layouts), (names,))
    assert str(caught.value).splitlines()[1:5] == [
        "  0/c: 'z' on data, 'x' whole",
        "    against 0/a: 'x' on data, 'y' whole",
        "    against 0/b: 'y' on data, 'z' whole",
        "    because the rules for 'x' would have to be before each other in a circle",
    ]


def test_arrays_without_rules_are_left_out_if_that_is_asked_for():
    names = {"up": ("embed", "mlp"), "bias": ("mlp",), "down": ("mlp", "embed")}
    layouts = {"up": ((), ("data",)), "bias": ((),), "down": (("data",), ())}
    with pytest.raises(sa.StrategyError, match="0/bias: 'mlp' whole\n    against 0/") as caught:
        sa.rules_of(strategy_of(layouts), (names,))
    assert "because the same rule for 'mlp' applies to both" in str(caught.value)
    with pytest.warns(UserWarning, match="the rules leave these layouts out:\n  0/bias"):
        found = sa.rules_of(strategy_of(layouts), (names,), leave_out=True)
    assert found.linen() == (("mlp", "data"),)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = {key: own for key, own in names.items() if key != "bias"}
        assert sa.rules_of(strategy_of(layouts), (kept,), leave_out=True) == found


W = {"w": ("embed", "mlp")}


@pytest.mark.parametrize(
    ("specs", "arrays", "more", "message"),
    [
        ((P("data"),), (W,), {"style": "line"}, "style is 'line'.*Did you mean 'linen'"),
        ((P("data"),), W, {}, "arrays is a dict: give a tuple with an entry per argument"),
        ((P("dat"),), (W,), {}, "array '0/w' has the axis 'dat'.*did you mean 'data'"),
        (({"w": P(), "v": P()},), ({"u": ("embed",)},), {}, "no layout for array '0/u'; near"),
        ((P("data", None, None),), (W,), {}, r"the names \['embed', 'mlp'\].*3 entries"),
        ((P(P.UNCONSTRAINED, "data"),), (W,), {}, "an unconstrained dimension has no rule"),
        (("[data]",), (W,), {}, "give a PartitionSpec"),
        ((P("data", "data"),), (W,), {}, "names 'data' twice: an axis splits one dimension"),
        ((P("data"),), (W,), {"sites": 3}, "sites is 3: give the names of the dimensions"),
        ((P("data"),), ({"w": (None, "mlp")},), {}, "dimension 0 has no name, and is wanted on"),
        ((P("data"),), ({"w": ("a", "a")},), {}, "'a' is the name of two dimensions"),
        ((P("data"),), (W,), {"sites": {"hidden": ("a",)}}, "no site 'hidden'; its sites are none"),
    ],
)  # fmt: skip
def test_bad_input_is_said(specs, arrays, more, message):
    with pytest.raises(sa.StrategyError, match=message):
        sa.rules_of(sa.Strategy(MESH, specs), arrays, **more)


def test_a_recipe_has_no_layouts_without_a_function():
    with pytest.raises(sa.StrategyError, match="is no Strategy"):
        sa.rules_of(sa.recipes.fsdp("data"), (W,))


def test_every_style_has_a_reader_and_a_text():
    assert set(STYLES) == set(READERS)
    rules = sa.logical_rules([("embed", "data"), ("mlp", None)], MESH)
    for style in STYLES:
        made = {}
        text = rules.text(style)
        if style == "maxtext":
            assert sa.logical_rules(text, MESH) == rules
        else:
            exec(text, made)
            pairs = {"haliax": "axis_mapping"}.get(style, "logical_axis_rules")
            assert made[pairs] == (rules.haliax() if style == "haliax" else rules.linen())
    with pytest.raises(sa.StrategyError, match="style is 'equinox'"):
        rules.text("equinox")
    twice = sa.logical_rules([("embed", "data"), ("embed", "model")], MESH)
    with pytest.raises(sa.StrategyError, match="2 rules for 'embed', but nnx reads the last one"):
        twice.nnx()
