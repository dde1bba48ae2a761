"""Logical-axis rules: shardings equal flax's own; rules without effect are named."""

import random

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa

MESH = sa.Mesh({"data": 2, "fsdp": 2, "tensor": 2})
NAMES = ("batch", "length", "embed", "mlp", "heads", "kv")
# The notation of MaxText's base.yml, with its comments and both kinds of entries.
YAML = """
run_name: "x"
logical_axis_rules: [
                      ['batch', ['data', 'fsdp']],  # activations
                      # ['vocab', ['tensor', 'expert']],
                      ['mlp', 'tensor'],
                      ["embed", ["fsdp"]],
                      ['norm', []],
                    ]
data_sharding: [['data', 'fsdp']]
"""


@pytest.mark.parametrize("seed", range(40))
def test_arrays_are_laid_out_as_flax_does(seed):
    """Random rules, fallbacks among them, of axes that the mesh has."""
    rng = random.Random(seed)
    axes = [None, "data", "fsdp", "tensor", ("data", "fsdp"), ("tensor", "data")]
    given = [(rng.choice(NAMES), rng.choice(axes)) for _ in range(rng.randint(1, 9))]
    rules = sa.logical_rules(given, MESH)
    for _ in range(10):
        names = rng.sample(NAMES, rng.randint(1, 4))
        wanted = nn.logical_to_mesh_axes(tuple(names), rules=given)
        assert tuple(rules.spec(names)) == tuple(wanted), (given, names)


def test_the_notations_say_the_same():
    pairs = [("batch", ("data", "fsdp")), ("mlp", "tensor"), ("embed", "fsdp"), ("norm", None)]
    rules = sa.logical_rules(pairs, MESH)
    assert sa.logical_rules(YAML, MESH) == rules
    assert sa.logical_rules(dict(pairs), MESH) == rules
    assert sa.logical_rules(rules.yaml(), MESH) == rules
    assert sa.logical_rules(rules.linen(), MESH) == rules
    assert rules.linen() == tuple(pairs)
    assert rules.haliax() == {"batch": ("data", "fsdp"), "mlp": "tensor", "embed": "fsdp"}
    assert sa.logical_rules(pairs, MESH.to_jax(jax.devices() * 8)).mesh.shape == MESH.shape


def test_a_linen_model_is_planned_by_its_rules():
    """The weights have flax's own shardings, and the plan equals the plan by specs."""

    class Mlp(nn.Module):
        @nn.compact
        def __call__(self, x):
            up = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("embed", "mlp"))
            down = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("mlp", "embed"))
            hidden = nn.relu(nn.Dense(64, kernel_init=up, name="up")(x))
            return nn.Dense(16, kernel_init=down, name="down")(hidden)

    x = jnp.ones((8, 16))
    boxed = Mlp().init(jax.random.key(0), x)
    logical, params = nn.get_partition_spec(boxed), nn.meta.unbox(boxed)
    given = [("embed", "fsdp"), ("mlp", "tensor"), ("kv", "tensor")]
    rules = sa.logical_rules(given, MESH)
    specs = rules.specs(logical)
    wanted = nn.logical_to_mesh(logical, given)
    assert jax.tree.leaves(specs) == jax.tree.leaves(wanted)
    plan = sa.plan(Mlp().apply, params, x, mesh=MESH, in_shardings=(specs, P("data")))
    laid = plan.shardings().set_index("value")["sharding"]
    assert laid.filter(like="['up']['kernel']").tolist() == ["[fsdp, tensor]"]
    assert laid.filter(like="['down']['kernel']").tolist() == ["[tensor, fsdp]"]
    assert list(rules.idle(logical)["rule"]) == ["('kv', 'tensor')"]


def test_rules_that_do_nothing_are_named():
    """A typo, an axis that is not there, rules that never win: nobody else says so."""
    given = [
        ("embed", "fsdp"), ("embed", "data"), ("mpl", "tensor"), ("kv", "expert"),
        ("heads", "fsdp"),
    ]  # fmt: skip
    logical = {"w": ("embed", "mlp"), "q": ("embed", "heads"), "k": ("kv",), "scale": None}
    rules = sa.logical_rules(given, MESH)
    why = dict(zip(*(rules.idle(logical)[c] for c in ("rule", "why")), strict=True))
    assert why == {
        "('embed', 'data')": "an earlier rule lays out every dimension 'embed': ('embed', 'fsdp')",
        "('mpl', 'tensor')": "no array has a dimension 'mpl'; near: mlp",
        "('kv', 'expert')": "the mesh has no axis 'expert', only data, fsdp, tensor",
        "('heads', 'fsdp')": (
            "wherever 'heads' stands, another dimension has fsdp by an earlier rule"
        ),
        "none for 'mlp'": "no rule names it: it is not split",
    }
    for rule in given[1:]:
        kept = [one for one in given if one != rule]
        assert sa.logical_rules(kept, MESH).specs(logical) == rules.specs(logical), rule
    with pytest.raises(sa.StrategyError, match="5 logical-axis rules do nothing:\n"):
        rules.check(logical)
    alone = sa.logical_rules([("embed", "fsdp")], MESH)
    assert alone.check({"w": ("embed",)}) is alone


@pytest.mark.parametrize(
    ("given", "logical", "why"),
    [
        (  # one of two axes is taken
            [("embed", "fsdp"), ("heads", ("data", "fsdp"))],
            {"q": ("embed", "heads")},
            "wherever 'heads' stands, another dimension has fsdp by an earlier rule",
        ),
        (  # each array has another axis taken
            [("embed", "fsdp"), ("vocab", "data"), ("heads", ("data", "fsdp", "tensor"))],
            {"q": ("embed", "heads"), "k": ("heads", "vocab")},
            "wherever 'heads' stands, another dimension has data or fsdp by an earlier rule",
        ),
        (  # both axes of one array are taken, by two dimensions
            [("embed", "fsdp"), ("vocab", "data"), ("heads", ("data", "fsdp", "tensor"))],
            {"q": ("embed", "heads", "vocab")},
            "wherever 'heads' stands, another dimension has data, fsdp by an earlier rule",
        ),
        (  # an earlier rule of the same name applies in one array and conflicts in the other
            [("embed", "fsdp"), ("heads", "fsdp"), ("heads", ("fsdp", "tensor"))],
            {"q": ("embed", "heads"), "k": ("heads",)},
            "an earlier rule lays out some dimensions 'heads': ('heads', 'fsdp'); "
            "elsewhere, another dimension has fsdp by an earlier rule",
        ),
        (  # a rule of the same name that applies nowhere is no reason
            [("embed", ("fsdp", "data")), ("heads", "fsdp"), ("heads", ("data", "tensor"))],
            {"q": ("embed", "heads")},
            "wherever 'heads' stands, another dimension has data by an earlier rule",
        ),
    ],
)  # fmt: skip
def test_a_conflict_names_the_axes_that_are_taken(given, logical, why):
    assert sa.logical_rules(given, MESH).idle(logical)["why"][-1] == why


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (3, "3 are no logical-axis rules. Write them as"),
        ([("embed",)], r"\('embed',\) is no logical-axis rule"),
        (["embed"], "'embed' is no logical-axis rule"),
        ([("embed", 3)], r"the logical-axis rule \('embed', \(?3"),
        ([("embed", ("data", None))], "has a name, and axes of the mesh"),
        ("other: 3\n", "the text has no `logical_axis_rules: "),
        ("logical_axis_rules: [['embed', ['fsdp']\n", "line 1: .* is a list in brackets that ends"),
        ("logical_axis_rules: embed\n", "line 1: .* is a list in brackets that ends"),
        ("/no/such/base.yml", "/no/such/base.yml: no file of logical-axis rules"),
    ],
)
def test_what_are_no_rules_is_said(rules, message):
    with pytest.raises(sa.StrategyError, match=message):
        sa.logical_rules(rules, MESH)


def test_a_name_that_stands_twice():
    rules = sa.logical_rules([("embed", "data"), ("embed", "fsdp")], MESH)
    with pytest.raises(sa.StrategyError, match="have 'embed' twice"):
        rules.spec(("embed", "embed"))
    with pytest.raises(sa.StrategyError, match="there are 2 rules for 'embed'"):
        rules.haliax()
