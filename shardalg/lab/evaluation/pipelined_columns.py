"""The 5 columns of Table 4, predicted from real plans of the whole step at the paper's sizes.

The narrow Transformer with its layers pipelined is planned under the paper's layout (stages along
L, data along X, in-layer sharding along Y, weights not sharded along X), each layer recomputed in
the backward pass. Embedding and softmax are data parallel along X and L; the paper does not exclude
X alone, but then the logits would not fit the memory at eight stages. Bubbles and recomputation are
shares of the whole step with embedding, softmax and optimizer, and no constant is fitted for them.
One column gives the factor between the seconds of the data sheet and the measured seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardalg.algebra.mesh import Mesh
from shardalg.costs.pipelines.overheads import overheads
from shardalg.costs.pipelines.schedules import Schedule
from shardalg.lab.evaluation.prediction import (
    ANCHORS,
    BUBBLES,
    PEAK,
    RECOMPUTE,
    STEP,
    Prediction,
    anchored,
    slice_of,
)
from shardalg.lab.evaluation.published import Column
from shardalg.models.published.pipelined import ONCE_A_STEP, TABLE_4, Pipelined
from shardalg.models.transformer import Config
from shardalg.plan.plan import Plan


def pipelined(column: Column) -> Pipelined:
    """Return the pipelined Transformer of a column of GSPMD's Table 4, with its schedule.

    >>> from shardalg.lab.evaluation.published import column
    >>> pipelined(column("narrow-pipe-bench.c4")).schedule
    Schedule(stages=8, microbatches=32, rounds=1)
    """
    facts = column.facts
    config = Config(**{letter: facts[letter] for letter in "BSMHNDVL"})
    return Pipelined(config, Schedule(facts["pipeline_stages"], facts["num_microbatches"]))


def planned(column: Column) -> Plan:
    """Return the plan of the train step of a column of GSPMD's Table 4."""
    return pipelined(column).model.plan(Mesh(column.mesh), TABLE_4, ONCE_A_STEP)


def predict(column: Column) -> Mapping[str, Prediction]:
    """Return predictions for a column of GSPMD's Table 4, by quantity.

    Bubbles and recomputation are in per cent of the step, peak memory in GB, step time in seconds.
    """
    plan, on = planned(column), slice_of(column.facts["devices"])
    spent = overheads(plan.program, plan.graph, on)
    return {
        BUBBLES: Prediction(100 * spent.bubbles),
        RECOMPUTE: Prediction(100 * spent.recompute),
        PEAK: Prediction(int(plan.cost(on).peak_memory_bytes) / 1e9),
        STEP: anchored(column, ANCHORS[4], _seconds),
    }


def _seconds(column: Column) -> float:
    """Return the unscaled predicted seconds of the train step of a column of GSPMD's Table 4.

    `anchored` scales them to the measured seconds of one column, the anchor.
    """
    return float(planned(column).cost(slice_of(column.facts["devices"])).step_time_s)
