"""An operator that a device runs, its differences from its node, and the fills of its results.

A fill of the result is computed from the operands' fills. It is the same on every device.
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
    fill_number,
    layout_contents,
)
from shardalg.verify.move import Goal, is_finished
from shardalg.verify.operators.local_rows import LocalOperator, local_signature
from shardalg.verify.report import Decided

RESTATED = frozenset(
    "shape new_sizes sizes reps start_indices limit_indices slice_sizes padding padding_config "
    "lhs_dilation base_dilation feature_group_count batch_group_count "
    "indices_are_sorted unique_indices mode count is_shifted".split()
)
"""Parameters of which a device's operator may have other values than the node's operator.

Rows of RULES are computed from them, so the claims about rows compare them. All others must be
equal.
"""
PROMISES = ("indices_are_sorted", "unique_indices")
"""Parameters that are hints for the operator, which is correct without them."""
COPIES = SAME | {"rev", "slice"}
"""Operators of one operand whose results are elements of that operand."""


O_co = TypeVar("O_co", bound=Operator, covariant=True)


@dataclass(frozen=True)
class CheckedOperator(Generic[O_co]):
    """An operator that a device runs, with the contents of its operands.

    Attributes:
      mesh: the mesh of the program.
      signature: the primitive, the parameters and the global types of the node.
      apply: the instruction.
      operands: the elements that each device holds of each operand, without graph values.
      declared: local types and shardings of the results, and whether each is a graph value
        (`named`).
      finite: whether numbers are assumed to be finite (`Switches.finite_sums`).
      firsts: per operand, the number of the first operand that is the same value. Padding that
        holds "the value of operand k" refers to this number.
    """

    mesh: Mesh
    signature: Signature
    apply: O_co
    operands: tuple[Contents, ...]
    declared: tuple[DeclaredLocal, ...]
    finite: bool = False
    firsts: tuple[int, ...] = ()


Outcome = tuple[tuple[Contents, ...], list[Goal]]
"""Contents of the results, and the claims that they rest on."""
APPLIED: dict[type[Operator], Callable[[Any], Outcome]] = {}
"""Per kind of operator, the function that gives its contents and claims."""
O = TypeVar("O", bound=Operator)


def applies(
    kind: type[O],
) -> Callable[[Callable[[CheckedOperator[O]], Outcome]], Callable[[CheckedOperator[O]], Outcome]]:
    """Register the function that checks a kind of operator.

    The function returns the elements that each device holds of the results, and the claims that
    show this.
    """

    def register(
        claim: Callable[[CheckedOperator[O]], Outcome],
    ) -> Callable[[CheckedOperator[O]], Outcome]:
        APPLIED[kind] = claim
        return claim

    return register


def local_operator_signature(op: CheckedOperator[Apply]) -> Signature:
    """Return the signature of the operator that a device runs: its parameters and local shapes."""
    shapes = (
        *(tuple(d.length for d in contents.dims) for contents in op.operands),
        *(declared.shape for declared in op.declared),
    )
    return local_signature(op.signature, dict(op.apply.params), shapes)


def operands_ready(op: CheckedOperator[Apply]) -> Iterator[Goal]:
    """Yield the claim that the primitive is the node's own and its operands are complete.

    Operands of which the row of RULES has no index map, for example further start values of a
    user's function, must be replicated, too.
    """
    # The claims about rows compare every read of an operand with an index map. Nothing compares the
    # reads of other operands, so only a whole value on every device is certain to be right.
    mapped = {number for rule in rules(op.signature) or () for number in rule.operands}
    is_complete = all(
        not (contents.awaits or contents.viewed) and (number in mapped or is_replicated(contents))
        for number, contents in enumerate(op.operands)
    )
    node_params = dict(op.signature.params)
    # Blocks need other sizes, for example in `slice_sizes`. Any other changed parameter would make
    # another operator of it.
    has_right_params = all(
        n in RESTATED & node_params.keys() and _same_structure(v, node_params[n])
        for n, v in op.apply.params
    )
    is_own = op.apply.primitive == op.signature.primitive and has_right_params
    yield (
        "emitted",
        Decided(f"{op.signature.primitive} runs on complete operands", is_complete and is_own),
    )


def is_replicated(contents: Contents) -> bool:
    """Return whether every device has all of a value, with no change pending."""
    return is_finished(contents) and all(
        (dim.start, dim.length, dim.base) == (Number(), dim.size, 1) and not dim.wanted
        for dim in contents.dims
    )


def replicated_operator(op: CheckedOperator[Apply], claims: list[Goal]) -> Outcome:
    """Return the results of a primitive without a row of RULES, and the claims to prove.

    Nothing is known of such a primitive, so every device must compute all of it: replicated
    operands and results, no sharded loop, and the node's own parameters.

    Args:
      claims: the claims so far, which are returned as well.
    """
    results, own = declared_results(op), dict(op.signature.params)
    whole = not op.apply.loops and all(map(is_replicated, (*op.operands, *results)))
    whole = whole and all(own.get(name) == value for name, value in op.apply.params)
    words = f"every device computes the whole of {op.signature.primitive}"
    return results, [*claims, ("reads", Decided(words, whole))]


def declared_results(op: CheckedOperator) -> tuple[Contents, ...]:
    """Return the results' contents as the program declares them."""
    return tuple(
        layout_contents(declared.sharding, declared.shape, None) for declared in op.declared
    )


def _same_structure(declared: object, own: object) -> bool:
    """Return whether two parameters are tuples nested in the same way, or both no tuples."""
    if not (isinstance(declared, tuple) and isinstance(own, tuple)):
        return isinstance(declared, tuple) == isinstance(own, tuple)
    return len(declared) == len(own) and all(map(_same_structure, declared, own))


def emission_claim(op: CheckedOperator[Apply], emission: Emission) -> Goal:
    """Return the claim that an operator has the right parameters, as far as shapes do not tell.

    The right parameters are those of the node, with the changes of `emission`, which adapt an
    operator to the blocks of a device. A hint (one of `PROMISES`) may be dropped. An operator that
    reads or writes a box at a run-time start must be an `Extract` or an `Insert`, because the JAX
    primitive would clamp the start to the block.
    """
    # Operators that differ in these parameters alone may have equal rows of RULES. The claims about
    # rows would then not find the difference.
    declared, node_params = dict(op.apply.params), dict(op.signature.params)
    wanted_params = node_params | dict(emission.params)
    differences = [
        name
        for name in (*PROMISES, "mode", "is_shifted")
        if declared.get(name, node_params.get(name)) != wanted_params.get(name)
        and not (name in PROMISES and declared.get(name) is False)
    ]
    if emission.boxed:
        differences.append("its starts")
    if _hidden_sizes(op.signature, declared) != _hidden_sizes(op.signature, node_params):
        differences.append("slice_sizes")
    words = f"{op.signature.primitive} has the mode and the promises of the emission"
    return "emitted", Decided(
        f"{words}{', not in ' if differences else ''}{', '.join(differences)}", not differences
    )


def _hidden_sizes(signature: Signature, params: Mapping[str, Plain]) -> list[int]:
    """Return the slice sizes of a gather along the dimensions that its result lacks.

    These sizes are 1, or 0 if the result is empty. A device's gather must have the same ones as the
    node. Sizes of the other dimensions are in the result's shape, where they are compared anyway.
    The list is empty for other operators.

    Args:
      params: the parameters of the device's gather that differ from the node's.
    """
    own: tuple[int, ...] = signature.param("slice_sizes", ())
    if signature.primitive != "gather":
        return []
    # The other slice sizes become dimensions of the result, so the rows compare them.
    shown = numbers(signature).window_of(len(own))
    sizes = cast(tuple[int, ...], params.get("slice_sizes", own))
    return [size for dim, size in enumerate(sizes) if dim not in shown]


def is_refuted(claims: list[Goal]) -> bool:
    """Return whether one of the claims is false without a solver: a failed comparison."""
    return any(isinstance(s, Decided) and not s.holds for _, s in claims)


def has_one_contribution(op: CheckedOperator, rule: Rule) -> bool:
    """Return whether the partial result is of the kind "pick".

    Each element is then on at most one member of the group, and all others have zero bits. A row of
    RULES with the combination "pick" gives such results, and operators that copy elements keep
    them.
    """
    partial = [contents for contents in op.operands if contents.unreduced]
    copies = op.signature.primitive in COPIES and not rule.reduced
    keeps_it = copies and all(contents.combine == PICK for contents in partial)
    return rule.combine == PICK or (bool(partial) and keeps_it)


@dataclass(frozen=True)
class Filling:
    """An operator with its operands' padding, from which its results' padding is computed.

    A fill is a known number in the padding: the content of all places without an element.
    """

    run: LocalOperator
    signature: Signature
    operands: Mapping[int, Contents]

    def with_fills(self, nth: int, declared: Contents) -> Contents:
        """Return `declared` with the numbers that the result's padding is known to hold (fills).

        Place `x` of the result's padding is computed from place `x` of the operands' padding.

        Args:
          nth: the number of the result.
          declared: the contents of the result, without fills.
        """
        # A shifted, reversed or changed operand has its padding at other places than the result.
        plain = moves_none(self.run.rule) and moves_none(self.run.local)
        if not plain or any(
            contents.changes or contents.viewed for contents in self.operands.values()
        ):
            return declared
        pairs = zip(self.run.rule.results[nth], declared.dims, strict=True)
        dims = []
        for index, contents in pairs:
            if not index.loop:
                dims.append(contents)
                continue
            number = self.along(index.loop, contents)
            # Zero is written as the identity of a sum, so that equal fills compare equal.
            dims.append(replace(contents, fill=SUM if number == 0 else number))
        # The loop "" asks for the number that all elements of the result are equal to.
        return replace(declared, dims=tuple(dims), number=self.along("", None))

    def along(self, loop: str, beside: DimensionContents | None) -> FillNumber | None:
        """Return the number in the padding of the result along a loop, or None if it is unknown.

        It is known if the operator computes it from known numbers in the operands' padding.

        Args:
          loop: the loop; "" asks for the number that all elements of the result equal.
          beside: the contents of the result's dimension along the loop. The padding of the operands
            must be at the same places.
        """
        # The global and the local row must read the same operands along the loop. Otherwise padding
        # of an operand does not arrive in the padding of the result.
        along = operands_along(self.run.rule, loop)
        if along is None or along != operands_along(self.run.local, loop):
            return None
        # An operand without the loop contributes the number that all its elements equal.
        numbers = {k: self.operands[k].number for k in along}
        places = [(k, dim) for k, dim in along.items() if dim is not None]
        fills = {(k, dim): self.fill(k, dim, beside) for k, dim in places}
        return number_along(self.signature, along, numbers, fills)

    def fill(self, operand: int, dim: int, beside: DimensionContents | None) -> FillNumber | None:
        """Return the number in the padding of an operand's dimension, or None if it is unknown.

        It is also None if the operand's padding is not at the same places as the result's.

        Args:
          beside: the result's dimension with which the places are compared; None if it has none.
        """
        contents = self.operands[operand].dims[dim]
        if beside is None:
            return None
        # Elements with gaps between them (`base`), or of which the device lacks some (`wanted`),
        # have padding at further places.
        if replace(contents, fill=beside.fill) != beside or contents.base != 1 or contents.wanted:
            return None
        return fill_number(contents.fill, self.signature.operands[operand].dtype)
