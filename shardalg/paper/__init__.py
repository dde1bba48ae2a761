"""What reproduces the paper: its strategies, its Table 1, weight-update sharding, its measurements.

>>> import shardalg as sa
>>> config = sa.models.Config()
>>> strategy = sa.paper.finalized(sa.Mesh({"X": 2, "Y": 4}), config)
>>> sa.paper.count_annotations(config, strategy)
7
"""

from shardalg.paper import figure_8, weight_update
from shardalg.paper.evaluation import limits, tpu_v3_constants, two_dimensional
from shardalg.paper.evaluation.comparison import compare
from shardalg.paper.evaluation.published import column, columns
from shardalg.paper.sweeps import scaling_curves
from shardalg.paper.table1 import costs_of, layer_costs
from shardalg.paper.table1_costs import difference, table
from shardalg.paper.table1_strategies import (
    ORDERS,
    attempt_1,
    attempt_2,
    count_annotations,
    finalized,
)
from shardalg.paper.weight_update_tables import level_bars, levels

__all__ = [
    "ORDERS",
    "attempt_1",
    "attempt_2",
    "column",
    "columns",
    "compare",
    "costs_of",
    "count_annotations",
    "difference",
    "figure_8",
    "finalized",
    "layer_costs",
    "level_bars",
    "levels",
    "limits",
    "scaling_curves",
    "table",
    "tpu_v3_constants",
    "two_dimensional",
    "weight_update",
]
