"""The recorded programs' wire bytes and product flops beside XLA's, as a benchmark's result."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import oracle_bytes
from benchmarks.result import Result, geometric_mean

ABOUT = """Every recorded program of the topics einsum, ffn, attention and stack: wire bytes and
flops of matrix products per device and step, ours over XLA's (its GSPMD partitioner; bytes right
after partitioning, an all-reduce of which only a slice is read counted as a reduce-scatter). The
`kept` columns keep a gathered operand from the forward pass for the backward pass, as XLA does;
the default gathers it again and frees it in between."""


def run(say: Callable[[str], None]) -> Result:
    say(f"planning {len(oracle_bytes.NAMES)} recorded programs")
    table = oracle_bytes.table()
    ratios = {
        f"largest {name}": max(table[name])
        for name in ("bytes_ratio", "kept_bytes_ratio", "flops_ratio")
    }
    mean = geometric_mean(r for r in table["bytes_ratio"] if r > 0)
    return Result("oracle_bytes", ABOUT, table, ratios | {"geometric mean of bytes_ratio": mean})
