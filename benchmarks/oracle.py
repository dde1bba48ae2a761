"""The recorded programs' wire bytes and product flops beside XLA's, as a benchmark's result."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import oracle_bytes
from benchmarks.result import Result, geometric_mean
from tests.oracle import corpus

ABOUT = """Every recorded program: wire bytes and flops of products (matrix products, and all taps
of convolutions) per device and step, ours over XLA's (its GSPMD partitioner; bytes right after
partitioning, an all-reduce of which only a slice is read counted as a reduce-scatter). The `kept`
columns keep a gathered operand from the forward pass for the backward pass, as XLA does; the
default gathers it again and frees it in between. `why` lists the kinds of collectives of which the
two send different bytes, and for which operators: ours, then XLA's."""


def run(say: Callable[[str], None]) -> Result:
    say(f"planning {len(corpus.names())} recorded programs")
    table = oracle_bytes.table(corpus.names())
    counts = {
        "programs": len(table),
        "sending less than XLA": sum(ratio < 1 for ratio in table["bytes_ratio"]),
        "sending more": sum(ratio > 1 for ratio in table["bytes_ratio"]),
    }
    ratios = {
        f"largest {name}": max(table[name])
        for name in ("bytes_ratio", "kept_bytes_ratio", "flops_ratio")
    }
    mean = geometric_mean(r for r in table["bytes_ratio"] if r > 0)
    summary = counts | ratios | {"geometric mean of bytes_ratio": mean}
    return Result("oracle_bytes", ABOUT, table, summary)
