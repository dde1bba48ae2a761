"""The choice at a node: found by bounds and filters, held against pricing every candidate."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.ops.table import rules
from shardalg.partition import assign
from shardalg.partition.partition import Partitioner
from shardalg.partition.reshard import reshard_path
from tests.partition.planned import MESH

LAYOUTS = [P(), P("X"), P("Y", "X"), P(None, ("X", "Y"))]


def step(x, w):
    """Products, sums that stay pending, a reshape, a maximum, a sort: even and uneven."""
    y = jnp.tanh(x @ w) @ w.T + x
    z = jnp.sort(y.reshape(-1, 2) * 2, axis=0)
    return y, z.sum(0), y.max(1), jax.grad(lambda w: ((x @ w) ** 2).sum())(w)


class Keys(Partitioner):
    """Remembers with which key every node decided."""

    def run(self):
        self.found = []
        super().run()
        return self.found

    def key(self, node, homes):
        self.found.append(super().key(node, homes))
        return self.found[-1]


def keys(shape, specs):
    types = [jax.ShapeDtypeStruct(s, "float32") for s in (shape, shape[::-1])]
    plan = sa.plan(step, *types, mesh=MESH, in_shardings=specs)
    return Keys(plan.sharded, plan.traced.roles, plan.options).run()


def searched(source, target):
    return reshard_path(source, target).wire_elements


@pytest.mark.parametrize("shape", [(16, 8), (12, 6), (7, 10)], ids=str)
def test_no_candidate_is_better_than_the_choice(shape):
    """Most devices where there is arithmetic, then fewest bytes, then most devices, then first."""
    seen = {}
    for specs in itertools.product(LAYOUTS, LAYOUTS):
        seen.update(dict.fromkeys(keys(shape, specs)))
    several = 0
    for key in seen:
        chosen = assign.choose(key)
        for _, candidates, rule in assign.alternatives(key):
            several += len(candidates) > 1
            best = min(
                candidates,
                key=lambda c: (
                    -c.devices if rule.flops else 0,
                    assign._bytes(key, c, searched),
                    -c.devices,
                ),
            )
            if len(rules(key.signature)) == 1:
                assert chosen == best, key
            assert set(best.loops) <= set(chosen.loops)
    assert several > 100
