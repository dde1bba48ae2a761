"""Random convolutions over one sharded dimension in the paper's case 3 of base dilation."""

from dataclasses import dataclass

import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from tests.partition.planned import check_equal, moves, numbers, planned

SEED = 210504663


@dataclass(frozen=True)
class Configuration:
    """A window over `size` elements in `parts` blocks; `seed` of the numbers in them."""

    window: sa.Window
    size: int
    parts: int
    seed: int

    def convolve(self, x, k):
        w = self.window
        return lax.conv_general_dilated(
            x,
            k,
            window_strides=(w.stride,),
            padding=((w.padding_low, w.padding_high),),
            lhs_dilation=(w.base_dilation,),
            rhs_dilation=(w.window_dilation,),
            dimension_numbers=("NHC", "HIO", "NHC"),
        )


def configurations(count):
    """Return the case-3 windows of a random sample: the dilation's phase depends on the device."""
    rng = np.random.default_rng(SEED)
    found = 0
    while found < count:
        size, stride, low, high, base, dilation = (
            int(n) for n in rng.integers((2, 1, -2, -2, 2, 1), (6, 5, 6, 6, 6, 3))
        )
        window = sa.Window(size, stride, low, high, base, dilation)
        parts = int(rng.choice((4, 8)))
        elements = int(rng.integers(parts * 8, parts * 96))
        if window.out_size(elements) and sa.halo(window, size=elements, parts=parts).case == 3:
            found += 1
            yield Configuration(window, elements, parts, found)


def factors(count):
    """Per configuration, how many times more elements a device receives if it gathers."""
    pairs = np.array([checked(c) for c in configurations(count)])
    return pairs[:, 1] / np.maximum(pairs[:, 0], 1)


def checked(configuration):
    """Elements that a device receives, and that it would by gathering; the plan is right."""
    c = configuration
    arguments = numbers(2, c.size, 3, seed=c.seed), numbers(c.window.size, 3, 4, seed=c.seed + 1)
    rows, mesh = P(None, "X"), sa.Mesh({"X": c.parts})
    plan = planned(c.convolve, arguments, (rows, P()), mesh=mesh, out_shardings=rows)
    assert {kind for kind, _ in moves(plan)} <= {"collective_permute"}, c
    check_equal(plan, c.convolve, arguments)
    report = plan.verify()
    assert report.ok, (c, report.refuted)
    wire_bytes = sum(row["wire_bytes"] * row["executions"] for row in plan.collectives_table)
    return wire_bytes // arguments[0].itemsize, (c.parts - 1) * -(-c.size // c.parts) * 2 * 3
