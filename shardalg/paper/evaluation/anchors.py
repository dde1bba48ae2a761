"""One measured column per table stands for what the paper does not state of its steps."""

from __future__ import annotations

from collections.abc import Callable

from shardalg.costs.hardware import Hardware, load
from shardalg.costs.topology import Topology
from shardalg.paper.evaluation.goals import STEP
from shardalg.paper.evaluation.prediction import ANCHOR, HELD_OUT, Prediction
from shardalg.paper.evaluation.published import Column, column

ANCHORS = {
    4: "narrow-pipe-bench.c2",
    5: "conformer-pipe-bench.c2",
    6: "sparse-bench.c2",
    7: "hybrid-bench.c2",
    8: "unet-bench.c2",
}
"""Table number to the column that is taken."""
CHIP, CORES = "tpu_v3", 2


def slice_of(devices: int) -> Topology | Hardware:
    """The slice of TPU v3 with so many cores, as near to a square as the vendor's are, or a core.

    >>> slice_of(64), slice_of(2048)
    (Topology(tpu_v3:4x8), Topology(tpu_v3:32x32))
    """
    if devices < CORES:
        return load(CHIP)
    chips = devices // CORES
    short = 1 << (chips.bit_length() - 1) // 2
    return Topology(CHIP, shape=(short, chips // short))


def anchored(
    here: Column, anchor: str, seconds: Callable[[Column], float], quantity: str = STEP
) -> Prediction:
    """What a model gives for a column, scaled so that the anchor's column is as measured.

    Args:
      anchor: id of the column; of itself the prediction is the measured value, and marked so.
      seconds: the model, in any unit.
    """
    there = column(anchor)
    if here.id == anchor:
        return Prediction(there.measured[quantity], ANCHOR)
    return Prediction(seconds(here) * there.measured[quantity] / seconds(there), HELD_OUT)
