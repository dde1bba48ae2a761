"""Tensors joined and taken apart: concatenate, split, stack, unstack."""

from __future__ import annotations

from itertools import accumulate

from shardalg.algebra.affine import Index
from shardalg.graph.ir import Signature
from shardalg.ops.families.build import Builder, access, indices, is_number, moved_row, names
from shardalg.ops.rule import PICK, Rule


def concatenate(signature: Signature) -> tuple[Rule, ...]:
    """`[d0] | [d0-10] -> [d0]`: the operands are alternatives, one of which exists."""
    shape, axis = signature.results[0].shape, signature.param("dimension")
    loops = names("d", len(shape))
    sizes = [value.shape[axis] for value in signature.operands]
    starts = accumulate([0, *sizes[:-1]])
    terms = tuple(
        (access(k, [Index.of(n) - start if d == axis else n for d, n in enumerate(loops)]),)
        for k, start in enumerate(starts)
    )
    every = frozenset(range(len(sizes)) if is_number(signature.results[0].dtype) else ())
    return (
        Rule(
            signature.primitive,
            tuple(zip(loops, shape, strict=True)),
            terms,
            (indices(loops),),
            PICK,
            linear=every,
            addends=every,
            family="terms",
        ),
    )


def split(signature: Signature) -> tuple[Rule, ...]:
    """A row per result: `[s0] -> [s0]`, `[s1+10] -> [s1]`."""
    axis, sizes = signature.param("axis"), signature.param("sizes")
    starts = accumulate([0, *sizes[:-1]])
    return tuple(_piece(signature, k, axis=axis, start=start) for k, start in enumerate(starts))


def _piece(signature: Signature, k: int, *, axis: int, start: int) -> Rule:
    shape = signature.results[k].shape
    loops = [f"s{k}" if d == axis else f"d{d}" for d in range(len(shape))]
    dims = [Index.of(n) + start if d == axis else Index.of(n) for d, n in enumerate(loops)]
    return moved_row(signature, loops, dims=dims, family="terms", result=k)


def stack(signature: Signature) -> tuple[Rule, ...]:
    """`[d0], [d0] -> [d0, S] whole [S]`: every device makes all positions of the new dimension."""
    shape, axis = signature.results[0].shape, signature.param("axis")
    write = [("S" if d == axis else f"d{d}") for d in range(len(shape))]
    read = [name for d, name in enumerate(write) if d != axis]
    count = len(signature.operands)
    every = frozenset(range(count) if is_number(signature.results[0].dtype) else ())
    return (
        Rule(
            signature.primitive,
            tuple(zip(write, shape, strict=True)),
            (tuple(access(k, read) for k in range(count)),),
            (indices(write),),
            whole=frozenset({"S"}),
            linear=every,
            addends=every,
        ),
    )


def unstack(signature: Signature) -> tuple[Rule, ...]:
    """A row per result: `[d0, 0] -> [d0]`, `[d0, 1] -> [d0]`."""
    shape, axis = signature.operands[0].shape, signature.param("axis")
    loops = {f"d{d}": n for d, n in enumerate(shape) if d != axis}
    return tuple(
        Rule(
            signature.primitive,
            tuple(loops.items()),
            ((access(0, (k if d == axis else f"d{d}" for d in range(len(shape)))),),),
            (indices(loops),),
            linear=frozenset({0}),
        )
        for k in range(len(signature.results))
    )


ROWS: dict[str, Builder] = {
    "concatenate": concatenate,
    "split": split,
    "stack": stack,
    "unstack": unstack,
}
