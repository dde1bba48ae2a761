"""Dimensions of a gather that no index selects and the result lacks: only element 0 is read."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from shardalg.graph.ir import Signature
from shardalg.ops.families.building import record
from shardalg.ops.families.indexing import GATHER, numbers


class FirstElements(NamedTuple):
    """A gather of which such dimensions are read explicitly.

    Attributes:
      cut: a slice of the operand that the gather reads instead; None if it reads the operand.
      zeros, joined: index components that are 0, and their concatenation with the given ones;
        None where `cut` is given.
      rest: the gather that is left.
    """

    cut: Signature | None
    zeros: Signature | None
    joined: Signature | None
    rest: Signature


@lru_cache(maxsize=1 << 12)
def first_elements(signature: Signature) -> FirstElements | None:
    """Return the gather with an index, or a slice, in dimensions of which element 0 is read.

    As it is, the gather has no loop along such a dimension, so that each device would need the
    operand whole there. With the index 0 the device that holds element 0 reads it, and sends the
    result. With a slice it sends the slice, which is taken where that is smaller.

    Returns:
      None where the gather has no such dimension of more than one element.
    """
    if signature.primitive != "gather":
        return None
    found, operand, indices = numbers(signature), *signature.operands
    given = {*found.selected, *found.operand_batching}
    free = tuple(
        dim for dim in found.dropped if dim not in given and _is_longer(operand.shape[dim])
    )
    if not free:
        return None
    shape = tuple(1 if dim in free else size for dim, size in enumerate(operand.shape))
    if math.prod(shape) < math.prod(signature.results[0].shape):
        sliced = replace(operand, shape=shape)
        starts = (("start_indices", (0,) * len(shape)), ("strides", None))
        cut = Signature("slice", (("limit_indices", shape), *starts), (operand,), (sliced,))
        return FirstElements(cut, None, None, replace(signature, operands=(sliced, indices)))
    *places, count = indices.shape
    zero, more = (replace(indices, shape=(*places, n)) for n in (len(free), count + len(free)))
    how = (("broadcast_dimensions", ()), ("shape", zero.shape))
    zeros = Signature("broadcast_in_dim", how, (replace(indices, shape=()),), (zero,))
    joined = Signature("concatenate", (("dimension", len(places)),), (indices, zero), (more,))
    fields = record(signature.param("dimension_numbers"), GATHER)
    fields = fields | {"start_index_map": (*found.selected, *free)}
    params = dict(signature.params) | {"dimension_numbers": tuple(fields.items())}
    rest = replace(signature, params=tuple(params.items()), operands=(operand, more))
    return FirstElements(None, zeros, joined, rest)


def _is_longer(size: object) -> bool:
    return type(size) is int and size > 1
