"""The row of an operator: loops, an index per tensor dimension, and how iterations combine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
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
    """The indices at which each iteration of the loops reads one operand.

    An iteration that reads outside the tensor does not exist.
    """

    operand: int
    dims: tuple[Index, ...]

    def __str__(self) -> str:
        return dims_text(self.dims)


@dataclass(frozen=True)
class Symbol:
    """An index that is read at run time, as in a gather: `name = operand[dims]`.

    Attributes:
      name: the variable in index expressions, such as `$t0`.
      operand, dims: the operand that contains the number, and its indices there.
      high: the largest valid number; the smallest one is 0.
      mode: CLIP moves other numbers into the range; DROP skips their iterations.
    """

    name: str
    operand: int
    dims: tuple[Index, ...]
    high: int
    mode: str


@dataclass(frozen=True)
class Guard:
    """Condition of an iteration of the loops: it exists only if `loop == index`.

    Gathers, scatters and dynamic slices have guards, such as `k0 == $t0` for a run-time index.
    """

    loop: Index
    index: Index

    def __str__(self) -> str:
        return f"{self.loop}=={self.index}"


@dataclass(frozen=True)
class Rule:
    """Row of an operator: loops, one index per tensor dimension, and how iterations combine.

    For loops l, the operator computes
        result[g(l)] = init (+) combine over {l : reads are inside, guards hold} point(reads)

    Attributes:
      primitive: the name of the JAX primitive.
      loops: (name, extent), in the order in which they are printed.
      terms: alternative tuples of reads. In each iteration, the one inside its tensors counts.
      results: per result, an index per dimension.
      combine: the operation that combines iterations with equal result indices.
      init: a number or an access: the start value of each result element. None is the identity.
      guards, symbols: conditions of iterations, and the run-time numbers in them (gather, scatter,
        dynamic slices).
      whole: loops that the operator needs as one block (sort, fft): never sharded.
      local: loops iterated on every device and never sharded (taps of a pooling window).
      prefix: (loop, reverse) of a cumulative operator.
      linear: operands in which the result is linear (see `passes`).
      addends: the `linear` operands that are added. Either all of them are partial sums or none
        (`add`). Of factors (`mul`), a single one may be partial while the others are complete.
      scaled: the `linear` operands that are multiplied, divided, or converted to a wider type.
      flops: floating-point operations of one iteration of the loops that no guard determines.
      vacant: (operand, combine) if a window position without an element of the operand counts as
        the identity of another operation than `combine`: a number that is never selected.
      family: the key of the function that writes block sizes (`graph/ops/local_parameters.py`).
      load: the load factor of the devices along the loop of a guard, of which the price depends
        (`costs/kernels/expert_load.py`). None: all iterations may meet the groups of one device.
      batched: whether each batch element is a call of its own, as in factorisations.
      operand_shapes, result_shapes: shapes that indices must be inside of. If empty, every index
        covers its dimension.

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
    load: Fraction | None = None
    batched: bool = False
    operand_shapes: tuple[tuple[int, ...], ...] = ()
    result_shapes: tuple[tuple[int, ...], ...] = ()
    user: object = field(default=None, compare=False, repr=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise RuleError if the row contradicts itself; compute the hash once."""
        faults = [*self._name_faults(), *self._shape_faults()]
        if faults:
            raise RuleError(f"the row of {self.primitive} contradicts itself: {'; '.join(faults)}.")
        # Rows are keys of many caches, so the hash of the nested maps is computed only once.
        maps = (self.primitive, self.loops, self.terms, self.results, self.combine)
        rest = (self.guards, self.symbols, self.whole, self.local, self.prefix, self.flops)
        shapes = (self.operand_shapes, self.result_shapes)
        object.__setattr__(self, "_hash", hash((maps, rest, shapes)))

    def __hash__(self) -> int:
        return self._hash

    def _name_faults(self) -> Iterator[str]:
        """Yield a message for each unknown or repeated name of a loop, symbol or operation."""
        names = [name for name, _ in self.loops]
        valid_names = {*names, *(symbol.name for symbol in self.symbols)}
        used_names = {v for index in self._every_index() for v in index.variables}
        if len(set(names)) != len(names):
            yield f"loops {names} are not distinct"
        if used_names - valid_names:
            unknown = sorted(used_names - valid_names)
            yield f"indices use {unknown}, which are neither loops nor symbols"
        marked_loops = {*self.whole, *self.local, *([self.prefix[0]] if self.prefix else [])}
        if marked_loops - set(names):
            yield f"{sorted(marked_loops - set(names))} are marked but are no loops"
        if any(n < 0 for _, n in self.loops):
            yield f"extents {dict(self.loops)} must not be negative"
        if self.combine not in COMBINES:
            yield f"combine {self.combine!r} is none of {', '.join(COMBINES)}"
        linear_parts = self.addends | self.scaled
        if not linear_parts <= self.linear or not self.linear <= set(self.operands):
            operand_sets = map(sorted, (self.linear, self.addends, self.scaled))
            yield "linear {} must hold addends {} and scaled {} and be operands".format(
                *operand_sets
            )

    def _shape_faults(self) -> Iterator[str]:
        """Yield a message for each tensor whose number of indices is not its rank."""
        # A row without shapes is a pattern: nothing can be compared.
        for k, dims in self.operands.items() if self.operand_shapes else ():
            if len(dims) != len(self.operand_shapes[k]):
                yield f"operand {k} of shape {self.operand_shapes[k]} has indices {dims_text(dims)}"
        for shape, dims in zip(self.result_shapes, self.results, strict=False):
            if len(dims) != len(shape):
                yield f"a result of shape {shape} has indices {dims_text(dims)}"

    def _every_index(self) -> Iterator[Index]:
        """Yield all index expressions of the row: of reads, results, start values and guards."""
        for term in self.terms:
            yield from (index for access in term for index in access.dims)
        yield from (index for dims in self.results for index in dims)
        yield from self.init.dims if isinstance(self.init, Access) else ()
        yield from (index for symbol in self.symbols for index in symbol.dims)
        yield from (index for guard in self.guards for index in (guard.loop, guard.index))

    @cached_property
    def extents(self) -> dict[str, int]:
        """Number of iterations of each loop, by the loop's name."""
        return dict(self.loops)

    @cached_property
    def operands(self) -> dict[int, tuple[Index, ...]]:
        """For each operand that is read, the index of each of its dimensions.

        An operand is read as data, as a start value, or as a run-time number of a guard. If it is
        read in several ways, the first of these decides.
        """
        # A number as the start value is no operand.
        init = [self.init] if isinstance(self.init, Access) else []
        # Of equal keys a dict keeps the last one, so the list is reversed below.
        accesses: list[Access | Symbol] = [
            *(a for term in self.terms for a in term),
            *init,
            *self.symbols,
        ]
        return {a.operand: a.dims for a in reversed(accesses)}

    def indices(self, tensor: int) -> tuple[Index, ...]:
        """Return an index per dimension of operand `tensor`, or of result `~tensor` if negative."""
        return self.operands.get(tensor, ()) if tensor >= 0 else self.results[~tensor]

    def nothing(self, operand: int) -> str:
        """Return the operation, such as "sum", whose identity may replace missing elements.

        Elements of `operand` are missing in the padding of blocks and outside of the tensor.
        The result is then the same as without these elements.
        """
        return dict(self.vacant).get(operand, self.combine)

    def filler(self, operand: int) -> int | None:
        """Return the scalar operand that replaces missing elements of `operand`, or None.

        This is the start value of a row that picks one element, and the start value that belongs to
        `operand` in a reduction by a user's function. For other rows the result is None: missing
        elements become the identity of the row's combination (`nothing`).
        """
        if not isinstance(self.init, Access) or self.init.dims:
            return None
        # A user's reduction reads n arrays and then n start values; `init` is the first of these.
        if self.combine == USER and self.init.operand == len(self.results):
            return self.init.operand + operand
        return self.init.operand if self.combine == PICK else None

    def passes(self, *, finite: bool) -> frozenset[int]:
        """Return the operands whose partial sums `p_1, ..., p_n` may be reduced after the operator.

        The condition is `f(p_1) + ... + f(p_n) == f(p_1 + ... + p_n)` for all numbers of the type,
        up to the order of additions. It holds if `f` adds, subtracts, negates, copies or moves
        elements. It also holds if `f` multiplies integers of one type (a ring, modulo `2**bits`).

        It fails for a product or quotient `c*x` of floats, unless `c` is 1 or -1:
        - an infinite `c` gives NaN for a part that is 0;
        - `c > 1` overflows on parts whose sum is small;
        - `c < 1` hides an overflow of the sum (in float16, 60,000 + 60,000 is infinite on one
          device, also after multiplication by 0.25).
        It fails for a conversion to a wider float: a sum that overflows in the narrow type is a
        finite number in the wide type. Other conversions round parts differently from sums.

        Args:
          finite: whether all numbers are finite and sums and products of parts do not overflow
            (the option `finite_sums` of `Switches`). Then products and quotients by complete
            values, and conversions to wider floats, are allowed too.
        """
        return self.linear if finite else self.linear - self.scaled

    def shape(self, tensor: int) -> tuple[int, ...] | None:
        """Return the shape of operand `tensor`, or of result `~tensor` if negative.

        None if the row has no shapes.
        """
        shapes = self.operand_shapes if tensor >= 0 else self.result_shapes
        return shapes[tensor if tensor >= 0 else ~tensor] if shapes else None

    @cached_property
    def tensors(self) -> tuple[int, ...]:
        """Numbers of all tensors: the operands that are read, then -1, -2, ... for the results.

        Other functions take such a number as `tensor`.
        """
        return (*sorted(self.operands), *(~r for r in range(len(self.results))))

    @cached_property
    def result_loops(self) -> frozenset[str]:
        """Names of the loops that occur in the indices of results."""
        return frozenset(v for dims in self.results for index in dims for v in index.variables)

    @cached_property
    def operand_loops(self) -> frozenset[str]:
        """Names of the loops that occur in the indices of operands."""
        maps = self.operands.values()
        return frozenset(v for dims in maps for index in dims for v in index.variables)

    @cached_property
    def guarded(self) -> frozenset[str]:
        """Names of the loops that occur in a guard: run-time numbers select their iterations."""
        pairs = [(guard.loop, guard.index) for guard in self.guards]
        names = [v for pair in pairs for index in pair for v in index.variables]
        return frozenset(v for v in names if v in self.extents)

    @cached_property
    def reduced(self) -> tuple[str, ...]:
        """Loops that are in no result and not whole: their iterations are combined."""
        return tuple(
            name
            for name, _ in self.loops
            if name not in self.result_loops and name not in self.whole
        )

    def __str__(self) -> str:
        """Return the row as text: what is read, the results, and the loops with restrictions."""
        reads = " | ".join(", ".join(map(str, term)) for term in self.terms)
        # An operator without operands, such as an iota, reads nothing.
        parts = [f"{self.primitive}: {reads} ->".replace(":  ->", ": ->")]
        parts.append(", ".join(map(dims_text, self.results)))
        # A combination is shown with its loops; without loops, it joins the start value and one
        # element.
        if self.reduced:
            parts.append(f"{self.combine} [{', '.join(self.reduced)}]")
        elif self.init is not None:
            parts.append(self.combine)
        if self.prefix:
            parts.append(f"prefix {self.combine} {self.prefix[0]}" + " reverse" * self.prefix[1])
        if self.init is not None:
            parts.append(f"init {self.init}")
        if self.guards:
            parts.append("where " + ", ".join(map(str, self.guards)))
        for word, names in (("whole", self.whole), ("local", self.local)):
            if names:
                parts.append(f"{word} [{', '.join(sorted(names))}]")
        return " ".join(parts)


def dims_text(dims: tuple[Index, ...]) -> str:
    """Return index expressions as text, such as `[b, 2*o+r-1]`."""
    return f"[{', '.join(map(str, dims))}]"
