"""The row of an operator: loops, an index per tensor dimension, and how results combine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from shardalg.algebra.affine import Index
from shardalg.errors import RuleError

SUM, PRODUCT, MAX, MIN, AND, OR, XOR = "sum", "product", "max", "min", "and", "or", "xor"
PICK, ARGMAX, ARGMIN, LOGSUMEXP, USER = "pick", "argmax", "argmin", "logsumexp", "user"
TOP = "top"
COMBINES = (SUM, PRODUCT, MAX, MIN, AND, OR, XOR, PICK, ARGMAX, ARGMIN, TOP, LOGSUMEXP, USER)
CLIP, DROP = "clip", "drop"


@dataclass(frozen=True)
class Access:
    """A read of one operand, an index per dimension. One outside the tensor voids the iteration."""

    operand: int
    dims: tuple[Index, ...]

    def __str__(self) -> str:
        return dims_text(self.dims)


@dataclass(frozen=True)
class Symbol:
    """A run-time number `operand[dims]` in `[0, high]`; clipped to it, or drops the iteration."""

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

    def __str__(self) -> str:
        return f"{self.loop}=={self.index}"


@dataclass(frozen=True)
class Rule:
    """`result[g(l)] = init (+) combine over {l : reads are inside, guards hold} point(reads)`.

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
      linear: operands in which the result is linear (see `passes`).
      addends: those of `linear` that are added up: they may be partial only all together
        (`add`), while they pass through one factor alone where the others are whole (`mul`).
      scaled: those of `linear` that are multiplied or divided by another operand, or made wider.
      flops: floating-point operations of one iteration of the loops that no guard determines.
      vacant: (operand, way to combine) whose identity stands where a window of the operand has no
        element, if that is not the identity of `combine`: the number that is never selected.
      family: which emission places the local numbers (`graph/ops/local_parameters.py`).
      batched: whether it is a call of its own for each element of a batch, as factorisations are.
      operand_shapes, result_shapes: what "inside" means; empty: every index covers its dimension.

    Raises:
      RuleError: the row contradicts itself.

    >>> i, j, k = map(Index.of, "ijk")
    >>> reads = (Access(0, (i, k)), Access(1, (k, j)))
    >>> print(Rule("dot_general", (("i", 8), ("j", 4), ("k", 2)), (reads,), ((i, j),)))
    dot_general: [i, k], [k, j] -> [i, j] sum [k]
    """

    primitive: str
    loops: tuple[tuple[str, int], ...]
    terms: tuple[tuple[Access, ...], ...]
    results: tuple[tuple[Index, ...], ...]
    combine: str = SUM
    init: complex | Access | None = None
    guards: tuple[Guard, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    whole: frozenset[str] = frozenset()
    local: frozenset[str] = frozenset()
    prefix: tuple[str, bool] | None = None
    linear: frozenset[int] = frozenset()
    addends: frozenset[int] = frozenset()
    scaled: frozenset[int] = frozenset()
    flops: int = 0
    vacant: tuple[tuple[int, str], ...] = ()
    family: str = "same"
    batched: bool = False
    operand_shapes: tuple[tuple[int, ...], ...] = ()
    result_shapes: tuple[tuple[int, ...], ...] = ()
    user: object = field(default=None, compare=False, repr=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        faults = [*self._name_faults(), *self._shape_faults()]
        if faults:
            raise RuleError(f"the row of {self.primitive} contradicts itself: {'; '.join(faults)}.")
        maps = (self.primitive, self.loops, self.terms, self.results, self.combine)
        rest = (self.guards, self.symbols, self.whole, self.local, self.prefix, self.flops)
        shapes = (self.operand_shapes, self.result_shapes)
        object.__setattr__(self, "_hash", hash((maps, rest, shapes)))

    def __hash__(self) -> int:
        return self._hash

    def _name_faults(self) -> Iterator[str]:
        names = [name for name, _ in self.loops]
        known = {*names, *(symbol.name for symbol in self.symbols)}
        used = {v for index in self._every_index() for v in index.variables}
        if len(set(names)) != len(names):
            yield f"loops {names} are not distinct"
        if used - known:
            yield f"indices use {sorted(used - known)}, which are neither loops nor symbols"
        marked = {*self.whole, *self.local, *([self.prefix[0]] if self.prefix else [])}
        if marked - set(names):
            yield f"{sorted(marked - set(names))} are marked but are no loops"
        if any(n < 0 for _, n in self.loops):
            yield f"extents {dict(self.loops)} must not be negative"
        if self.combine not in COMBINES:
            yield f"combine {self.combine!r} is none of {', '.join(COMBINES)}"
        inner = self.addends | self.scaled
        if not inner <= self.linear or not self.linear <= set(self.operands):
            three = map(sorted, (self.linear, self.addends, self.scaled))
            yield "linear {} must hold addends {} and scaled {} and be operands".format(*three)

    def _shape_faults(self) -> Iterator[str]:
        for k, dims in self.operands.items() if self.operand_shapes else ():
            if len(dims) != len(self.operand_shapes[k]):
                yield f"operand {k} of shape {self.operand_shapes[k]} has indices {dims_text(dims)}"
        for shape, dims in zip(self.result_shapes, self.results, strict=False):
            if len(dims) != len(shape):
                yield f"a result of shape {shape} has indices {dims_text(dims)}"

    def _every_index(self) -> Iterator[Index]:
        for term in self.terms:
            yield from (index for access in term for index in access.dims)
        yield from (index for dims in self.results for index in dims)
        yield from self.init.dims if isinstance(self.init, Access) else ()
        yield from (index for symbol in self.symbols for index in symbol.dims)
        yield from (index for guard in self.guards for index in (guard.loop, guard.index))

    @cached_property
    def extents(self) -> dict[str, int]:
        """Loop to extent."""
        return dict(self.loops)

    @cached_property
    def operands(self) -> dict[int, tuple[Index, ...]]:
        """Operand to the indices with which it is read: as data, start value or run-time number."""
        init = [self.init] if isinstance(self.init, Access) else []
        accesses: list[Access | Symbol] = [
            *(a for term in self.terms for a in term),
            *init,
            *self.symbols,
        ]
        return {a.operand: a.dims for a in reversed(accesses)}

    def indices(self, tensor: int) -> tuple[Index, ...]:
        """Index per dimension of operand `tensor`, or of result `~tensor` if that is negative."""
        return self.operands.get(tensor, ()) if tensor >= 0 else self.results[~tensor]

    def nothing(self, operand: int) -> str:
        """The way to combine whose identity is as good as no element of that operand."""
        return dict(self.vacant).get(operand, self.combine)

    def filler(self, operand: int) -> int | None:
        """The operand whose number is as good as no element of `operand`; None: an identity.

        What a pick starts from; of a function of the user the start value of that operand.
        """
        if not isinstance(self.init, Access) or self.init.dims:
            return None
        if self.combine == USER and self.init.operand == len(self.results):
            return self.init.operand + operand
        return self.init.operand if self.combine == PICK else None

    def passes(self, *, finite: bool) -> frozenset[int]:
        """Operands whose partial sums `p_1, ..., p_n` may wait until behind the operator.

        Sums wait where `f(p_1) + ... + f(p_n)` is what `f(p_1 + ... + p_n)` is for every number of
        the type, but for the order of the additions: `f` adds, subtracts, negates, copies or moves
        elements, or multiplies whole numbers of one type (a ring, modulo `2**bits`). A product or
        quotient `c*x` of floats does not: an infinite `c` makes a NaN of a part that is 0, `c > 1`
        overflows on parts whose sum is small, and `c < 1` does not where the sum itself overflows
        (60,000 + 60,000 in float16, times 0.25, is infinite on one device). Nor does a conversion
        to a wider float: a sum that overflows in the narrow type is a number in the wide one. Other
        conversions round parts otherwise than sums. (`c = 1` and `c = -1` copy and negate.)

        Args:
          finite: whether all numbers are known to be finite, and sums and products of parts not to
            overflow (`Switches.finite_sums`): then products and quotients by what is whole, and
            conversions to wider floats, let sums wait.
        """
        return self.linear if finite else self.linear - self.scaled

    def shape(self, tensor: int) -> tuple[int, ...] | None:
        """Shape of that tensor; None in a row that was made without shapes."""
        shapes = self.operand_shapes if tensor >= 0 else self.result_shapes
        return shapes[tensor if tensor >= 0 else ~tensor] if shapes else None

    @cached_property
    def tensors(self) -> tuple[int, ...]:
        """Operands with a map, then the results as -1, -2, ..."""
        return (*sorted(self.operands), *(~r for r in range(len(self.results))))

    @cached_property
    def result_loops(self) -> frozenset[str]:
        """Loops in the index of a result."""
        return frozenset(v for dims in self.results for index in dims for v in index.variables)

    @cached_property
    def operand_loops(self) -> frozenset[str]:
        """Loops in the index of an operand."""
        maps = self.operands.values()
        return frozenset(v for dims in maps for index in dims for v in index.variables)

    @cached_property
    def guarded(self) -> frozenset[str]:
        """Loops that a guard names: selected at run time."""
        pairs = [(guard.loop, guard.index) for guard in self.guards]
        names = [v for pair in pairs for index in pair for v in index.variables]
        return frozenset(v for v in names if v in self.extents)

    @cached_property
    def reduced(self) -> tuple[str, ...]:
        """Loops that are in no result and no block: their iterations are combined."""
        return tuple(
            name
            for name, _ in self.loops
            if name not in self.result_loops and name not in self.whole
        )

    def __str__(self) -> str:
        reads = " | ".join(", ".join(map(str, term)) for term in self.terms)
        line = [f"{self.primitive}: {reads} ->".replace(":  ->", ": ->")]
        line.append(", ".join(map(dims_text, self.results)))
        if self.reduced:
            line.append(f"{self.combine} [{', '.join(self.reduced)}]")
        elif self.init is not None:
            line.append(self.combine)
        if self.prefix:
            line.append(f"prefix {self.combine} {self.prefix[0]}" + " reverse" * self.prefix[1])
        if self.init is not None:
            line.append(f"init {self.init}")
        if self.guards:
            line.append("where " + ", ".join(map(str, self.guards)))
        for word, names in (("whole", self.whole), ("local", self.local)):
            if names:
                line.append(f"{word} [{', '.join(sorted(names))}]")
        return " ".join(line)


def dims_text(dims: tuple[Index, ...]) -> str:
    """Index expressions as `[b, 2*o+r-1]`."""
    return f"[{', '.join(map(str, dims))}]"
