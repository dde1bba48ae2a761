"""Simulate instructions that make dimensions longer or shorter, or regroup them."""

from __future__ import annotations

from math import prod

import numpy as np

from shardalg.errors import ProgramError
from shardalg.spmd.host.blocks import Stack
from shardalg.spmd.host.run import map_blocks, on_blocks
from shardalg.spmd.identity import identity
from shardalg.spmd.instructions import Concatenate, Dilate, Regroup, Resize


@on_blocks(Regroup)
def _regroup(a: Regroup, x: Stack) -> Stack:
    """Reshape each block to the local shape that its dimensions have after they are regrouped."""

    def reshape(_: int, block: np.ndarray) -> np.ndarray:
        """Return one device's block in its new shape."""
        shape = a.shape(block.shape)
        # The groups must name every dimension and keep the number of elements.
        if prod(shape) != block.size or sum(n for n, _ in a.groups) != block.ndim:
            raise ProgramError(f"blocks of {block.shape} are no {shape}. Name every dimension.")
        return block.reshape(shape)

    return map_blocks(reshape, x)


@on_blocks(Concatenate)
def _concatenate(a: Concatenate, *stacks: Stack) -> Stack:
    return map_blocks(lambda _, *blocks: np.concatenate(blocks, a.dim), *stacks)


@on_blocks(Resize)
def _resize(a: Resize, x: Stack) -> Stack:
    """Pad a dimension of each block with zeros at its end, or cut it, to `a.size` elements."""

    def fit(_: int, block: np.ndarray) -> np.ndarray:
        # Pad to at least the size, then cut: one expression for both directions.
        grow = [(0, max(a.size - n, 0) if i == a.dim else 0) for i, n in enumerate(block.shape)]
        return np.pad(block, grow).take(range(a.size), a.dim)

    return map_blocks(fit, x)


@on_blocks(Dilate)
def _dilate(a: Dilate, x: Stack, *fill: Stack) -> Stack:
    """Put filled places between the elements of a dimension, and at both of its ends."""

    def spread(_: int, block: np.ndarray, *given: np.ndarray) -> np.ndarray:
        """Return one device's block after the padding, with the fill around and between elements.

        For example, [1, 2] with 1 place before, 1 place between (factor 2) and none behind becomes
        [fill, 1, fill, 2].

        Args:
          given: the array with the fill, if the fill is an operand.
        """
        num_elements = block.shape[a.dim]
        # Without a combination there is no identity, so the fill is an operand: the user's number.
        value = given[0] if a.fill is None else identity(a.fill, block.dtype.name)
        shape = [a.length(n) if i == a.dim else n for i, n in enumerate(block.shape)]
        result = np.full(shape, value, block.dtype)
        elements = tuple(
            slice(a.low, a.low + (num_elements - 1) * a.factor + 1, a.factor)
            if i == a.dim
            else slice(None)
            for i in range(block.ndim)
        )
        result[elements] = block
        return result

    return map_blocks(spread, x, *fill)
