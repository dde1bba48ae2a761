"""The 13 columns of Tables 2 and 3, predicted from real plans at the paper's sizes.

The whole train step (embedding, loss, Adafactor, nothing rematerialised) is planned under the
finalized strategy on the column's mesh. Every layer costs the same, so that plans of one and of two
layers give all of them, exactly (`tests/paper/test_memory_columns.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from shardalg.algebra.mesh import Mesh
from shardalg.models.training import part
from shardalg.models.transformer import Config
from shardalg.paper import table1_strategies as table1
from shardalg.paper.goals import PEAK
from shardalg.paper.prediction import Prediction
from shardalg.paper.published import Column
from shardalg.plan.plan import plan


def config(column: Column, layers: int | None = None) -> Config:
    """The model of a column, or a shallower one.

    >>> from shardalg.paper.published import column
    >>> config(column("narrow-bench.c1"), 2)
    Config(B=48, S=1024, M=4096, H=16384, N=64, D=128, V=32000, L=2, ...)
    """
    sizes = {letter: column.facts[letter] for letter in "BSMHNDVL"}
    return Config(**{**sizes, "L": layers or sizes["L"]})


def predict(column: Column) -> Mapping[str, Prediction]:
    """Peak memory of a column, in the paper's GB."""
    first, second = (_peak_bytes(column, layers) for layers in (1, 2))
    peak = first + (column.facts["L"] - 1) * (second - first)
    return {PEAK: Prediction(peak / 1e9)}


def _peak_bytes(column: Column, layers: int) -> int:
    chosen, mesh, step = config(column, layers), Mesh(column.mesh), part("train_step")
    planned = plan(
        step.function(chosen),
        *step.arguments(chosen),
        strategy=table1.finalized(mesh, chosen),
        roles=step.roles(),
        donate_argnums=step.donate_argnums(),
    )
    return int(planned.cost("tpu_v3").peak_memory_bytes)
