"""`rules.lint` finds the faults of the recorded cases, and none in rules that others publish."""

import doctest
import json
import re
from dataclasses import asdict
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.plan.rules.findings import KINDS
from tests.calls_made import calls_made

HERE = Path(__file__).parent
SMALL = json.loads((HERE / "cases/small_rules.json").read_text())
PUBLIC = json.loads((HERE / "public_rules.json").read_text())
# flax's lm1b has a rule for heads, and no array with that name: nn.MultiHeadDotProductAttention
# gets kernels with the names embed and kv.
TRUE_FAULTS = {"flax lm1b": [("no_array", "heads")]}


def arrays_of(given):
    return {k: (tuple(v["shape"]), "bfloat16", tuple(v["names"])) for k, v in given.items()}


def public(case):
    """Return the rules of a published case, and its arrays."""
    rules = sa.logical_rules([tuple(rule) for rule in case["rules"]], case["mesh"])
    arrays = case["arrays"]
    return rules, arrays_of(PUBLIC["arrays"][arrays] if isinstance(arrays, str) else arrays)


def as_recorded(found):
    """Return a finding in the notation of the recorded cases."""
    one = {"kind": found.kind, "rule": found.rule}
    axes = found.axis.split(", ")
    match found.kind:
        case "shadowed":
            one |= {"by": found.by[0]}
        case "no_array":
            one |= {"name": found.name}
        case "size_one":
            one |= {"axis": found.axis}
        case "never_applies":
            one |= {"taken": axes, "by": list(found.by)}
        case "collision":
            del one["rule"]
            one |= {"array": found.array, "axis": found.axis, "wins": found.by[0]}
            one |= {"loses": found.rule, "dimension": found.name}
    return one


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case["name"])
def test_the_recorded_findings_and_no_others(case):
    rules = sa.logical_rules([tuple(rule) for rule in case["rules"]], case["mesh"])
    found = [as_recorded(one) for one in rules.lint(arrays_of(case["arrays"]))]
    wanted = [{k: v for k, v in one.items() if k != "lost_axes"} for one in case["findings"]]
    assert sorted(map(str, map(sorted, map(dict.items, found)))) == sorted(
        map(str, map(sorted, map(dict.items, wanted)))
    )


@pytest.mark.parametrize("case", PUBLIC["rules"], ids=lambda case: case["name"])
def test_rules_that_others_publish_have_no_faults(case):
    rules, arrays = public(case)
    found = [(one.kind, one.name) for one in rules.lint(arrays)]
    assert found == TRUE_FAULTS.get(case["name"], [])


def test_ten_repositories_files_are_named():
    assert len({(c["repository"], c["file"]) for c in PUBLIC["rules"]}) >= 10
    assert all(len(c["commit"]) == 40 for c in PUBLIC["rules"])


def misspelt(name):
    """Return a name with its last two letters exchanged."""
    at = next(i for i in range(len(name) - 1, 0, -1) if name[i].isalpha() and name[i - 1].isalpha())
    return name[: at - 1] + name[at] + name[at - 1] + name[at + 1 :]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", PUBLIC["rules"], ids=lambda case: case["name"])
def test_each_misspelt_rule_of_them_is_found(case):
    """A rule set that is silent must not be silent about faults."""
    rules, arrays = public(case)
    shape = rules.mesh.shape
    used = {name for _, _, names in arrays.values() for name in names if name}
    live = {r.name for r in rules.rules if any(shape.get(a, 1) > 1 for a in r.axes)} & used
    for name in sorted(live):
        wrong = misspelt(name)
        if wrong == name:
            continue
        given = [(wrong if r.name == name else r.name, r.axes) for r in rules.rules]
        found = sa.logical_rules(given, rules.mesh).lint(arrays)
        assert ("no_array", wrong) in [(one.kind, one.name) for one in found], name


MESH = {"data": 4, "model": 2, "off": 1}
W = ((64, 256), "float32", ("embed", "mlp"))


@pytest.mark.parametrize(
    ("given", "arrays", "wanted"),
    [
        ([("embed", "modle")], {"w": W}, ("unknown_axis", "modle", "did you mean 'model'?")),
        ([("mpl", "model")], {"w": W}, ("no_array", "model", "did you mean 'mlp'?")),
        ([("embed", "model"), ("mlp", "model")], {"w": W}, ("collision", "model", "'mlp' is not")),
        ([("mlp", ("data", "model"))], {"w": ((64, 12), "float32", ("embed", "mlp"))},
         ("not_divisible", "data, model", "12 elements, which 8 devices")),
        ([("mlp", "off")], {"w": W}, ("size_one", "off", "every device has all of w")),
        ([("mlp", "model")], {"w": W, "u": ((64, 256), "float32", ("embed", "mlp")),
                              "p": ((64, 128), "float32", ("length", "width"))},
         ("replicated", "model", "no rule has the name 'length'")),
    ],
)  # fmt: skip
def test_each_kind(given, arrays, wanted):
    kind, axis, why = wanted
    (one, *_) = sa.logical_rules(given, MESH).lint(arrays).of_kind(kind)
    assert one.axis == axis
    assert why in one.why
    assert one.repair is None


def test_bytes_of_a_whole_array():
    """A weight that is whole along an axis of 2 could have half as many bytes."""
    arrays = {"w": W, "u": W, "p": ((64, 128), "float32", ("length", "width"))}
    found = sa.logical_rules([("mlp", "model")], MESH).lint(arrays)
    assert [(f.kind, f.array, f.bytes) for f in found] == [("replicated", "p", 64 * 128 * 4 // 2)]


def test_an_axis_of_size_one_that_takes_the_others():
    """`data` has size 1 and is used, so that flax drops the whole rule, and `model` with it."""
    rules = sa.logical_rules(
        [("batch", "data"), ("embed", ("data", "model"))], {"data": 1, "model": 4}
    )
    found = rules.lint({"x": ((8, 64), "float32", ("batch", "embed"))})
    assert "collision" in [one.kind for one in found]
    assert tuple(rules.spec(("batch", "embed"))) == ("data", None)


def test_the_page_is_as_printed():
    page = (HERE.parents[1] / "docs" / "logical_rules.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    example = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "page", None, 0)
    told = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.DocTestRunner(optionflags=flags).run(example, out=told.append)
    assert result.attempted > 10
    assert not result.failed, "".join(told)
    assert set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE)) == set(KINDS)


def test_findings_are_a_plain_table():
    found = sa.logical_rules([("mpl", "model")], MESH).lint({"w": W})
    assert found
    assert len(found) == 1
    table = found.table()
    assert list(table.columns) == ["kind", "rule", "array", "axis", "bytes", "repair", "why"]
    assert table["kind"].tolist() == ["no_array"]
    assert "1 finding in 1 rule for 1 array on Mesh(" in repr(found)
    assert "<table" in found._repr_html_()
    assert asdict(found[0])["rule"] == 0
    assert found[0].rule_text == "('mpl', 'model')"
    none = sa.logical_rules([("mlp", "model")], MESH).lint({"w": W})
    assert not none
    assert repr(none).startswith("no findings in 1 rule for 1 array")
    assert "no findings" in none._repr_html_()


def test_another_mesh():
    rules = sa.logical_rules([("mlp", "model")], {"model": 1})
    assert [one.kind for one in rules.lint({"w": W})] == ["size_one"]
    assert not rules.lint({"w": W}, {"model": 4})
    assert not rules.lint({"w": W}, sa.Mesh({"model": 4}))


def test_boxes_of_linen_and_variables_of_nnx_are_read():
    """The names are those that flax returns, and the shapes those of the arrays."""
    init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("embed", "mlp"))
    boxed = jax.eval_shape(
        nn.Dense(256, kernel_init=init, use_bias=False).init, jax.random.key(0), jnp.ones((8, 64))
    )
    init = nnx.with_partitioning(
        nnx.initializers.lecun_normal(), ("embed", "mlp"), eager_sharding=False
    )
    layer = nnx.eval_shape(
        lambda: nnx.Linear(64, 256, use_bias=False, kernel_init=init, rngs=nnx.Rngs(0))
    )
    plain = jax.eval_shape(lambda: nn.meta.unbox(boxed))
    rules = sa.logical_rules([("mpl", "model"), ("embed", ("data", "model"))], MESH)
    for arrays, names in (
        (boxed, None),
        (nnx.state(layer), None),
        (plain, nn.get_partition_spec(boxed)),
        ({"params": {"kernel": jnp.ones((64, 256))}}, {"params": {"kernel": ("embed", "mlp")}}),
        ({"w": ((64, 256), ("embed", "mlp"))}, None),
        ({"w": ("embed", "mlp")}, None),
        ({"w": P("embed", "mlp")}, None),
    ):
        found = rules.lint(arrays, names=names)
        assert [(one.kind, one.meant) for one in found] == [("no_array", "mlp")], arrays


@pytest.mark.parametrize(
    ("arrays", "more", "message"),
    [
        ({}, {}, "there are no arrays to lint"),
        ({"w": jnp.ones(3)}, {}, "no array has names for its dimensions"),
        ({"w": ((3, 4), "float32", ("a",))}, {}, r"2 dimensions, \[3, 4\], and 1 names, \['a'\]"),
        ({"w": ((3, 4), "float33", ("a", "b"))}, {}, "dtype 'float33': write it as 'bfloat16'"),
        ({"w": ((3, 4), "float32", 7)}, {}, "array 'w' has the names 7: give a name or None"),
        ({"w": object()}, {}, "array 'w' is <object"),
        ({"w": ("a", "a")}, {}, "have 'a' twice"),
        ({"w": ((-3, 4), ("a", "b"))}, {}, r"shape \[-3, 4\], with the size -3: sizes are whole"),
        ({"w": ((3.5, 4), ("a", "b"))}, {}, r"shape \[3.5, 4\], with the size 3.5"),
        ({"w": ((True, 4), ("a", "b"))}, {}, r"with the size True"),
        ({"w": ((*sa.dims("B", hint=8), 4), ("a", "b"))}, {}, r"with the size B"),
        ({"w": ((), "float32", ())}, {}, "no array has names for its dimensions"),
        ({"w": ((), "float32", ("a",))}, {}, r"0 dimensions, \[\], and 1 names, \['a'\]"),
        ({"w": W}, {"names": 3}, "has the names 3: give a name or None"),
        ({"w": jnp.ones(3)}, {"names": {"v": ("a",)}}, "no names for array 'w'; near: v"),
        ({"w": W}, {"fn": lambda ww: ww}, "parameter 'ww' of <lambda> is no key of"),
        ([W], {"fn": lambda w: w}, "`arrays` is a mapping whose keys are"),
        ({"w": ("a", "b")}, {"fn": lambda w: w}, "'w' is an argument of the function"),
        ({"w": W, "hidden": W}, {"fn": lambda w: sa.annotate(w, "hiden")}, "Did you mean 'hiden'"),
    ],
)  # fmt: skip
def test_what_lint_cannot_read(arrays, more, message):
    with pytest.raises(sa.StrategyError, match=message):
        sa.logical_rules([("mlp", "model")], MESH).lint(arrays, **more)


@pytest.mark.parametrize("scalar", [((), "int32", ()), jax.ShapeDtypeStruct((), "int32"), ()])
def test_scalars_have_no_names(scalar):
    """The count of an optimizer, beside arrays with names; a node without arrays is skipped."""
    rules = sa.logical_rules([("mlp", "model"), ("embed", None)], MESH)
    found = rules.lint({"w": W, "state": (scalar, {"m": W})})
    assert not len(found)
    assert found.num_arrays == 2 + (scalar != ())
    names = {"w": W[-1], "state": ((), {"m": W[-1]})}
    bare = {"w": jax.ShapeDtypeStruct(*W[:2])}
    assert not len(rules.lint({**bare, "state": (scalar, {"m": bare["w"]})}, names=names))
    layouts = rules.strategy(({"w": W, "count": scalar},)).in_shardings[0]
    assert layouts["w"] == rules.spec(W[-1])


def test_findings_are_asked_for_by_number_and_kind():
    found = sa.logical_rules([("mpl", "model")], MESH).lint({"w": W})
    assert found[0] is found[-1] is found.of_kind("no_array")[0]
    assert found[:3] == tuple(found)
    for number in (99, -2, "no_array"):
        with pytest.raises(sa.TableError, match=f"no finding {number!r}: .* numbered 0 to 0"):
            _ = found[number]
    with pytest.raises(sa.TableError, match="'shadow': did you mean 'shadowed'"):
        found.of_kind("shadow")


@pytest.mark.parametrize("names", ["mlp", (3,), (("mlp",),)])
def test_names_of_dimensions_are_text(names):
    with pytest.raises(sa.StrategyError, match="give a tuple with a name or None per dimension"):
        sa.logical_rules([("mlp", "model")], MESH).spec(names)


def test_a_model_of_a_billion_parameters_needs_little_work():
    """24 layers of width 1792, by MaxText's own rules."""
    width, ff, heads = 1792, 7168, 14
    case = next(c for c in PUBLIC["rules"] if c["name"] == "maxtext base, fsdp and tensor")
    rules, _ = public(case)
    kinds = {
        "query": ((width, heads, 128), ("embed", "q_heads", "kv")),
        "key": ((width, heads, 128), ("embed", "kv_heads", "kv_head_dim")),
        "out": ((heads, 128, width), ("heads", "kv", "embed")),
        "wi": ((width, ff), ("embed", "mlp")),
        "wo": ((ff, width), ("mlp", "embed")),
        "scale": ((width,), ("norm",)),
    }
    arrays = {
        f"layer{i}": {k: (s, "bfloat16", n) for k, (s, n) in kinds.items()} for i in range(24)
    }
    arrays["table"] = ((131072, width), "bfloat16", ("vocab", "embed_vocab"))
    found, calls = calls_made(lambda: rules.lint(arrays))
    assert calls <= 400_000
    # 14 heads are not divisible by 4 devices along tensor: that is so.
    assert {(one.kind, one.name) for one in found} == {
        ("not_divisible", "q_heads"), ("not_divisible", "kv_heads"), ("not_divisible", "heads"),
    }  # fmt: skip
