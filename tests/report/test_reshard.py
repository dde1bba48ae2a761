"""`sa.reshard`: the path between two layouts shown, proved, simulated and run."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.algebra.digits import Digit
from shardalg.lower.measure import memory
from shardalg.spmd import instructions as p
from shardalg.spmd.host.simulate import simulate
from shardalg.verify.verify import Verifier

MESH = sa.Mesh({"x": 2, "y": 4})
# Public complaints on which XLA gathers the whole tensor, in two all-to-alls each.
ISSUES = {
    "jax 21562": (P("y", None, "x"), P(None, ("x", "y"), None)),
    "openxla 15207": (P(("x", "y"), None, None), P(None, "y", "x")),
}


def between(source, target, shape=(64, 64, 64), mesh=MESH):
    return sa.reshard(*(sa.Sharding.from_spec(spec, mesh, shape) for spec in (source, target)))


@pytest.mark.parametrize("name", ISSUES)
def test_issues_take_two_all_to_alls_and_a_quarter_of_the_memory(name, show):
    x = np.arange(128**3, dtype=np.float32).reshape(128, 128, 128)
    path = between(*ISSUES[name], shape=x.shape)
    assert path.table["kind"] == ("all_to_all", "all_to_all")
    assert path.verify().ok
    lowered = path.lower()
    (result,) = lowered(x)
    np.testing.assert_array_equal(result, x)
    ours, xla = memory(lowered).temp_bytes, memory(lowered.jit()).temp_bytes
    show(f"{name}: {path.wire_bytes} bytes sent, {ours} temporary ones, XLA {xla} of {x.nbytes}")
    assert ours <= 0.25 * xla
    assert path.peak_bytes == x.nbytes // 8


def test_a_path_says_what_it_costs():
    path = between(*ISSUES["jax 21562"], shape=(8, 8, 8))
    assert repr(path).startswith(
        "[y, None, x] to [None, (x, y), None] of float32[8,8,8] on Mesh(x=2, y=4): 320 B sent "
        "per device (lower bound 224 B), largest buffer 256 B of a tensor of 2.05 kB.\nkind "
    )
    assert "<table>" in path._repr_html_()
    assert list(path.df["wire_bytes"]) == [128, 192]
    timed = sa.reshard(path.source, path.target, on="tpu_v3")
    assert sum(timed.table["time_s"]) == timed.seconds > 0


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (sa.Sharding(MESH, (8,), ((),)), sa.Sharding(MESH, (9,), ((),)), "the shapes differ"),
        (
            sa.Sharding(MESH, (8,), ((),)),
            sa.Sharding(sa.Mesh({"x": 8}, (0, 1, 2, 3, 4, 5, 7, 8)), (8,), ((Digit(1, 8),),)),
            "is on other devices",
        ),
    ],
)
def test_what_has_no_path_is_an_error(source, target, words):
    with pytest.raises(sa.ShardingError, match=words):
        sa.reshard(source, target)


def mutated(path, change):
    """Return the path's program with its first all-to-all changed, its claims, and the truth."""
    program, graph = path._made
    steps = list(program.block.instructions)
    at = next(i for i, s in enumerate(steps) if isinstance(s.attributes, p.AllToAll))
    steps[at] = replace(steps[at], attributes=change(steps[at].attributes))
    program = replace(program, block=replace(program.block, instructions=tuple(steps)))
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    (result,) = simulate(program, graph, x)
    claims = tuple(Verifier(graph, program).program_claims())
    return all(c.status == "proved" for c in claims), np.array_equal(result, x)


@pytest.mark.parametrize(
    ("change", "right"),
    [
        (lambda a: a, True),
        (lambda a: replace(a, arriving=()), False),
        (lambda a: replace(a, digits=a.arriving, arriving=a.digits), False),
        (lambda a: replace(a, digits=a.arriving), False),
    ],
    ids=["as planned", "in the order of leaving", "orders swapped", "left in the other order"],
)
def test_another_order_of_an_all_to_all_is_refuted(change, right):
    path = between(P(("x", "y"), None), P(None, ("y", "x")), (64, 64))
    assert path.table["kind"] == ("all_to_all",)
    assert mutated(path, change) == (right, right)


SIX = (sa.Mesh({"x": 2, "y": 3}), sa.Mesh({"u": 3, "v": 2}), sa.Mesh({"w": 6}))
TWELVE = (sa.Mesh({"x": 4, "y": 3}), sa.Mesh({"u": 6, "v": 2}), sa.Mesh({"w": 2, "z": 6}))
ORDERS = (MESH, sa.Mesh({"u": 4, "v": 2}, (0, 4, 1, 5, 2, 6, 3, 7)), sa.Mesh({"w": 8}))


@st.composite
def two_meshes(draw):
    """Layouts of one tensor on two meshes over the same devices."""
    meshes = draw(st.sampled_from([SIX, TWELVE, ORDERS]))
    shape = tuple(draw(st.lists(st.sampled_from([24, 36, 7]), min_size=1, max_size=2)))
    ends = []
    for _ in range(2):
        mesh = draw(st.sampled_from(meshes))
        dims = [[] for _ in shape]
        for name in draw(st.permutations(mesh.axis_names)):
            place = draw(st.sampled_from([*range(len(shape)), None]))
            if place is not None:
                dims[place].append(name)
        ends.append(sa.Sharding.from_axes([tuple(d) or None for d in dims], mesh, shape))
    return ends


@given(two_meshes())
def test_layouts_on_two_meshes_over_the_same_devices(ends):
    """Axes and device orders differ; the results are right and proved."""
    path = sa.reshard(*ends)
    x = np.arange(np.prod(path.source.shape), dtype=np.float32).reshape(path.source.shape)
    np.testing.assert_array_equal(path.simulate(x), x)
    assert path.wire_bytes >= path.least_wire_bytes
    report = path.verify()
    assert report.ok, [c.words for c in report.claims if c.status != "proved"]
