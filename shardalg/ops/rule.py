"""The row of an operator: loops, one index expression per tensor dimension, and how results combine."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from shardalg.algebra.affine import Index

SUM, PRODUCT, MAX, MIN, AND, OR, XOR = "sum", "product", "max", "min", "and", "or", "xor"
PICK, ARGMAX, ARGMIN, LOGSUMEXP, USER = "pick", "argmax", "argmin", "logsumexp", "user"
COMBINES = (SUM, PRODUCT, MAX, MIN, AND, OR, XOR, PICK, ARGMAX, ARGMIN, LOGSUMEXP, USER)


@dataclass(frozen=True)
class Access:
    """A read of one operand: an index per dimension. A read outside the tensor voids the iteration."""

    operand: int
    dims: tuple[Index, ...]


@dataclass(frozen=True)
class Symbol:
    """A run-time number `operand[dims]` in `[0, high]`; out of range it is clipped, or drops the iteration."""

    name: str
    operand: int
    dims: tuple[Index, ...]
    high: int
    mode: str


@dataclass(frozen=True)
class Guard:
    """The iteration exists only where `loop == index` (gather, scatter, dynamic slices)."""

    loop: Index
    index: Index


@dataclass(frozen=True)
class Rule:
    """`result[g(l)] = init (+) combine over {l : every read is inside, every guard holds} point(reads)`.

    Attributes:
      loops: (name, extent), in the order in which they print.
      terms: alternatives ("take the one that exists"); each a tuple of reads.
      results: per result, an index per dimension.
      combine: how iterations with equal result indices join.
      init: a number, or an access that an iteration-free result starts from; None is the identity.
      guards, symbols: the selected loops (gather, scatter, dynamic slices).
      whole: loops delivered to the point as one block (sort, fft): never sharded.
      local: loops iterated on every device and never sharded (taps of a pooling window).
      prefix: (loop, reverse) of a cumulative operator.
      linear: operands in which the result is linear when the others are fixed: partial sums may pass through.
      flops: floating-point operations of one iteration of the loops that no guard determines.
      family: which emission places the local numbers (`ops/emit.py`).
    """

    primitive: str
    loops: tuple[tuple[str, int], ...]
    terms: tuple[tuple[Access, ...], ...]
    results: tuple[tuple[Index, ...], ...]
    combine: str = SUM
    init: int | float | Access | None = None
    guards: tuple[Guard, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    whole: frozenset[str] = frozenset()
    local: frozenset[str] = frozenset()
    prefix: tuple[str, bool] | None = None
    linear: frozenset[int] = frozenset()
    flops: int = 0
    family: str = "same"
    user: object = field(default=None, compare=False, repr=False)

    @cached_property
    def extents(self) -> dict[str, int]:
        """Loop to extent."""
        return dict(self.loops)
