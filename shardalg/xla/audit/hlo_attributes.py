"""Attributes of HLO instructions as numbers: dimensions, windows, groups, shardings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardalg.algebra.sharding import Sharding
from shardalg.errors import ShardalgError
from shardalg.lower.xla_dump.hlo_text import HloInstruction, HloModule, parse_groups, split_top
from shardalg.xla.audit.values.per_device import UnknownError

INTEGERS = {
    "s2": 2, "s4": 4, "s8": 8, "s16": 16, "s32": 32, "s64": 64,
    "u2": -2, "u4": -4, "u8": -8, "u16": -16, "u32": -32, "u64": -63,
}  # fmt: skip
"""The width of each integer type in bits, negative for types without a sign."""
_OF_SIZES = frozenset({
    "metadata", "sharding", "backend_config", "frontend_attributes", "channel_id", "to_apply",
    "replica_groups", "use_global_device_ids", "dynamic_slice_sizes", "slice_sizes", "window",
    "slice", "padding", "indices_are_sorted", "unique_indices", "operand_precision", "statistics",
    "body", "condition", "calls", "branch_computations", "true_computation", "false_computation",
    "origin", "constrain_layout", "device_ids", "dimensions", "select", "scatter",
})  # fmt: skip


def is_float(dtype: str) -> bool:
    """Return whether an item type has real numbers."""
    return dtype.startswith(("f", "bf"))


def wrapped(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """Return integers modulo the width of their type.

    >>> wrapped(np.array([130, -1]), "s8").tolist(), wrapped(np.array([-1]), "u8").tolist()
    ([-126, -1], [255])
    """
    bits = INTEGERS[dtype]
    if bits < 0:
        return numbers & ((1 << -bits) - 1)
    half = 1 << (bits - 1)
    return numbers if bits == 64 else ((numbers + half) & ((1 << bits) - 1)) - half


def integers(text: str | None) -> list[int]:
    """Return the integers in a text.

    >>> integers("{0,2}"), integers(None)
    ([0, 2], [])
    """
    return [int(n) for n in re.findall(r"-?\d+", text or "")]


def slices_of(instruction: HloInstruction) -> list[slice]:
    """Return the range of a `slice` instruction per dimension."""
    ranges = re.findall(r"\[([^\]]*)\]", instruction.attributes["slice"])
    return [slice(*integers(part.replace(":", " "))) for part in ranges]


def padding_of(instruction: HloInstruction) -> list[tuple[int, int, int]]:
    """Return (low, high, interior) of a `pad` instruction per dimension."""
    parts = instruction.attributes["padding"].split("x") if instruction.leaves[0][1] else []
    given = [[int(n) for n in part.split("_")] for part in parts]
    return [(low, high, inner[0] if inner else 0) for low, high, *inner in given]


def groups_of(instruction: HloInstruction, devices: int) -> np.ndarray:
    """Return the groups of a collective, [groups, members].

    Raises:
      UnknownError: groups of different sizes, or in a form that cannot be read.
    """
    try:
        groups = parse_groups(instruction.attributes.get("replica_groups", ""), devices)
    except ShardalgError as error:
        raise UnknownError(str(error)) from None
    if len({len(group) for group in groups}) != 1:
        raise UnknownError("groups of different sizes")
    if sorted(d for group in groups for d in group) != list(range(devices)):
        raise UnknownError("groups that do not have every device once")
    return np.array(groups)


def pairs_of(instruction: HloInstruction) -> list[tuple[int, int]]:
    """Return the (source, target) pairs of a collective-permute."""
    text = instruction.attributes.get("source_target_pairs", "")
    return [(int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", text)]


@dataclass(frozen=True)
class WindowDim:
    """The window of a convolution or a reduce-window along one dimension."""

    size: int
    stride: int = 1
    low: int = 0
    high: int = 0
    base_dilation: int = 1
    dilation: int = 1
    is_reversed: bool = False


def window_of(instruction: HloInstruction) -> list[WindowDim]:
    """Return the window of an instruction per dimension."""
    parts = instruction.attributes.get("window", "").strip("{}").split()
    words = dict(part.split("=") for part in parts)
    sizes = words.get("size", "").split("x") if words.get("size") else []

    def numbers(name: str, default: int) -> list[int]:
        text = words.get(name)
        return [int(n) for n in text.split("x")] if text else [default] * len(sizes)

    pads = [part.split("_") for part in words.get("pad", "x".join(["0_0"] * len(sizes))).split("x")]
    rows = zip(
        map(int, sizes), numbers("stride", 1), pads, numbers("lhs_dilate", 1),
        numbers("rhs_dilate", 1), numbers("rhs_reversal", 0), strict=True,
    ) if sizes else ()  # fmt: skip
    return [
        WindowDim(size, stride, int(low), int(high), base, dilation, bool(turned))
        for size, stride, (low, high), base, dilation, turned in rows
    ]


def called(instruction: HloInstruction, key: str = "to_apply") -> str:
    """Return the name of the computation that an attribute names."""
    return instruction.attributes.get(key, "").lstrip("%")


def combination(module: HloModule, instruction: HloInstruction) -> str:
    """Return the opcode of a reduction of two parameters by one operator, else ""."""
    return combination_of(module, instruction, "to_apply")


def combination_of(module: HloModule, instruction: HloInstruction, key: str) -> str:
    """Return the opcode of a computation of two parameters that an attribute names, else ""."""
    name = called(instruction, key)
    body = module.computations.get(name, {})
    root = module.roots.get(name)
    if root is None or len(root.operands) != 2 or len(set(root.operands)) != 2:
        return ""
    plain = all(body[o].opcode == "parameter" for o in root.operands if o in body)
    return root.opcode if plain and len(body) == 3 else ""


def computation_text(module: HloModule, name: str) -> tuple[object, ...]:
    """Return a computation as nested tuples that do not depend on the names of instructions."""
    found = []
    number = {}
    for index, one in enumerate(module.computations.get(name, {}).values()):
        number[one.name] = index
        operands = tuple(number.get(o, -1) for o in one.operands)
        if one.opcode in ("add", "multiply", "maximum", "minimum", "and", "or"):
            operands = tuple(sorted(operands))
        found.append((one.opcode, one.leaves, operands, one.literal, signature(module, one)))
    return tuple(found)


def signature(module: HloModule, instruction: HloInstruction) -> tuple[object, ...]:
    """Return the attributes of an operator that do not depend on the sizes of its operands."""
    given = instruction.attributes.items()
    own: list[tuple[str, object]] = sorted((k, v) for k, v in given if k not in _OF_SIZES)
    if instruction.opcode not in ("broadcast", "iota"):
        own += [("dimensions", instruction.attributes.get("dimensions", ""))]
    for key in ("to_apply", "select", "scatter"):
        if key in instruction.attributes:
            own += [(key, computation_text(module, called(instruction, key)))]
    return tuple(own)


def shardings_of(text: str | None, count: int) -> list[str]:
    """Return the sharding of each element of a tuple, in HLO's text; "" for no sharding."""
    text = (text or "").strip()
    if not text.startswith("{{"):
        return [text] * count
    parts = [re.sub(r"/\*.*?\*/", "", part).strip() for part in split_top(text[1:-1])]
    return parts if len(parts) == count else [""] * count


def in_tiles(text: str, devices: int) -> str:
    """Return a sharding that names mesh axes with a tile per device; other text as it is.

    >>> in_tiles("{mesh['X'=2,'Y'=2], [{'X'}, {}], manual={'Y'}}", 4)
    '{devices=[2,1,2]<=[4] last_tile_dims={manual}}'

    Raises:
      UnknownError: the text cannot be read, or has no such form.
    """
    text = text.strip()
    if not text.startswith("{mesh["):
        return text
    dims = re.search(r", \[([^\]]*)\]", text)
    rank = dims[1].count("{") if dims else 0
    # Only the devices of each block matter here, so that the number of devices stands for the sizes
    # of the dimensions.
    try:
        return Sharding.from_hlo(text, (devices,) * rank).to_hlo()
    except ShardalgError:
        raise UnknownError(f"the sharding {text[:60]}") from None


def tiles_of(text: str, rank: int, devices: int) -> tuple[np.ndarray, list[int]]:
    """Return the block of each device along each dimension, and the number of blocks.

    >>> tiles_of("{devices=[2,1]<=[2]}", 2, 2)[0].tolist()
    [[0, 0], [1, 0]]
    >>> tiles_of("{mesh['X'=2], [{'X'}, {}]}", 2, 2)[0].tolist()
    [[0, 0], [1, 0]]

    Raises:
      UnknownError: a sharding in a form that gives no blocks.
    """
    text = in_tiles(text, devices)
    match = re.match(
        r"\{?devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))", text.strip()
    )
    if not match:
        if text.strip("{} ") in ("", "replicated", "manual"):
            return np.zeros((devices, rank), np.int64), [1] * rank
        raise UnknownError(f"the sharding {text[:60]}")
    dims = integers(match[1])
    if match[4]:
        ids = np.array(integers(match[4]))
    else:
        sizes = integers(match[2])
        order = integers(match[3]) if match[3] else list(range(len(sizes)))
        if sorted(order) != list(range(len(sizes))):
            raise UnknownError(f"the sharding {text[:60]}, whose transposition has a repeated axis")
        ids = np.arange(int(np.prod(sizes))).reshape(sizes).transpose(order).reshape(-1)
    if len(ids) != devices or int(np.prod(dims)) != devices or len(dims) < rank:
        raise UnknownError(f"the sharding {text[:60]} for {devices} devices and rank {rank}")
    if sorted(ids.tolist()) != list(range(devices)):
        raise UnknownError(f"the sharding {text[:60]}, which does not have every device once")
    blocks = np.zeros((devices, len(dims)), np.int64)
    blocks[ids] = np.stack(np.unravel_index(np.arange(devices), dims), -1)
    return blocks[:, :rank], dims[:rank]


def block_indices(
    text: str, shape: Sequence[int], devices: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the indices of each block per dimension, and the block of each device.

    Indices are [blocks, length]; -1 marks padding.

    >>> block_indices("{devices=[2]<=[2]}", (3,), 2)[0][0].tolist()
    [[0, 1], [2, -1]]
    """
    blocks, counts = tiles_of(text, len(shape), devices)
    found = []
    for dim, size in enumerate(shape):
        length = -(-size // counts[dim])
        numbers, classes = np.unique(blocks[:, dim], return_inverse=True)
        at = numbers[:, None] * length + np.arange(length)
        found.append((np.where(at < size, at, -1), classes.reshape(-1)))
    return found
