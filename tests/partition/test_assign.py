"""The choice at a node: found by bounds and filters, held against pricing every candidate."""

import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from benchmarks import oracle_bytes
from shardalg.costs.compute import signature_flops
from shardalg.costs.hardware import load
from shardalg.graph.ops.rows import rules
from shardalg.planner.partition.choose import assign
from shardalg.planner.partition.choose.component import components
from shardalg.planner.partition.choose.sent import sent_bytes
from shardalg.planner.partition.partition import Partitioner
from shardalg.planner.partition.partition_options import PartitionOptions
from shardalg.planner.reshard.paths import reshard_path
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

    def key(self, node, value_shardings):
        self.found.append(super().key(node, value_shardings))
        return self.found[-1]


def keys(shape, specs):
    types = [jax.ShapeDtypeStruct(s, "float32") for s in (shape, shape[::-1])]
    plan = sa.plan(step, *types, mesh=MESH, in_shardings=specs)
    options = PartitionOptions.of(plan.options, plan.traced.roles)
    return Keys(plan.sharded, plan.traced.roles, options).run()


def weighed(key, component):
    """Return the candidates, and the smallest number of devices to compute on."""
    found, least = assign.candidates(key, component, assign.available_digits(key, component))
    return found, least


def searched(source, target):
    return reshard_path(source, target).wire_elements


def time(key, choice):
    """Return a device's time, in flops of the planned chip."""
    signature, rates = key.signature, load("tpu_v3").rates("float32")
    written = sum(math.prod(made.shape) * made.itemsize for made in signature.results)
    work = signature_flops(signature) + written * rates.written_flops
    sent = sent_bytes(key, choice, searched)
    return sent * rates.sent_flops + Fraction(work, choice.devices)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(16, 8), (12, 6), (7, 10)], ids=str)
def test_no_candidate_is_better_than_the_choice(shape):
    """Least time where there is arithmetic, else fewest bytes; then most devices, then first."""
    seen = {}
    for specs in itertools.product(LAYOUTS, LAYOUTS):
        seen.update(dict.fromkeys(keys(shape, specs)))
    several = 0
    for key in seen:
        chosen = assign.choose(key)
        for component in components(rules(key.signature)):
            allowed, _ = weighed(key, component)
            several += len(allowed) > 1
            cost = time if component.rule.flops else lambda k, c: sent_bytes(k, c, searched)
            best = min(allowed, key=lambda c: (cost(key, c), -c.devices))
            if len(rules(key.signature)) == 1:
                assert chosen == best, key
            assert set(best.loops) <= set(chosen.loops)
    assert several > 70


# (x, w, asked of the product) on Mesh(X=2, Y=4), and on how many devices it is computed at least.
DEMANDED = [
    (P("X"), P(None, "Y"), P("X", "Y"), 8, "both match the result"),
    (P("X", "Y"), P("X", "Y"), P("X", "Y"), 8, "operands are gathered, not the work repeated"),
    (P(None, "Y"), P("Y"), P(), 4, "both contract along Y"),
    (P(None, "Y"), P(), P(), 1, "one of them does: it may be gathered instead"),
    (P("X"), P(), P(), 2, "completion gives the product X, and it is gathered behind it"),
    (P(), P(), P("X", "Y"), 8, "the result's axes slice the operands"),
    (P(None, "X"), P(("X", "Y")), P(("X", "Y")), 1, "X contracts, but not alike"),
    (P(None, "X"), P("X"), P("X"), 4, "X contracts, and half of Y takes the result's X"),
]


@pytest.mark.parametrize(("x", "w", "asked", "least"), [case[:4] for case in DEMANDED], ids=str)
def test_devices_that_a_product_is_computed_on_at_least(x, w, asked, least):
    types = [jax.ShapeDtypeStruct((64, 64), "float32")] * 2
    plan = sa.plan(jnp.matmul, *types, mesh=MESH, in_shardings=(x, w), out_shardings=asked)
    (key,) = Keys(
        plan.sharded, plan.traced.roles, PartitionOptions.of(plan.options, plan.traced.roles)
    ).run()
    (component,) = components(rules(key.signature))
    assert weighed(key, component)[1] == least


@pytest.mark.parametrize(("size", "kind"), [(64, "all_gather"), (4096, "all_reduce")])
def test_work_is_repeated_where_it_takes_less_time_than_sending(size, kind):
    """x w, w split where x is not: w gathered, n^2 (p-1)/p, or partial sums, 2 n^2 (p-1)/p."""
    types = [jax.ShapeDtypeStruct((size, size), "float32")] * 2
    ends = {"in_shardings": (P(), P("X")), "out_shardings": P()}
    plan = sa.plan(jnp.matmul, *types, mesh=MESH, **ends)
    assert plan.collectives()["kind"].tolist() == [kind]


def taps(x, k):
    return jax.lax.conv_general_dilated(
        x, k, (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=16
    )


# einsum, shapes and specs of its operands, spec of the result; flops of a device and bytes that it
# sends in what XLA's GSPMD makes of it (jax 0.10.2, mesh X=2, Y=2; last: Z=2, too, or size of Y).
MATCHES = {
    "idle axis": ("bsh,hm->bsm", (4, 8, 32), (32, 16), P("X"), P("X"), P("X"), 8192, 2048),
    "axis of the other": (
        "bsm,mh->bsh", (16, 8, 16), (16, 32), P(None, "Y", "X"), P("Y"), P(None, "Y"), 32768, 9216,
    ),
    "one axis each": ("mk,kn->mn", (32, 48), (48, 32), P(None, "X"), P("Y"), P(), 49152, 7168),
    "one operand's": (
        "abc,dbc->ad", (16, 16, 16), (32, 16, 16), P("Y", "X"), P(None, "Y"), P("Y"), 65536, 17408,
    ),
    "one begins with the other's": (
        "bsm,mh->bsh", (16, 16, 32), (32, 32), P(None, "Z", "X"), P(("X", "Y", "Z")), P(None, "Z"),
        131072, 17920, "Z",
    ),
    "one operand's, beside an idle axis": (
        "mk,kn->mn", (16, 48), (48, 32), P(None, "X"), P(), P(), 49152, 1536,
    ),
    "idle axis for both": (
        "mk,kn->mn", (8, 32), (32, 32), P("Y", "X"), P("Y", "X"), P("Y", "X"), 2048, 1536, "Z",
    ),
    "idle axis for the result": (
        "mk,kn->mn", (32, 64), (64, 32), P(None, "X"), P("X"), P(None, "X"), 32768, 4096, "Z",
    ),
    "axis of the second": (
        "sbm,smk->sbk", (16, 8, 8), (16, 8, 8), P("Z", None, "X"), P(("X", "Z"), "Y"),
        P("Z", None, "X"), 2048, 2816, "Z",
    ),
    "more axes of the other": (
        "mk,kn->mn", (16, 16), (16, 16), P(None, "Z"), P(("X", "Y"), "Z"), P(None, "Z"), 1024, 1024,
        "Z",
    ),
    "larger idle axis": (
        "mk,kn->mn", (16, 32), (32, 32), P(None, "X"), P(None, "X"), P(None, "X"), 4096, 2048, 4,
    ),
    "larger idle axis for the result": (
        "bsm,mh->bsh", (4, 16, 16), (16, 32), P(None, None, "X"), P("X"), P(None, None, "X"),
        16384, 8192, 4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MATCHES)
def test_a_product_computes_and_sends_no_more_than_xlas(name):
    text, a, b, first, second, made, flops, sent, *third = MATCHES[name]
    types = [jax.ShapeDtypeStruct(shape, "float32") for shape in (a, b)]
    sizes = {"X": 2, "Y": third[0]} if third == [4] else dict.fromkeys(("X", "Y", *third), 2)
    plan = sa.plan(
        lambda a, b: jnp.einsum(text, a, b), *types,
        mesh=sa.Mesh(sizes),
        in_shardings=(first, second), out_shardings=made,
    )  # fmt: skip
    assert oracle_bytes.our_product_flops(plan.program, plan.graph) <= flops
    assert oracle_bytes.our_wire_bytes(plan.program) <= sent
    assert plan.verify().ok


def test_an_idle_axis_does_not_take_what_is_contracted_as_it_lies():
    """Partial sums are added along the axis of the weights, for any batch."""
    types = [
        jax.ShapeDtypeStruct(n, "bfloat16") for n in ((692223, 4096), (4096, 16384), (16384, 4096))
    ]
    specs = (P(), P(None, "X"), P("X"))
    plan = sa.plan(
        lambda x, a, b: jnp.maximum(x @ a, 0) @ b, *types,
        mesh=sa.Mesh({"X": 2, "Y": 4}), in_shardings=specs,
    )  # fmt: skip
    assert plan.collectives()[["kind", "mesh_axes"]].values.tolist() == [["all_reduce", "X"]]


def test_what_nothing_reaches_lies_as_it_is_made():
    def loss(x, k):
        numbers = ("NWC", "WIO", "NWC")
        made = jax.lax.conv_general_dilated(
            x, k, (1,), [(2, 0)], dimension_numbers=numbers, feature_group_count=16
        )
        return jnp.sum(made**2)

    types = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((4, 16, 16), (3, 1, 16))]
    given = {"in_shardings": (P(None, None, "X"), P()), "mesh": sa.Mesh({"X": 8})}
    wanted = (P(None, None, "X"), P(None, None, "X"))
    plan = sa.plan(jax.grad(loss, (0, 1)), *types, **given, out_shardings=wanted)
    assert len(plan.collectives()) == 0  # as in XLA's partition by Shardy
    assert plan.verify().ok
    made = plan.graph.nodes[0].results[0]
    assert plan.sharded.shardings[made].text() == "[None, None, X]"
    words = "no annotation propagates to it: the sharding of its operands, x"
    assert plan.sharded.why(made) == words
    xla = sa.plan(jax.grad(loss, (0, 1)), *types, **given, options=sa.Options(policy="gspmd"))
    assert xla.sharded.why(made) == "no annotation propagates to it"


def test_taps_of_a_window_are_gathered_rather_than_results_added_up():
    types = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((2, 32, 16), (4, 1, 16))]
    given = {"in_shardings": (P(None, "Y"), P("X")), "out_shardings": P(None, "Y")}
    plan = sa.plan(taps, *types, mesh=sa.Mesh({"X": 4, "Y": 2}), **given)
    kinds = [row["kind"] for row in plan.collectives_table]
    assert sorted(kinds) == ["all_gather", "collective_permute"]
