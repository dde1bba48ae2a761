"""Figure 6 (section 4.4): AC = einsum(AB, BC) in nested groups of devices, and other nestings.

Blue is X, red is Y: A lies along X, B and C along Y. Grouped along X, each group is left with
einsum(aB, Bc) over two logical devices; what is gathered there, {0,1}, is gathered in both groups,
{{0,1},{2,3}}. Here no group is a partitioner of its own: each loop of the row takes its digits, and
a collective along some digits has as its groups all devices that differ in these alone.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.lower.emit import control as emission
from shardalg.lower.xla_dump.hlo_collectives import collectives
from shardalg.spmd.host import control as simulation
from shardalg.spmd.host.blocks import groups
from shardalg.spmd.instructions import AllGather, Apply
from tests.partition.planned import check_equal, instructions, moves, numbers

MESH = sa.Mesh({"X": 2, "Y": 2})
CUBE = sa.Mesh({"X": 2, "Y": 2, "Z": 2})


def product(ab, bc):
    return jnp.einsum("ab,bc->ac", ab, bc)


def test_figure_6():
    arguments = numbers(4, 8), numbers(8, 6)
    specs = (P("X", "Y"), P(None, "Y"))
    plan = sa.plan(product, *arguments, mesh=MESH, in_shardings=specs, out_shardings=P("X", "Y"))
    assert str(plan.program).splitlines() == [
        "SpmdProgram on Mesh(X=2, Y=2), every device runs:",
        "  %0 = f32[2@X,4@Y] argument",
        "  %1 = f32[8,3@Y] argument",
        "  %2 = f32[2@X,8] all_gather dim=1 axes=Y %0  # dot_general needs: [X, Y] to [X, None]",
        "  %3 = f32[2@X,3@Y] dot_general [m@X, n@Y] %2 %1",
        "  return %3",
    ]
    (gather,) = (s.attributes for s in plan.program.block.instructions if s.results == (2,))
    assert isinstance(gather, AllGather)
    assert groups(gather.digits, MESH.size) == [[0, 1], [2, 3]]
    lowered = plan.lower()
    (sent,) = collectives(lowered.compiled.as_text(), MESH)
    assert (sent.kind, sent.axes, sent.group_size) == ("all_gather", ("Y",), 2)
    assert plan.verify().ok
    check_equal(plan, product, arguments)
    np.testing.assert_array_equal(lowered(*arguments), product(*arguments))


def convolution(x, k):
    dims = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=dims)


def einsum(spec):
    return lambda x, w: jnp.einsum(spec, x, w)


AR = "all_reduce"
IMAGE, KERNEL = numbers(4, 6, 5, 4), numbers(3, 3, 4, 6)
NESTED = {
    # batch x non-contracting x contracting; of two devices each is the other's only neighbour
    "einsum": (
        einsum("bsm,bmh->bsh"), (numbers(4, 6, 8), numbers(4, 8, 5)),
        (P("X", "Y", "Z"), P("X", "Z")), P("X", "Y"), [(AR, "Z")],
    ),
    "einsum, uneven": (
        einsum("bsm,bmh->bsh"), (numbers(3, 5, 7), numbers(3, 7, 5)),
        (P("X", "Y", "Z"), P("X", "Z")), P("X", "Y"), [(AR, "Z")],
    ),
    "sums left scattered": (
        einsum("bsm,bmh->bsh"), (numbers(4, 6, 8), numbers(4, 8, 6)),
        (P("X", "Y", "Z"), P("X", "Z")), P("X", "Y", "Z"), [("reduce_scatter", "Z")],
    ),
    "spatial x batch x feature": (
        convolution, (IMAGE, KERNEL),
        (P("X", "Y"), P(None, None, None, "Z")), P("X", "Y", None, "Z"),
        [("collective_permute", "Y")],
    ),
    "spatial x batch x contracted feature": (
        convolution, (IMAGE, KERNEL), (P("X", "Y", None, "Z"), P(None, None, "Z")), P("X", "Y"),
        [("collective_permute", "Y"), (AR, "Z")],
    ),
    "several axes on one loop": (
        einsum("sm,mh->sh"), (numbers(6, 16), numbers(16, 5)),
        (P("Z", ("X", "Y")), P(("X", "Y"))), P("Z"), [(AR, "X,Y")],
    ),
    "a contracting loop on one side only": (
        einsum("sm,mh->sh"), (numbers(6, 16), numbers(16, 5)),
        (P("Y", "X"), P()), P("Y"), [(AR, "X")],
    ),
}  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", NESTED)
def test_loops_on_orthogonal_axes_compose(name):
    fn, arguments, specs, results, expected = NESTED[name]
    plan = sa.plan(fn, *arguments, mesh=CUBE, in_shardings=specs, out_shardings=results)
    assert list(dict.fromkeys(moves(plan))) == expected  # a halo may come from both sides
    assert plan.verify().ok, plan.verify().refuted
    check_equal(plan, fn, arguments)


@pytest.mark.parametrize(("rows", "columns"), [(2, 64), (64, 2), (16, 16)])
def test_of_conflicting_operands_the_cheaper_one_moves(rows, columns):
    """Both want X on a dimension of their own: one of them is gathered, the one of fewer bytes."""
    arguments = numbers(rows, 8), numbers(8, columns)
    plan = sa.plan(product, *arguments, mesh=MESH, in_shardings=(P("X"), P(None, "X")))
    sent = sum(row["wire_bytes"] for row in plan.collectives_table)
    least = min(4 * 8 * size // 2 for size in (rows, columns))
    assert sent == least
    check_equal(plan, product, arguments)


@pytest.mark.parametrize("size", [2, 8])
def test_every_device_runs_one_configuration(size, monkeypatch):
    """A local operator's configuration is one object, for any device and any number of them."""
    given = {simulation: [], emission: []}
    for module, found in given.items():

        def spy(name, binding, params, operands, found=found, apply=module.apply):
            found.append((name, id(params)))
            return apply(name, binding, params, operands)

        monkeypatch.setattr(module, "apply", spy)
    arguments, specs = (IMAGE, KERNEL), (P(None, "X"), P(None, None, None, "X"))
    mesh = sa.Mesh({"X": size})
    plan = sa.plan(
        convolution, *arguments, mesh=mesh, in_shardings=specs, out_shardings=P(None, "X")
    )
    check_equal(plan, convolution, arguments)
    steps = [s.attributes for s in instructions(plan.program.block) if type(s.attributes) is Apply]
    configured = [(a.primitive, id(a.params)) for a in steps]
    assert set(given[simulation]) == set(configured)
    assert len(given[simulation]) > len(configured)  # several devices run each
    plan.lower().stage  # noqa: B018
    assert given[emission] == configured  # traced once for all of them
