"""Tensors side by side: concatenate."""

from __future__ import annotations

from itertools import accumulate

from shardalg.algebra.affine import Index
from shardalg.graph.ir import Signature
from shardalg.ops.families.building import Builder, access, indices, is_number, names
from shardalg.ops.rule import PICK, Rule


def concatenate(signature: Signature) -> tuple[Rule, ...]:
    """`[d0] | [d0-10] -> [d0]`: the operands are alternatives, one of which exists."""
    axis = signature.param("dimension")
    return (_joined(signature, tuple(value.shape[axis] for value in signature.operands)),)


def join_ends(signature: Signature) -> tuple[Rule, ...]:
    """`[d0+7] | [d0-3] -> [d0]`: the end of the first operand, the start of the last one."""
    return (_joined(signature, signature.param("sizes")),)


def _joined(signature: Signature, sizes: tuple[int, ...]) -> Rule:
    """Args: sizes: how much of each operand is taken: of the first one its end."""
    shape, axis = signature.results[0].shape, signature.param("dimension")
    loops = names("d", len(shape))
    skipped = signature.operands[0].shape[axis] - sizes[0]
    starts = (-skipped, *accumulate(sizes[:-1]))
    terms = tuple(
        (access(k, [Index.of(n) - start if d == axis else n for d, n in enumerate(loops)]),)
        for k, start in enumerate(starts)
    )
    every = frozenset(range(len(sizes)) if is_number(signature.results[0].dtype) else ())
    return Rule(
        signature.primitive,
        tuple(zip(loops, shape, strict=True)),
        terms,
        (indices(loops),),
        PICK,
        linear=every,
        addends=every,
        family="terms",
    )


def joined_operands(signature: Signature) -> tuple[int, ...]:
    """Operands that hold elements: of what is joined, an empty one is no part.

    Gradients of a split have such operands where one of its parts is empty.
    """
    every = tuple(range(len(signature.operands)))
    if signature.primitive != "concatenate":
        return every
    axis = signature.param("dimension")
    return tuple(k for k in every if signature.operands[k].shape[axis]) or every[:1]


ROWS: dict[str, Builder] = {"concatenate": concatenate, "join_ends": join_ends}
