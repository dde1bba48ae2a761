"""Models by name: those of Tables 2 to 4 of GSPMD (arXiv:2105.04663) that the paper names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardalg.errors import StrategyError
from shardalg.models.dense import DenseTransformer

WIDE = DenseTransformer(
    layers=32, model_dim=8192, hidden_dim=65536, heads=128, head_dim=256, vocab=32000,
    seq=1024, batch=64,
)  # fmt: skip
NARROW = DenseTransformer(
    layers=64, model_dim=4096, hidden_dim=16384, heads=64, head_dim=128, vocab=32000,
    seq=1024, batch=192,
)  # fmt: skip
MODELS: Mapping[str, DenseTransformer] = {"narrow-16b": NARROW, "wide-64b": WIDE}
SIZES = ("layers", "model_dim", "hidden_dim", "heads", "head_dim", "vocab", "seq", "kv_heads")
"""What may be changed of a named model; together, sizes of another one."""


def model_of(name: str, sizes: Mapping[str, int]) -> DenseTransformer:
    """The model of that name, with other sizes.

    Raises:
      StrategyError: no model of that name, an unknown size, or what `DenseTransformer` raises.

    >>> model_of("narrow-16b", {"layers": 32}).parameters
    8721006592
    """
    if name not in MODELS:
        raise StrategyError(f"model {name!r}: write one of {', '.join(MODELS)}.")
    unknown = [size for size in sizes if size not in SIZES]
    if unknown:
        raise StrategyError(f"size {unknown[0]!r}: write some of {', '.join(SIZES)}.")
    changed: dict[str, Any] = dict(sizes)
    return replace(MODELS[name], **changed)
