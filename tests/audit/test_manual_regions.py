"""Manual regions (`shard_map`): sums, rings in a loop and gathers, right and with a fault."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.xla.audit.audit_calls import partitioned
from tests.audit.test_recorded_pairs import pairs

MESH = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
X, W = jax.ShapeDtypeStruct((8, 16), "float32"), jax.ShapeDtypeStruct((16, 8), "float32")


def in_region(body, in_specs, out_specs):
    return jax.shard_map(
        body, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )  # fmt: skip


def summed(x, w):
    region = in_region(lambda x, w: lax.psum(x @ w, "y"), (P("x", "y"), P("y")), P("x"))
    return 2 * region(jnp.tanh(x), w)


def ring(x):
    def body(x):
        def step(_, carry):
            total, block = carry
            pairs = [(k, (k + 1) % 4) for k in range(4)]
            return total + block, lax.ppermute(block, "y", pairs)

        return lax.fori_loop(0, 4, step, (0 * x, x))[0]

    return in_region(body, P("x", "y"), P("x", "y"))(x + 1)


def gathered(x):
    body = lambda x: lax.all_gather(x, "y", axis=1, tiled=True)  # noqa: E731
    return in_region(body, P("x", "y"), P("x"))(x + 1)


def without(text, opcode):
    """Return a text in which the first instruction of an opcode is a copy."""
    line = next(row for row in text.splitlines() if f" {opcode}(" in row)
    operand = re.search(rf" {opcode}\(([^)]*)\)", line)[1]
    return text.replace(line, f"{line[: line.index(opcode + '(')]}copy({operand})")


def with_groups(text, opcode):
    line = next(row for row in text.splitlines() if f" {opcode}(" in row)
    other = re.sub(
        r"replica_groups=(\{\{.*?\}\}|\S+)(?=,)", "replica_groups={{0,2,4,6},{1,3,5,7}}", line
    )
    return text.replace(line, other)


def with_pairs(text, opcode):
    return re.sub(r"\{0,1\},\{1,2\}", "{0,2},{1,1}", text, count=1)


@pytest.mark.parametrize(
    ("fn", "args", "specs", "faults"),
    [
        (summed, (X, W), (P("x", "y"), P("y")),
         [(without, "all-reduce"), (with_groups, "all-reduce")]),
        (ring, (X,), (P("x", "y"),),
         [(without, "collective-permute"), (with_pairs, "collective-permute")]),
        (gathered, (X,), (P("x", "y"),), [(with_groups, "all-gather")]),
    ],
)  # fmt: skip
def test_a_region_is_proved_and_its_faults_are_not(fn, args, specs, faults):
    dump = partitioned(fn, args, sa.Mesh({"x": 2, "y": 4}), specs, None)
    assert sa.audit_hlo(dump.before, dump.after).verdict == "proved"
    for change, opcode in faults:
        wrong = change(dump.after, opcode)
        assert wrong != dump.after
        assert not sa.audit_hlo(dump.before, wrong).ok, (change, opcode)


def test_faults_of_a_region_over_some_axes():
    given = pairs()["shard_map_subgraph.shardy"]
    for change in (without, lambda text, _: text.replace("{0,4},{1,5}", "{0,5},{1,4}")):
        wrong = change(given["after"], "collective-permute")
        assert wrong != given["after"]
        assert sa.audit_hlo(given["before"], wrong).verdict == "refuted"
