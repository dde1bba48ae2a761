"""Blocks of random keys, moved word by word: numpy holds words, but no keys (`graph.keys`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardalg.algebra.sharding import Sharding
from shardalg.graph.keys import is_key, of_words, words
from shardalg.spmd.host.blocks import Stack, garbage, item_type, join, split


def by_word(simulate: Callable[..., Sequence[Stack]], *stacks: Stack) -> list[Stack]:
    """What a move makes of its operands, of those that are keys word by word."""
    like = next((stack[0] for stack in stacks if is_key(stack[0])), None)
    if like is None:
        return list(simulate(*stacks))
    count = len(words(like))
    each = [_words(x) if is_key(x[0]) else [x] * count for x in stacks]
    made = [simulate(*given) for given in zip(*each, strict=True)]
    return [_of_words(parts, like) for parts in zip(*made, strict=True)]


def split_array(array: Any, sharding: Sharding, dtype: str) -> Stack:
    """The block of every position, padding `garbage`; of keys those of their words."""
    if not is_key(array):
        held = np.asarray(array).astype(item_type(dtype), copy=False)
        return split(held, sharding, garbage(dtype))
    parts = [np.asarray(part) for part in words(array)]
    return _of_words([split(p, sharding, garbage(p.dtype.name)) for p in parts], array)


def join_blocks(stack: Stack, sharding: Sharding) -> Any:
    """The global array, padding stripped."""
    if not is_key(stack[0]):
        return join(stack, sharding)
    return of_words([join(part, sharding) for part in _words(stack)], stack[0])


def _words(stack: Stack) -> list[Stack]:
    """Per word its blocks; positions that share one go on sharing it."""
    known = {id(block): [np.asarray(part) for part in words(block)] for block in stack}
    return [list(blocks) for blocks in zip(*(known[id(b)] for b in stack), strict=True)]


def _of_words(parts: Sequence[Stack], like: Any) -> Stack:
    known: dict[tuple[int, ...], Any] = {}
    for blocks in zip(*parts, strict=True):
        known.setdefault(tuple(map(id, blocks)), of_words(blocks, like))
    return [known[tuple(map(id, blocks))] for blocks in zip(*parts, strict=True)]
