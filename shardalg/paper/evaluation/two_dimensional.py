"""The 13 columns of Tables 2 and 3, predicted from real plans at the paper's sizes.

The whole train step (embedding, loss, Adafactor, nothing rematerialised) is planned under the
finalized strategy on the column's mesh, laid on the slice of TPU v3 that has so many cores. Every
layer costs the same, so that plans of one and of two layers give all of them, exactly
(`tests/paper/test_memory_columns.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from shardalg.costs.cost import Cost
from shardalg.costs.topology import Topology
from shardalg.models.dense import DenseTransformer
from shardalg.paper.evaluation.goals import PEAK
from shardalg.paper.evaluation.prediction import Prediction
from shardalg.paper.evaluation.published import Column
from shardalg.plan.plan import Plan

CHIP, CORES = "tpu_v3", 2
_LETTERS = {
    "layers": "L", "model_dim": "M", "hidden_dim": "H", "heads": "N", "head_dim": "D",
    "vocab": "V", "seq": "S", "batch": "B",
}  # fmt: skip


def model(column: Column) -> DenseTransformer:
    """The Transformer of a column.

    >>> from shardalg.paper.evaluation.published import column
    >>> model(column("narrow-bench.c1")).parameters
    17310941184
    """
    return DenseTransformer(**{name: column.facts[letter] for name, letter in _LETTERS.items()})


def topology(column: Column) -> Topology:
    """The slice that the column ran on: that of as many cores, in the vendor's shape.

    >>> from shardalg.paper.evaluation.published import column
    >>> topology(column("narrow-bench.c1"))
    Topology(tpu_v3:4x8)
    """
    return Topology(CHIP, chips=column.facts["devices"] // CORES)


@cache
def planned(column: Column, layers: int) -> Plan:
    """The plan of the same model with fewer layers."""
    shallower = replace(model(column), layers=layers)
    return shallower.plan(column.mesh, strategy="finalized")


@cache
def shallow(column: Column, layers: int) -> Cost:
    """The price of that plan on the column's slice."""
    return planned(column, layers).cost(topology(column))


def predict(column: Column) -> Mapping[str, Prediction]:
    """Peak memory of a column, in the paper's GB."""
    first, second = (shallow(column, layers).peak_memory_bytes for layers in (1, 2))
    peak = first + (column.facts["L"] - 1) * (second - first)
    return {PEAK: Prediction(peak / 1e9)}
