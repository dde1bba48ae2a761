"""Which model predicts the columns of which table."""

from __future__ import annotations

from collections.abc import Mapping

from shardalg.paper.evaluation import anchored_columns, pipelined_columns, two_dimensional
from shardalg.paper.evaluation.prediction import Predictor

PREDICTORS: Mapping[int, Predictor] = {
    2: two_dimensional.predict,
    3: two_dimensional.predict,
    4: pipelined_columns.predict,
    **dict.fromkeys(anchored_columns.PLANS, anchored_columns.predict),
}
"""Table number to what predicts its columns; a table that is not here is not modelled yet."""
