"""Demonstrations (complaints about XLA's partitioner, `shardalg explore`) and the paper's results.

>>> import shardalg as sa
>>> sa.examples.COMPLAINTS["rows shuffled"].issue
'jax-ml/jax#20381'

The paper's strategies, its Table 1, weight-update sharding and its measurements:

>>> import shardalg as sa
>>> config = sa.models.Config()
>>> strategy = sa.paper.finalized(sa.Mesh({"X": 2, "Y": 4}), config)
>>> sa.paper.count_annotations(config, strategy)
7
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardalg.lab import complaints, figure_8, weight_update
    from shardalg.lab.complaints import COMPLAINTS
    from shardalg.lab.evaluation import limits, tpu_v3_constants, two_dimensional
    from shardalg.lab.evaluation.comparison import compare
    from shardalg.lab.evaluation.predicted_figure import predicted_against_measured, published_rows
    from shardalg.lab.evaluation.published import column, columns
    from shardalg.lab.evaluation.published_runs import errors_by_chip, run_table
    from shardalg.lab.table1 import costs_of, difference, layer_costs, scaling_curves, table
    from shardalg.lab.table1_strategies import (
        ORDERS,
        attempt_1,
        attempt_2,
        count_annotations,
        finalized,
    )
    from shardalg.lab.weight_update import level_bars, levels

__all__ = [
    "COMPLAINTS",
    "ORDERS",
    "attempt_1",
    "attempt_2",
    "column",
    "columns",
    "compare",
    "complaints",
    "costs_of",
    "count_annotations",
    "difference",
    "errors_by_chip",
    "figure_8",
    "finalized",
    "layer_costs",
    "level_bars",
    "levels",
    "limits",
    "predicted_against_measured",
    "published_rows",
    "run_table",
    "scaling_curves",
    "table",
    "tpu_v3_constants",
    "two_dimensional",
    "weight_update",
]

_HOME = {
    "complaints": "complaints",
    "COMPLAINTS": "complaints",
    "compare": "evaluation.comparison",
    "limits": "evaluation.limits",
    "column": "evaluation.published",
    "columns": "evaluation.published",
    "predicted_against_measured": "evaluation.predicted_figure",
    "published_rows": "evaluation.predicted_figure",
    "errors_by_chip": "evaluation.published_runs",
    "run_table": "evaluation.published_runs",
    "tpu_v3_constants": "evaluation.tpu_v3_constants",
    "two_dimensional": "evaluation.two_dimensional",
    "figure_8": "figure_8",
    "costs_of": "table1",
    "difference": "table1",
    "layer_costs": "table1",
    "scaling_curves": "table1",
    "table": "table1",
    "ORDERS": "table1_strategies",
    "attempt_1": "table1_strategies",
    "attempt_2": "table1_strategies",
    "count_annotations": "table1_strategies",
    "finalized": "table1_strategies",
    "weight_update": "weight_update",
    "level_bars": "weight_update",
    "levels": "weight_update",
}
"""Each public name with the module that defines it."""


def __getattr__(name: str) -> object:
    """Return the public name from its module, which is imported on the first use of the name.

    So the command line can parse its options without importing jax.
    """
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOME[name]}")
    value = module if module.__name__.endswith(f".{name}") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted({*globals(), *__all__})
