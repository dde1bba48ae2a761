"""A node run in parts by its emission: blocks cut here, garbage in the padding, one loop split."""

import numpy as np

from shardalg.graph import evaluate
from shardalg.graph.ops import rule as rows
from shardalg.graph.ops.local_parameters import emit
from shardalg.graph.ops.loops import dim_loops
from tests.ops.meaning import UFUNCS, identity

RANKED = (rows.ARGMAX, rows.ARGMIN, rows.TOP, rows.USER)
"""Ways to combine by more than one array of numbers: tests/partition runs them."""


def garbage(dtype):
    """Return the value of padding: NaN, or a number that no test uses."""
    return (
        np.nan
        if np.issubdtype(dtype, np.floating)
        else dtype.type(1 if np.issubdtype(dtype, np.bool_) else 77)
    )


class Shard:
    """Loop `loop` of a row split over `parts` devices."""

    def __init__(self, rule, loop, parts):
        self.rule, self.loop, self.parts = rule, loop, parts
        self.block = -(-rule.extents[loop] // parts)
        self.blocks = {**rule.extents, loop: self.block}

    def dims(self, tensor):
        """Return the tensor's dimensions that the loop partitions; None if it cannot."""
        found = []
        for dim, index in enumerate(self.rule.indices(tensor)):
            if self.loop in index.variables:
                loops = dim_loops(self.rule, tensor, dim)
                even = self.rule.extents[self.loop] % self.parts == 0
                if not loops or loops[0][0] != self.loop or (len(loops) > 1 and not even):
                    return None
                found.append(dim)
        return found

    @property
    def realisable(self):
        carried = self.rule.prefix is not None and self.rule.prefix[0] == self.loop
        ranked = self.rule.combine in RANKED and self.loop in self.rule.reduced
        # boxes, and windows with margins around the block
        boxed = any(
            guard.loop.loop == self.loop
            and any(name in self.rule.extents for name in guard.index.variables)
            for guard in self.rule.guards
        )
        return not (carried or ranked or boxed) and all(
            self.dims(tensor) is not None for tensor in self.rule.tensors
        )

    def cut(self, array, tensor, p):
        """Return the block of device p, padded with garbage; zeros would hide a missing mask."""
        for dim in self.dims(tensor):
            size = array.shape[dim]
            block = -(-size // self.parts)
            part = np.take(array, np.arange(min(p * block, size), min((p + 1) * block, size)), dim)
            rest = [(0, block - n if d == dim else 0) for d, n in enumerate(part.shape)]
            array = np.pad(part, rest, constant_values=garbage(array.dtype))
            if self.loop in self.rule.reduced and self.rule.combine != rows.PICK:
                array = self.masked(array, dim, p)
        return array

    def masked(self, array, dim, p):
        at = np.arange(self.block).reshape([-1 if d == dim else 1 for d in range(array.ndim)])
        inside = p * self.block + at < self.rule.extents[self.loop]
        return np.where(inside, array, identity(self.rule.combine, array.dtype)).astype(array.dtype)


def run_in_parts(run, rule, loop, parts, *, change=lambda emission: emission):
    """Return the node's results from `parts` devices; None if the loop cannot be split so."""
    shard = Shard(rule, loop, parts)
    if not shard.realisable:
        return None
    emission = change(emit(run.signature, rule, shard.blocks))
    made = [_device(run, shard, emission, p) for p in range(parts)]
    return [
        _together(shard, [m[number] for m in made], number, like)
        for number, like in enumerate(run.results)
    ]


def _device(run, shard, emission, p):
    known = shard.rule.operands
    operands = [shard.cut(a, k, p) if k in known else a for k, a in enumerate(run.operands)]
    if emission.first_member is not None and p:
        first = operands[emission.first_member]
        neutral = identity(shard.rule.combine, first.dtype)
        operands[emission.first_member] = np.full_like(first, neutral)
    for shift in emission.shifts:
        if shift.operand is not None:
            operands[shift.operand] = _shift(operands[shift.operand], shift, p * shard.block)
    made = evaluate.apply(run.signature.primitive, run.binding, emission.params, operands)
    made = [np.asarray(m) for m in made]
    for shift in emission.shifts:
        if shift.operand is None:
            made = [m + shift.sign * p * shard.block for m in made]
    return [_owned(shard, emission, operands, m, p) for m in made]


def _shift(indices, shift, offset):
    indices = indices.copy()
    part = indices[..., shift.component]
    part = part if shift.clamp is None else np.clip(part, *shift.clamp)
    indices[..., shift.component] = part + shift.sign * offset
    return indices


def _owned(shard, emission, operands, made, p):
    other = [d for d in range(made.ndim) if d not in emission.batch_dims]
    for component, _, count in emission.owned:
        local = operands[1][..., component]
        globally = local + p * shard.block
        missing = (globally < 0) | (globally >= count)
        here = (local >= 0) & (local < shard.block) & ~missing
        fill = emission.fill if emission.fill is not None and p == 0 else 0
        made = np.where(np.expand_dims(here, other), made, 0)
        made = np.where(np.expand_dims(missing, other), fill, made)
    return made


def _together(shard, parts, number, like):
    dims = shard.dims(~number)
    if not dims:
        if shard.loop not in (*shard.rule.reduced, *shard.rule.guarded):
            return parts[0]
        ufunc = UFUNCS.get(shard.rule.combine, np.add)
        ufunc = np.bitwise_xor if ufunc is np.logical_xor and like.dtype != bool else ufunc
        return ufunc.reduce(np.stack(parts), axis=0)
    joined = np.concatenate(parts, dims[0])
    return np.take(joined, np.arange(like.shape[dims[0]]), dims[0])
