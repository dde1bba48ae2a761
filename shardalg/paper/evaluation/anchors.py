"""One measured column per table stands for what the paper does not state of its steps."""

from __future__ import annotations

from collections.abc import Callable

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
