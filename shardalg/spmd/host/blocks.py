"""Convert global arrays to one block per device position and back, on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardalg.algebra.digits import Digits, partition_id
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.graph.evaluate import is_key, of_words, words
from shardalg.spmd.identity import extreme, is_float

Stack = list[np.ndarray]
"""One array per device position; positions that certainly hold the same share one object."""


def item_type(dtype: str) -> np.dtype:
    """Return the numpy type called `dtype`; importing ml_dtypes registers `bfloat16`."""
    import ml_dtypes  # noqa: F401

    return np.dtype(dtype)


def garbage(dtype: str) -> int | float | bool:
    """Return the number that fills padding, so that a missing mask shows in the results.

    It is NaN, the largest integer, or True.
    """
    return float("nan") if is_float(dtype) else extreme(dtype, highest=True)


def block_ids(sharding: Sharding, position: int) -> tuple[int, ...]:
    """Return the partition id of the device at `position` along every dimension."""
    return tuple(partition_id(digits, position) for digits in sharding.dims)


def valid_slices(sharding: Sharding, position: int, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the part of a local block of `shape` that is not padding.

    >>> from shardalg.algebra.mesh import Mesh
    >>> mesh = Mesh({"x": 4})
    >>> uneven = Sharding(mesh, (5,), (mesh.digits("x"),))
    >>> [valid_slices(uneven, position, (2,))[0].stop for position in range(4)]
    [2, 2, 1, 0]
    """
    own = zip(
        sharding.shape, sharding.shard_shape, block_ids(sharding, position), shape, strict=True
    )
    return tuple(slice(0, min(max(size - p * n, 0), n, local)) for size, n, p, local in own)


def split(array: np.ndarray, sharding: Sharding, fill: int | float | bool) -> Stack:
    """Return the block of every position, with padding filled with `fill`.

    For example, 5 elements on 2 devices give the blocks [0, 1, 2] and [3, 4, fill].

    Args:
      array: the global array.
    """
    blocks: dict[tuple[int, ...], np.ndarray] = {}
    for position in range(sharding.mesh.size):
        key = block_ids(sharding, position)
        # Replicas share one array, so that operators on equal blocks run once.
        if key not in blocks:
            # A block that begins behind the last element is padding entirely.
            starts = [p * n for p, n in zip(key, sharding.shard_shape, strict=True)]
            extents = zip(starts, sharding.shard_shape, strict=True)
            elements = array[tuple(slice(start, start + n) for start, n in extents)]
            block = np.full(sharding.shard_shape, fill, array.dtype)
            block[tuple(slice(0, n) for n in elements.shape)] = elements
            blocks[key] = block
    return [blocks[block_ids(sharding, position)] for position in range(sharding.mesh.size)]


def in_order(stack: Stack, source: Mesh, target: Mesh) -> Stack:
    """Reorder blocks from the positions of one mesh to another mesh over its devices.

    >>> from shardalg.algebra.mesh import Mesh
    >>> in_order(["a", "b", "c"], Mesh({"x": 3}), Mesh({"x": 3}, [2, 0, 1]))
    ['c', 'a', 'b']
    """
    if source == target:
        return stack
    return [stack[place] for place in target.places(source).tolist()]


def join(stack: Stack, sharding: Sharding) -> np.ndarray:
    """Return the global array without padding; of replicas, the copy of the last position.

    Args:
      stack: the block of every position.
    """
    array = np.zeros(sharding.shape, stack[0].dtype)
    for position, block in enumerate(stack):
        valid = valid_slices(sharding, position, block.shape)
        # A block begins at its partition id times the block size, in each dimension.
        starts = [
            p * n for p, n in zip(block_ids(sharding, position), sharding.shard_shape, strict=True)
        ]
        global_slices = tuple(
            slice(s, s + part.stop) for s, part in zip(starts, valid, strict=True)
        )
        array[global_slices] = block[valid]
    return array


def groups(digits: Digits, size: int) -> list[list[int]]:
    """Return positions that differ in `digits` alone, each group ordered by its partition ids.

    >>> from shardalg.algebra.digits import Digit
    >>> groups((Digit(2, 2),), 8), groups((), 2)
    ([[0, 2], [1, 3], [4, 6], [5, 7]], [[0], [1]])
    """
    members_of: dict[int, list[int]] = {}
    for position in range(size):
        # Members of a group have the same position once the group's digits are set to 0.
        base_position = position - sum(digit.at(position) * digit.stride for digit in digits)
        members_of.setdefault(base_position, []).append(position)
    return [sorted(group, key=lambda p: partition_id(digits, p)) for group in members_of.values()]


def by_word(simulate: Callable[..., Sequence[Stack]], *stacks: Stack) -> list[Stack]:
    """Simulate an instruction that only moves elements; random keys are moved word by word.

    Args:
      simulate: the function that simulates the instruction.
    """
    # numpy has no random keys, but a move of a key is the same move of each of its words.
    key_block = next((stack[0] for stack in stacks if is_key(stack[0])), None)
    if key_block is None:
        return list(simulate(*stacks))
    count = len(words(key_block))
    stacks_of_words = [_words_of_stack(x) if is_key(x[0]) else [x] * count for x in stacks]
    results_of_word = [simulate(*word_stacks) for word_stacks in zip(*stacks_of_words, strict=True)]
    # Put the words of each key of a result together again.
    return [_stack_of_words(parts, key_block) for parts in zip(*results_of_word, strict=True)]


def split_array(array: Any, sharding: Sharding, dtype: str) -> Stack:
    """Return the block of every position, with `garbage` as padding; keys are split by word."""
    if not is_key(array):
        typed = np.asarray(array).astype(item_type(dtype), copy=False)
        return split(typed, sharding, garbage(dtype))
    parts = [np.asarray(part) for part in words(array)]
    return _stack_of_words([split(p, sharding, garbage(p.dtype.name)) for p in parts], array)


def join_blocks(stack: Stack, sharding: Sharding) -> Any:
    """Return the global array without padding."""
    if not is_key(stack[0]):
        return join(stack, sharding)
    return of_words([join(part, sharding) for part in _words_of_stack(stack)], stack[0])


def _words_of_stack(stack: Stack) -> list[Stack]:
    """Return the words of random keys, as one stack of blocks per word of a key.

    Positions that share a block still share each of its words.
    """
    # Blocks are distinguished by identity, so that shared ones are converted once.
    known = {id(block): [np.asarray(part) for part in words(block)] for block in stack}
    return [list(blocks) for blocks in zip(*(known[id(b)] for b in stack), strict=True)]


def _stack_of_words(parts: Sequence[Stack], like: Any) -> Stack:
    """Return the random keys of every device, from a list of blocks for each word of the keys.

    Devices with the same block objects get the same key object.

    Args:
      parts: for each word, the block of every device.
      like: keys with the implementation (such as threefry) of the result.
    """
    known: dict[tuple[int, ...], Any] = {}
    for blocks in zip(*parts, strict=True):
        known.setdefault(tuple(map(id, blocks)), of_words(blocks, like))
    return [known[tuple(map(id, blocks))] for blocks in zip(*parts, strict=True)]
