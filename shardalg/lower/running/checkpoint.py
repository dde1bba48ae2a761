"""State of a lowered plan in a folder, through orbax: saved on one mesh, loaded on another.

Arrays are written with their padding, each block by the process that has it. A plan that loads them
cuts or pads them to its own padded shapes. A list of true shapes, digests and all files with their
sizes is written last, so that a folder without this list is not complete. An array whose digest
changed is refused. A digest depends on an array's elements, not on its sharding or its padding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from shardalg.errors import CheckpointError
from shardalg.files import write_whole
from shardalg.graph.abstract import item_type
from shardalg.lower.arrays import ArrayBorder

_SEEDS = (0x9E3779B1, 0x85EBCA6B)
_FACTORS = (0x7FEB352D, 0x846CA68B)  # odd: a product modulo 2**32 with one loses no bit


def digest(array: jax.Array, shape: tuple[int, ...]) -> str:
    """Return 64 bits, as text, of an array's elements except padding.

    Every process that has a device of the array must call this. The text has two sums of
    mix(word ^ mix(place)) modulo 2**32. The function mix loses no bit, so that one flipped bit
    always changes the digest, and other changes are missed once in 2**64. Each device computes the
    sums of its own blocks.

    Args:
      shape: the true shape; what the array has beyond it is padding.

    >>> whole = jnp.arange(12.0).reshape(3, 4)
    >>> digest(whole, (3, 4)) == digest(jnp.pad(whole, 1)[1:, 1:], (3, 4))
    True
    >>> digest(whole, (3, 4)) == digest(whole.at[1, 1].set(-5.0), (3, 4))
    False
    """
    return "".join(f"{int(half):08x}" for half in _digest_sums(array, shape=shape))


@partial(jax.jit, static_argnames="shape")
def _digest_sums(array: jax.Array, *, shape: tuple[int, ...]) -> list[jax.Array]:
    """Return the two 32-bit sums of a digest; `shape` is the array's shape without padding.

    Each word is hashed together with its place. A sum of the hashes does not depend on the order in
    which devices add their blocks.
    """
    words = _words(array)
    place = jnp.zeros(words.shape, jnp.uint32)
    real = jnp.ones(words.shape, bool)
    # Places are numbered per dimension, not in memory, so that they do not depend on padding.
    for dim in range(words.ndim):
        at = lax.broadcasted_iota(jnp.uint32, words.shape, dim)
        # The last dimension of wide items has their words: it is not in `shape` and has no padding.
        if dim < len(shape):
            real &= at < shape[dim]
        place = _mix(place ^ at)
    # Padding adds 0. Each of the two sums has a seed of its own.
    terms = (jnp.where(real, _mix(words ^ _mix(place + jnp.uint32(s))), 0) for s in _SEEDS)
    return [jnp.sum(term, dtype=jnp.uint32) for term in terms]


def _mix(word: jax.Array) -> jax.Array:
    """Return a 32-bit hash of each word; different words have different hashes.

    Source: Prospector's lowbias32.
    """
    word = word + jnp.uint32(_SEEDS[0])
    for factor, shift in zip(_FACTORS, (16, 15), strict=True):
        word = (word ^ (word >> shift)) * jnp.uint32(factor)
    return word ^ (word >> 16)


def _words(array: jax.Array) -> jax.Array:
    """Return the bits of each item as 32-bit integers; items of more bits get one more dimension.

    For example, float64 of shape (3,) becomes integers of shape (3, 2).
    """
    # XLA cannot reinterpret the bits of a complex number, but it can for its two parts.
    if array.dtype.kind == "c":
        return _words(jnp.stack([array.real, array.imag], -1))
    bits = jax.dtypes.itemsize_bits(array.dtype)
    # Items of less than a byte, such as int4, are whole numbers: different numbers stay different.
    if array.dtype == jnp.bool_ or bits < 8:
        return array.astype(jnp.uint8).astype(jnp.uint32)
    # 64-bit items become two words each, in a new last dimension; shorter items one word.
    word_type = jnp.dtype(f"uint{min(bits, 32)}")
    return lax.bitcast_convert_type(array, word_type).astype(jnp.uint32)


_LIST = "shardalg.json"
_ARRAYS = "state"
_SCHEMA = 2
_NAMED = 5
"""The largest number of differences that a message names."""


@dataclass(frozen=True)
class StoredArray:
    """One array of a state, and its form in files.

    An array of random keys is stored as integers, the words of the keys. An array without elements
    is not stored.
    """

    name: str
    border: ArrayBorder

    @property
    def _words(self) -> tuple[int, ...]:
        """Shape of the integers of one random key, such as (2,); () if the items are no keys."""
        item = item_type(self.border.dtype)
        if not jax.dtypes.issubdtype(item, jax.dtypes.prng_key):
            return ()
        return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), item)).shape

    @property
    def kind(self) -> list[Any]:
        """Item type and shape, without padding."""
        return [self.border.dtype, list(self.border.sharding.shape)]

    def digest(self, stored: jax.Array) -> str:
        """Return the digest of the stored array without its padding."""
        return digest(stored, (*self.border.sharding.shape, *self._words))

    def stored(self, array: Any) -> jax.Array:
        """Return an array as it is stored: on the program's devices, random keys as integers."""
        held = self.border.placed(array)
        return jax.random.key_data(held) if self._words else held

    @property
    def wanted(self) -> Any:
        """Orbax's restore arguments: the sharding and the padded shape that the plan needs."""
        import orbax.checkpoint as ocp

        inner = self.border.inner
        # A spec may have fewer entries than the array has dimensions. The entries of the words of
        # random keys, which are replicated, come after one entry for each dimension.
        spec = [*inner.spec] + [None] * (len(self.border.padded_shape) - len(inner.spec))
        words_spec = [None] * len(self._words)
        # Without `strict`, orbax cuts or pads an array that was saved with another padding.
        return ocp.ArrayRestoreArgs(
            sharding=NamedSharding(inner.mesh, PartitionSpec(*spec, *words_spec)),
            global_shape=(*self.border.padded_shape, *self._words),
            strict=False,
        )

    def loaded(self, array: jax.Array) -> jax.Array:
        """Return a restored array in the plan's sharding."""
        if self._words:
            key: Any = item_type(self.border.dtype)
            array = jax.random.wrap_key_data(array, impl=key._impl.name)
        return self.border.placed(array)

    def empty(self) -> jax.Array:
        """Return an array without elements, which files do not store."""
        return self.border.placed(
            jnp.zeros(self.border.sharding.shape, item_type(self.border.dtype))
        )


def save(path: str | Path, borders: Sequence[ArrayBorder], state: Any) -> None:
    """Write the pytree `state` into a new folder.

    All processes call this together, and each writes the blocks of its own devices. Process 0
    writes the list of arrays last, so that an interrupted checkpoint has no list.

    Args:
      borders: for each leaf, its shardings in the user's call and in the program.

    Raises:
      CheckpointError: the folder exists, or orbax is not installed.
    """
    ocp, folder = _orbax(), Path(path).absolute()
    arrays = _arrays(borders, state)
    folder_exists = folder.exists()
    # All processes look before one of them writes: otherwise a late process would find the new
    # folder and refuse it.
    multihost_utils.sync_global_devices("shardalg checkpoint: the folder is looked at")
    if folder_exists:
        raise CheckpointError(f"{folder} exists, and nothing is overwritten: name a new folder.")
    leaves = jax.tree.leaves(state)
    # Orbax does not store arrays without elements.
    pairs = [(a, x) for a, x in zip(arrays, leaves, strict=True) if not a.border.is_empty]
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as writer:
        stored = {a.name: a.stored(x) for a, x in pairs}
        writer.save(folder / _ARRAYS, args=ocp.args.PyTreeSave(stored))
    # A digest is computed by all processes together, so it is outside of the condition below.
    digests = {a.name: a.digest(stored[a.name]) for a, _ in pairs}
    if jax.process_index() == 0:
        kinds = {a.name: a.kind for a in arrays}
        content = {"schema": _SCHEMA, "arrays": kinds, "digests": digests, "files": _files(folder)}
        write_whole(folder / _LIST, json.dumps(content, indent=1))
    multihost_utils.sync_global_devices("shardalg checkpoint: it is complete")


def load(path: str | Path, borders: Sequence[ArrayBorder], state: Any) -> Any:
    """Return the state in a folder, as a pytree with the structure of `state`.

    The arrays have the shardings of this plan; the plan that saved them may have had others.

    Args:
      borders: for each leaf, its shardings in the user's call and in the program.

    Raises:
      CheckpointError: the checkpoint is not complete, a file is cut, missing or changed, or cannot
        be read, it is the state of another model, or orbax is not installed.
    """
    ocp, folder = _orbax(), Path(path).absolute()
    arrays = _arrays(borders, state)
    digests = _read_digests(folder, arrays)
    # Arrays without elements are not in the files; they are created below.
    stored_arrays = [a for a in arrays if not a.border.is_empty]
    # Orbax needs a pytree of the stored structure; its leaves, here 0, have no meaning.
    restore_args = ocp.args.PyTreeRestore(
        item={a.name: 0 for a in stored_arrays},
        restore_args={a.name: a.wanted for a in stored_arrays},
    )
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        try:
            found = reader.restore(folder / _ARRAYS, args=restore_args) if stored_arrays else {}
        except Exception as error:  # orbax passes on errors of tensorstore of various classes
            raise CheckpointError(
                f"{folder} cannot be read: {error}. Load another checkpoint."
            ) from error
    # A file may be whole and of the right size, with a flipped bit. The digest shows this.
    changed = [a.name for a in stored_arrays if a.digest(found[a.name]) != digests.get(a.name)]
    if changed:
        raise CheckpointError(
            f"{folder}: {', '.join(changed[:_NAMED])} {'is' if len(changed) == 1 else 'are'} not "
            "what was saved: bits changed in its files. Load another checkpoint."
        )
    loaded = [a.empty() if a.border.is_empty else a.loaded(found[a.name]) for a in arrays]
    return jax.tree.unflatten(jax.tree.structure(state), loaded)


def _arrays(borders: Sequence[ArrayBorder], state: Any) -> list[StoredArray]:
    """Return one `StoredArray` for each leaf of a state, named by its path in the pytree.

    For example, "['layers'][0]". CheckpointError if the plan has another number of arrays.
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    if len(paths) != len(borders):
        raise CheckpointError(
            f"a state of {len(paths)} arrays, and the plan's has {len(borders)}. Pass the argument "
            "of the plan whose number is given."
        )
    # A state that is one array has an empty path.
    names = (jax.tree_util.keystr(path) or "state" for path in paths)
    return [StoredArray(name, b) for name, b in zip(names, borders, strict=True)]


def _orbax() -> Any:
    """Return the module `orbax.checkpoint`; raise CheckpointError if it is not installed."""
    # Orbax is an optional dependency. Its namespace may also come from another of its packages.
    if find_spec("orbax") is None or find_spec("orbax.checkpoint") is None:
        raise CheckpointError(
            "checkpoints need orbax: pip install 'shardalg[checkpoint]' (orbax-checkpoint)."
        )
    import orbax.checkpoint

    return orbax.checkpoint


def _files(folder: Path) -> dict[str, int]:
    """Return the size in bytes of each file of a checkpoint's arrays, by its path in the folder."""
    found = (file for file in sorted((folder / _ARRAYS).rglob("*")) if file.is_file())
    return {file.relative_to(folder).as_posix(): file.stat().st_size for file in found}


def _read_digests(folder: Path, arrays: Sequence[StoredArray]) -> Mapping[str, str]:
    """Return the digest of each array that a checkpoint has, by the array's name.

    Files and arrays are checked first: an incomplete file would make orbax fail without a reason.

    Args:
      folder: the checkpoint.
      arrays: the arrays of the plan.

    Raises:
      CheckpointError: a file is missing or has another size, or the arrays are not these.
    """
    content = _read_list(folder)
    found_sizes = _files(folder)
    for file, size in content["files"].items():
        if found_sizes.get(file) != size:
            is_there = file in found_sizes
            fault = f"has {found_sizes[file]} of {size} bytes" if is_there else "is missing"
            raise CheckpointError(f"{folder}: its file {file} {fault}. Load another checkpoint.")
    _check_kinds(folder, content["arrays"], {a.name: a.kind for a in arrays})
    return content["digests"]


def _read_list(folder: Path) -> dict[str, Any]:
    """Return the content of a checkpoint's list: its arrays, digests and files.

    CheckpointError if the list is missing, of another version, or without any entry.
    """
    try:
        content = json.loads((folder / _LIST).read_text())
        # A list of another form has no such dictionaries, and raises an error that is caught below.
        parts = [content[name].keys() for name in ("arrays", "digests", "files")]
        if content["schema"] != _SCHEMA or not any(parts):
            raise ValueError(f"schema {content['schema']}")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(
            f"{folder} holds no complete checkpoint of shardalg: {_LIST}: {error}."
        ) from error
    return content


def _check_kinds(
    folder: Path, stored: Mapping[str, list[Any]], planned: Mapping[str, list[Any]]
) -> None:
    """Raise CheckpointError unless all arrays have the planned item types and true shapes.

    Args:
      stored, planned: [item type, shape without padding] of each array, by name.
    """
    # An array that only one side has differs from None. The message names a few differences only.
    names = [n for n in {**stored, **planned} if stored.get(n) != planned.get(n)]
    if names:
        rows = [f"  {n}: {_kind(stored.get(n))}, planned {_kind(planned.get(n))}" for n in names]
        more = f"\n  and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
        raise CheckpointError(
            f"{folder} is the state of another model:\n" + "\n".join(rows[:_NAMED]) + more
        )


def _kind(kind: list[Any] | None) -> str:
    """Return an item type and a shape as text, such as "float32[8, 4]"."""
    return "not there" if kind is None else f"{kind[0]}{kind[1]}"
