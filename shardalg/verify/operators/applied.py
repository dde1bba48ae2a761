"""An operator that a device runs, and what it states otherwise than the node that it is of.

What operators make of padding that is filled: numbers of numbers, on every device alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

from shardalg.algebra.mesh import Mesh
from shardalg.graph.ir import Plain, Signature
from shardalg.graph.ops.families.indexing import numbers
from shardalg.graph.ops.families.pointwise import SAME
from shardalg.graph.ops.families.pointwise import Number as FillNumber
from shardalg.graph.ops.local_parameters import Emission
from shardalg.graph.ops.loops import moves_none, number_along, operands_along
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import PICK, SUM, Rule
from shardalg.merge.proofs.integers import Number
from shardalg.spmd.instruction import Operator
from shardalg.spmd.instructions import Apply
from shardalg.verify.contents import (
    Contents,
    DeclaredLocal,
    DimensionContents,
    Fill,
    fill_number,
    laid_out,
)
from shardalg.verify.move import Stated, finished
from shardalg.verify.operators.local_rows import LocalOperator, local_signature
from shardalg.verify.report import Decided

# What a device may say otherwise than the node: the rows read these, so the claims compare them.
RESTATED = frozenset(
    "shape new_sizes sizes reps start_indices limit_indices slice_sizes padding padding_config "
    "lhs_dilation base_dilation feature_group_count batch_group_count "
    "indices_are_sorted unique_indices mode".split()
)
PROMISES = ("indices_are_sorted", "unique_indices")
"""What an operator may rely on; it is right without."""
COPIES = SAME | {"rev", "slice"}
"""Operators of one operand whose results are elements of it."""


O_co = TypeVar("O_co", bound=Operator, covariant=True)


@dataclass(frozen=True)
class Applied(Generic[O_co]):
    """An operator that a device runs.

    Attributes:
      signature: of the global operator.
      operands: what they hold, without their values.
      made: local types and layouts of the results; named says which are graph values by then.
      finite: whether numbers are taken to be finite (`Switches.finite_sums`).
      firsts: per operand the first one that is the same value; padding is named for that.
    """

    mesh: Mesh
    signature: Signature
    apply: O_co
    operands: tuple[Contents, ...]
    made: tuple[DeclaredLocal, ...]
    finite: bool = False
    firsts: tuple[int, ...] = ()


Outcome = tuple[tuple[Contents, ...], list[Stated]]
"""What the results hold, and the claims on which that rests."""
APPLIED: dict[type[Operator], Callable[[Any], Outcome]] = {}
"""Per kind of operator what is claimed of it."""
O = TypeVar("O", bound=Operator)


def applies(
    kind: type[O],
) -> Callable[[Callable[[Applied[O]], Outcome]], Callable[[Applied[O]], Outcome]]:
    """Register what is claimed of a kind of operator."""

    def register(claim: Callable[[Applied[O]], Outcome]) -> Callable[[Applied[O]], Outcome]:
        APPLIED[kind] = claim
        return claim

    return register


def on_blocks(what: Applied[Apply]) -> Signature:
    """The operator on local shapes."""
    shapes = (
        *(tuple(d.length for d in held.dims) for held in what.operands),
        *(made.shape for made in what.made),
    )
    return local_signature(what.signature, dict(what.apply.params), shapes)


def ready(what: Applied[Apply]) -> Iterator[Stated]:
    """The primitive is the node's own, and nothing is left to be done to its operands.

    Those that no row maps, as further starts of a user's function, are there as they are.
    """
    mapped = {number for rule in rules(what.signature) or () for number in rule.operands}
    bare = all(
        not (held.awaits or held.viewed) and (number in mapped or is_all(held))
        for number, held in enumerate(what.operands)
    )
    own = dict(what.signature.params)
    restated = all(n in RESTATED & own.keys() and _is_like(v, own[n]) for n, v in what.apply.params)
    same = what.apply.primitive == what.signature.primitive and restated
    yield (
        "emitted",
        Decided(f"{what.signature.primitive} runs on finished operands", bare and same),
    )


def is_all(held: Contents) -> bool:
    """Whether every device has all of a value, with nothing left to be done to it."""
    return finished(held) and all(
        (dim.start, dim.length, dim.base) == (Number(), dim.size, 1) and not dim.wanted
        for dim in held.dims
    )


def by_everyone(what: Applied[Apply], stated: list[Stated]) -> Outcome:
    """A primitive without a row: every device computes the whole of it from whole operands.

    Without a row nothing is known of what a parameter does: each is as in the node.
    """
    results, own = as_said(what), dict(what.signature.params)
    whole = not what.apply.loops and all(map(is_all, (*what.operands, *results)))
    whole = whole and all(own.get(name) == value for name, value in what.apply.params)
    words = f"every device computes the whole of {what.signature.primitive}"
    return results, [*stated, ("reads", Decided(words, whole))]


def as_said(what: Applied) -> tuple[Contents, ...]:
    """The results as the program declares them."""
    return tuple(laid_out(made.sharding, made.shape, None) for made in what.made)


def _is_like(said: object, own: object) -> bool:
    """Whether tuples have as many members, and these theirs: else it says something else."""
    if not (isinstance(said, tuple) and isinstance(own, tuple)):
        return isinstance(said, tuple) == isinstance(own, tuple)
    return len(said) == len(own) and all(map(_is_like, said, own))


def semantics(what: Applied[Apply], emission: Emission) -> Stated:
    """What a device says and no size shows is what the emission says; a promise may be dropped.

    A box in what is cut is an instruction of its own: the operator clamps starts to the block.
    """
    said, own = dict(what.apply.params), dict(what.signature.params)
    wanted = own | dict(emission.params)
    other = [
        name
        for name in (*PROMISES, "mode")
        if said.get(name, own.get(name)) != wanted.get(name)
        and not (name in PROMISES and said.get(name) is False)
    ]
    other += ["what it starts at"] * emission.boxed
    other += ["slice_sizes"] * (_unshown(what.signature, said) != _unshown(what.signature, own))
    words = f"{what.signature.primitive} misses and promises as the emission says"
    return "emitted", Decided(f"{words}{', not in ' if other else ''}{', '.join(other)}", not other)


def _unshown(signature: Signature, params: Mapping[str, Plain]) -> list[int]:
    """Sizes of what a gather selects that its result does not show: in batches none may be 0."""
    own: tuple[int, ...] = signature.param("slice_sizes", ())
    if signature.primitive != "gather":
        return []
    shown = numbers(signature).window_of(len(own))
    sizes = cast(tuple[int, ...], params.get("slice_sizes", own))
    return [size for dim, size in enumerate(sizes) if dim not in shown]


def is_refuted(stated: list[Stated]) -> bool:
    """Whether what is decided without a solver does not hold."""
    return any(isinstance(s, Decided) and not s.holds for _, s in stated)


def is_alone(what: Applied, rule: Rule) -> bool:
    """Whether of what is partial one member at most has an element, and the others zero bits.

    A row that picks makes such; whatever copies elements hands it on.
    """
    partial = [held for held in what.operands if held.unreduced]
    copies = what.signature.primitive in COPIES and not rule.reduced
    handed_on = copies and all(held.combine == PICK for held in partial)
    return rule.combine == PICK or (bool(partial) and handed_on)


@dataclass(frozen=True)
class Filling:
    """An operator whose operands may be filled beyond their elements."""

    run: LocalOperator
    signature: Signature
    operands: Mapping[int, Contents]

    def made(self, nth: int, said: Contents) -> Contents:
        """A result with what stands beyond its elements.

        Place `x` of it is made of place `x` of the operands, which hold no element either.
        """
        plain = moves_none(self.run.rule) and moves_none(self.run.local)
        if not plain or any(held.changes or held.viewed for held in self.operands.values()):
            return said
        pairs = zip(self.run.rule.results[nth], said.dims, strict=True)
        dims = tuple(
            replace(held, fill=_named(self.along(index.loop, held))) if index.loop else held
            for index, held in pairs
        )
        return replace(said, dims=dims, number=self.along("", None))

    def along(self, loop: str, beside: DimensionContents | None) -> FillNumber | None:
        """The number beyond the elements of a loop; with no loop the one that all elements are."""
        along = operands_along(self.run.rule, loop)
        if along is None or along != operands_along(self.run.local, loop):
            return None
        numbers = {k: self.operands[k].number for k in along}
        places = [(k, dim) for k, dim in along.items() if dim is not None]
        fills = {(k, dim): self.fill(k, dim, beside) for k, dim in places}
        return number_along(self.signature, along, numbers, fills)

    def fill(self, operand: int, dim: int, beside: DimensionContents | None) -> FillNumber | None:
        """What stands where an operand has no element, if it lies as the result does."""
        held = self.operands[operand].dims[dim]
        if beside is None:
            return None
        if replace(held, fill=beside.fill) != beside or held.base != 1 or held.wanted:
            return None
        return fill_number(held.fill, self.signature.operands[operand].dtype)


def _named(number: FillNumber | None) -> Fill:
    """Zero by its name."""
    return SUM if number is not None and number == 0 else number
