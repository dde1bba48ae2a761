"""The 13 columns of Tables 2 and 3, predicted from real plans at the paper's sizes.

The whole train step (embedding, loss, Adafactor, nothing rematerialised) is planned under the
finalized strategy on the column's mesh, on the slice of TPU v3 with as many cores as the mesh has
devices. All layers cost the same, so that plans of two and of three layers give the exact cost of
any number of layers (`models.deeper`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from shardalg.algebra.mesh import Mesh
from shardalg.costs.cost import Cost
from shardalg.costs.hardware import load
from shardalg.costs.topology import Topology
from shardalg.lab.evaluation.prediction import (
    HELD_OUT,
    PEAK,
    STEP,
    TRAINED,
    UTILISATION,
    Prediction,
)
from shardalg.lab.evaluation.published import Column
from shardalg.models.deeper import cost_on
from shardalg.models.dense import DenseTransformer
from shardalg.plan.plan import Plan

CHIP, CORES = "tpu_v3", 2
_LETTERS = {
    "layers": "L", "model_dim": "M", "hidden_dim": "H", "heads": "N", "head_dim": "D",
    "vocab": "V", "seq": "S", "batch": "B",
}  # fmt: skip


def model(column: Column) -> DenseTransformer:
    """Return the Transformer that a column of GSPMD's Tables 2 and 3 measures.

    >>> from shardalg.lab.evaluation.published import column
    >>> model(column("narrow-bench.c1")).parameters
    17310941184
    """
    return DenseTransformer(**{name: column.facts[letter] for name, letter in _LETTERS.items()})


def topology(column: Column) -> Topology:
    """Return the slice that the column ran on: its number of cores, in the vendor's shape.

    >>> from shardalg.lab.evaluation.published import column
    >>> topology(column("narrow-bench.c1"))
    Topology(tpu_v3:4x8)
    """
    return Topology(CHIP, chips=column.facts["devices"] // CORES)


def trained() -> frozenset[str]:
    """Return the ids of the columns that the shipped constants were fitted on."""
    return frozenset(load(CHIP).calibration.provenance.get("rows", ()))


@cache
def plans(column: Column) -> Mapping[int, Plan]:
    """Return plans of the model of a column of the paper's tables, by number of layers.

    Two small numbers of layers suffice, because every layer costs the same.
    """
    return model(column).shallow_plans(Mesh(column.mesh), "finalized")


@cache
def cost(column: Column) -> Cost:
    """Return the predicted cost of the step of a column of GSPMD's Tables 2 and 3.

    The constants of the hardware are the calibrated ones.
    """
    return cost_on(column.facts["L"], plans(column), topology(column))


def predict(column: Column) -> Mapping[str, Prediction]:
    """Return predictions for a column of GSPMD's Tables 2 and 3, by quantity.

    Step time (seconds) and utilisation (per cent) use the shipped constants of TPU v3. Peak memory
    (GB) needs no constant.
    """
    found = cost(column)
    how = TRAINED if column.id in trained() else HELD_OUT
    return {
        PEAK: Prediction(found.peak_memory_bytes / 1e9),
        STEP: Prediction(found.step_time_s, how),
        UTILISATION: Prediction(100 * found.flops_utilization, how),
    }
