"""The column of the paper that the report prices: its table, its model and its measurements."""

from __future__ import annotations

from shardalg.models.transformer import Config
from shardalg.paper.evaluation.published import PARAMETER_UNIT, column

COLUMN = column("dense-bench.c1")
PLACE = f"Table {COLUMN.table}, first column"
NAME = f"{COLUMN.facts['param_count']} model"
# Under the strategy `finalized`; the paper prints shares in per cent.
MEASURED = {
    "peak_memory_gb": COLUMN.measured["peak_memory_GB"],
    "step_time_s": COLUMN.measured["step_time_s"],
    "flops_utilization": round(COLUMN.measured["flops_util_pct"] / 100, 4),
}


def parameters_text(config: Config) -> str:
    """Return the number of parameters, with the reason why the paper gives a smaller number.

    >>> from shardalg.models.transformer import WIDE_64B
    >>> print(parameters_text(WIDE_64B))
    68.98 billion parameters: 68.72 billion in the layers, which the paper calls 64B because its
    billion is 2**30, and 0.26 billion in the embedding
    """
    counts = config.parameter_counts()
    layers = sum(counts.values()) - counts["embedding"]
    rest = counts["embedding"]
    whole, inside, outside = (number / 1e9 for number in (layers + rest, layers, rest))
    return (
        f"{whole:.2f} billion parameters: {inside:.2f} billion in the layers, which the paper "
        f"calls {layers / PARAMETER_UNIT:g}B because its\nbillion is 2**30, and {outside:.2f} "
        "billion in the embedding"
    )
