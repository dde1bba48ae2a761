"""What shows off: complaints about XLA's partitioner as small functions, and `shardalg explore`.

>>> import shardalg as sa
>>> sa.examples.COMPLAINTS["rows shuffled"].issue
'jax-ml/jax#20381'

What reproduces the paper: its strategies, its Table 1, weight-update sharding, its measurements.

>>> import shardalg as sa
>>> config = sa.models.Config()
>>> strategy = sa.paper.finalized(sa.Mesh({"X": 2, "Y": 4}), config)
>>> sa.paper.count_annotations(config, strategy)
7
"""

from shardalg.lab import complaints, figure_8, weight_update
from shardalg.lab.complaints import COMPLAINTS
from shardalg.lab.evaluation import limits, tpu_v3_constants, two_dimensional
from shardalg.lab.evaluation.comparison import compare
from shardalg.lab.evaluation.published import column, columns
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
