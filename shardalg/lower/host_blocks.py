"""Arrays of the host as shards: whole ones, or block by block from a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from shardalg.errors import LoweringError

Read = Callable[[tuple[slice, ...]], Any]
"""From the place of a block, a slice with start and stop per dimension, to its elements."""


@dataclass(frozen=True)
class Blocks:
    """What the host has of one array.

    Attributes:
      path: the array's name in messages.
      shape: of what `read` knows; beyond it there is padding.
      dtype: item type that devices hold.
      checked: whether `read` is the user's own, whose blocks are not trusted.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Any
    read: Read
    checked: bool = False

    def placed(self, padded: tuple[int, ...], target: NamedSharding) -> jax.Array:
        """As `target` lays it out, padded by zeros; only blocks of this process's devices are read.

        Raises:
          LoweringError: a block of another shape or item type than its place has.
        """

        def block(index: Any) -> np.ndarray:
            full = [range(*i.indices(n)) for i, n in zip(index, padded, strict=True)]
            kept = [slice(r.start, min(r.stop, n)) for r, n in zip(full, self.shape, strict=True)]
            sizes = [max(0, s.stop - s.start) for s in kept]
            if 0 in sizes:
                return np.zeros([len(r) for r in full], self.dtype)
            found = self._read(tuple(kept), tuple(sizes))
            widths = [(0, len(r) - size) for r, size in zip(full, sizes, strict=True)]
            return np.pad(found, widths) if any(w for _, w in widths) else found

        return jax.make_array_from_callback(padded, target, block)

    def _read(self, index: tuple[slice, ...], sizes: tuple[int, ...]) -> np.ndarray:
        found = np.asarray(self.read(index))
        held = jax.dtypes.canonicalize_dtype(found.dtype) if found.dtype.kind in "biufc" else None
        if self.checked and (found.shape != sizes or (held or found.dtype) != self.dtype):
            place = ", ".join(f"{s.start}:{s.stop}" for s in index)
            raise LoweringError(
                f"{self.path}: its function gives {found.dtype}{list(found.shape)} for the block "
                f"[{place}], which is {self.dtype}{list(sizes)}. Return the elements of the slices "
                "that it is given, in the planned item type."
            )
        return found.astype(self.dtype, copy=False)
