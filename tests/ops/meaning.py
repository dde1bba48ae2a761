"""The meaning of a row, executed literally: every point of its loops, one by one."""

import itertools
import operator

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from shardalg.graph import evaluate
from shardalg.graph.ops import rule as rows
from shardalg.graph.ops.families import pointwise
from shardalg.graph.ops.rows import BUILDERS
from shardalg.graph.ops.rule import Access

UFUNCS = {
    rows.SUM: np.add,
    rows.PRODUCT: np.multiply,
    rows.MAX: np.maximum,
    rows.MIN: np.minimum,
    rows.AND: np.logical_and,
    rows.OR: np.logical_or,
    rows.XOR: np.logical_xor,
    rows.LOGSUMEXP: np.logaddexp,
}


def identity(combine, dtype):
    """Return the neutral element of a combine."""
    if np.issubdtype(dtype, np.bool_):
        return combine in (rows.AND, rows.MIN)
    bounds = np.iinfo(dtype) if np.issubdtype(dtype, np.integer) else None
    low, high = (bounds.min, bounds.max) if bounds else (-np.inf, np.inf)
    table = {rows.PRODUCT: 1, rows.MAX: low, rows.MIN: high, rows.AND: -1, rows.LOGSUMEXP: low}
    return table.get(combine, 0)


def values(index, points):
    """(value, exists) of an index at every point."""
    total = np.full(points["#"], index.constant)
    for name, coefficient in index.terms:
        total = total + coefficient * points[name]
    exists = total % index.div == 0 if index.exact else np.ones(total.shape, bool)
    total = total // index.div
    return (total % index.mod if index.mod else total), exists


def read(array, dims, points):
    """(values, inside) of one access at every point."""
    inside, at = np.ones(points["#"], bool), []
    for index, size in zip(dims, array.shape, strict=True):
        position, exists = values(index, points)
        inside &= exists & (position >= 0) & (position < size)
        at.append(np.clip(position, 0, max(size - 1, 0)))
    if array.size == 0:
        return np.zeros(points["#"], array.dtype), np.zeros(points["#"], bool)
    return np.broadcast_to(array[tuple(at)], points["#"]), inside


def box(extents):
    """Every point of the loops, as one vector per loop."""
    grid = np.indices(tuple(extents.values())).reshape(
        len(extents), int(np.prod([*extents.values()]))
    )
    return {"#": grid.shape[1], **dict(zip(extents, grid, strict=True))}


def alive(rule, points, operands):
    """Return where symbols are in range and guards hold; symbols are added to the points."""
    exists = np.ones(points["#"], bool)
    for symbol in rule.symbols:
        number, _ = read(operands[symbol.operand], symbol.dims, points)
        number = number.astype(np.int64)
        if symbol.mode == rows.DROP:
            exists &= (number >= 0) & (number <= symbol.high)
        points[symbol.name] = np.clip(number, 0, symbol.high)
    for guard in rule.guards:
        exists &= values(guard.loop, points)[0] == values(guard.index, points)[0]
    return exists


def point(rule, node, reads, points):
    """Return the values of one iteration, one array per result."""
    name = rule.primitive
    if BUILDERS[name] in (pointwise.pointwise, pointwise.copies, pointwise.bitcast):
        if BUILDERS[name] is pointwise.copies and len(node.signature.results) > 1:
            return reads
        found = evaluate.apply(name, node.binding, (), reads)
        return [np.asarray(x) for x in found]
    if name == "positions":
        strides = node.signature.param("strides")
        loops = [points[f"d{d}"] for d in range(len(strides))]
        total = sum((s + at) * n for s, at, n in zip(reads, loops, strides, strict=True))
        return [total >> 32, total & 0xFFFFFFFF]
    if name == "iota":
        return [points[f"d{node.signature.param('dimension')}"]]
    if name == "scatter-sub":
        return [-reads[0]]
    if rule.combine == rows.SUM and len(reads) == 2:
        return [reads[0] * reads[1]]
    return reads[: len(rule.results)]


def start(rule, operands, shape, dtype, *, number=0):
    """Return result `number` before any iteration."""
    if isinstance(rule.init, Access):
        several = number if rule.combine == rows.USER else 0
        return np.broadcast_to(operands[rule.init.operand + several], shape).astype(dtype)
    number = identity(rule.combine, dtype) if rule.init is None else rule.init
    return np.full(shape, number, dtype)


def flat(shape, at, count):
    """Positions in the flattened result."""
    if not shape or not count:
        return np.zeros(count, int)
    return np.ravel_multi_index(at, shape)


def join(rule, result, at, found):
    """Return the result with the values of the existing points combined into it."""
    out, at = result.reshape(-1).copy(), flat(result.shape, at, len(found))
    if rule.combine in UFUNCS and not rule.prefix and (rule.reduced or rule.init is not None):
        ufunc = UFUNCS[rule.combine]
        ufunc = np.bitwise_xor if ufunc is np.logical_xor and out.dtype != bool else ufunc
        ufunc.at(out, at, found.astype(out.dtype))
    else:
        out[at] = found
    return out.reshape(result.shape)


def sign_of(rule, node):
    """1 where the largest value is the best one, -1 where the smallest is."""
    if rule.combine in (rows.ARGMAX, rows.ARGMIN):
        return 1 if rule.combine == rows.ARGMAX else -1
    return 1 if node.binding[1]["select_prim"].name in ("ge", "gt") else -1


def best(sign, result, at, found, least=None):
    """Return every index's payload of the best value, the first among equals; NaN is best.

    Args:
      least: where a NaN is not, the value before the first one, whose payload stands in `result`.
    """
    out = result.reshape(-1).copy()
    leader = {} if least is None else dict.fromkeys(range(out.size), least)
    beats = operator.gt if sign > 0 else operator.lt
    for key, value, position in zip(flat(result.shape, at, len(found[0])), *found, strict=True):
        first = least is None and value != value and leader.get(key) == leader.get(key)
        if key not in leader or first or beats(value, leader[key]):
            leader[key] = value
            out[key] = position
    return out.reshape(result.shape)


def user_function(node, name="jaxpr"):
    """Return a user's function on vectors; reductions store it open or closed."""
    params = node.binding[1]
    body = params[name]
    closed = hasattr(body, "consts")
    consts = params.get(name.replace("jaxpr", "consts"), ())
    body = body if closed else ClosedJaxpr(body, consts)
    return jax.vmap(jaxpr_as_fun(body))


def folded(function, results, at, found):
    """Fold the user's function over all points of an index, one after the other."""
    outs = [r.reshape(-1).copy() for r in results]
    keys = flat(results[0].shape, at, len(found[0]))
    order = np.argsort(keys, kind="stable")
    first = np.searchsorted(keys[order], keys[order])
    for turn in range(int((np.arange(len(keys)) - first).max(initial=-1)) + 1):
        now = order[np.arange(len(keys)) - first == turn]
        joined = function(*(o[keys[now]] for o in outs), *(f[now] for f in found))
        for out, value in zip(outs, joined, strict=True):
            out[keys[now]] = np.asarray(value)
    return [o.reshape(r.shape) for o, r in zip(outs, results, strict=True)]


def accumulated(rule, result):
    """Return the running combination along the prefix loop."""
    loop, reverse = rule.prefix
    axis = [index.loop for index in rule.results[0]].index(loop)
    result = np.flip(result, axis) if reverse else result
    result = UFUNCS[rule.combine].accumulate(result, axis, result.dtype)
    return np.flip(result, axis) if reverse else result


def meaning(rule, node, operands, types):
    """Return the results of one row."""
    points = box(rule.extents)
    exists = alive(rule, points, operands)
    results = [start(rule, operands, *type_, number=k) for k, type_ in enumerate(types)]
    for term in rule.terms:
        pairs = [read(operands[a.operand], a.dims, points) for a in term]
        here = exists & np.all([inside for _, inside in pairs], axis=0) if pairs else exists
        found = point(rule, node, [v for v, _ in pairs], points)
        if rule.combine == rows.USER:
            at = tuple(values(index, points)[0][here] for index in rule.results[0])
            chosen = [value[here] for value in found]
            if rule.primitive == "select_and_gather_add":
                sign, keys = sign_of(rule, node), pairs[1][0][here]
                return [best(sign, results[0], at, (keys, *chosen), least=-sign * np.inf)]
            return folded(user_function(node), results, at, chosen)
        for number, dims in enumerate(rule.results):
            at = tuple(values(index, points)[0][here] for index in dims)
            if rule.combine in (rows.ARGMAX, rows.ARGMIN):
                where = points[rule.reduced[0]][here]
                chosen = found[0][here], where
                results[number] = best(sign_of(rule, node), results[number], at, chosen)
            else:
                made = np.broadcast_to(found[number], here.shape)[here]
                results[number] = join(rule, results[number], at, made)
    return [accumulated(rule, r) for r in results] if rule.prefix else results


def by_blocks(rule, node, operands, types):
    """Run a row with whole loops: the primitive on the block of every other point."""
    inner = {*rule.whole, *(rule.reduced if rule.combine == rows.TOP else ())}
    outer = {name: extent for name, extent in rule.loops if name not in inner}
    results = [np.zeros(shape, dtype) for shape, dtype in types]
    for point_ in itertools.product(*(range(n) for n in outer.values())):
        at = dict(zip(outer, point_, strict=True))

        def block(dims, at=at):
            return tuple(
                slice(at[i.loop], at[i.loop] + 1) if i.loop in at else slice(None) for i in dims
            )

        local = [operands[k][block(dims)] for k, dims in sorted(rule.operands.items())]
        made = evaluate.apply(rule.primitive, node.binding, (), local)
        for result, dims, value in zip(results, rule.results, made, strict=True):
            result[block(dims)] += np.asarray(value).astype(result.dtype)
    return results


def by_rows(rule, node, operands, types):
    """Return the group of each row: the first group whose end is behind the row."""
    begin, sizes = operands
    ((shape, dtype),) = types
    found = np.full(shape, 1 << 30, dtype)
    for place in np.ndindex(*shape):
        ends = itertools.accumulate(sizes[place[:-1]].tolist())
        behind = [g for g, end in enumerate(ends) if begin + place[-1] < end]
        found[place] = behind[0] if behind else found[place]
    return [found]


def by_windows(rule, node, operands, types):
    """Select and scatter: every element is compared, as each tap r, with its window's best."""
    points = box({name: n for name, n in rule.loops if name not in rule.whole})
    scatters = rule.combine == rows.SUM
    source, block = rule.terms[0] if scatters else reversed(rule.terms[0])
    found, exists = read(operands[source.operand], source.dims, points)
    taps = {name: n for name, n in rule.loops if name in rule.whole}
    inner, best, at_best = box(taps), None, 0
    sign = sign_of(rule, node) if scatters else 1
    for number in range(inner["#"]):
        tap = {name: inner[name][number] for name in taps}
        value, inside = read(operands[block.operand], block.dims, {**points, **tap})
        # XLA keeps what it has where that is as large, and takes the next one otherwise: after a
        # NaN also padding, which JAX writes out for all but the plain select_and_scatter.
        pads = inside | (rule.primitive != "select_and_scatter")
        value = np.where(inside, sign * value, -np.inf)
        taken = best is None or (pads & ~(best >= value))
        best = np.where(taken, value, best)
        at_best = np.where(taken, number, at_best)
    own = [points[name.replace("q", "r")] for name in taps]
    own = np.ravel_multi_index(own, tuple(taps.values())) if taps else 0
    here = exists & (at_best == own)
    at = tuple(values(index, points)[0][here] for index in rule.results[0])
    if scatters:
        return [join(rule, start(rule, operands, *types[0]), at, found[here])]
    begun = [start(rule, operands, *types[0])]
    return folded(user_function(node, "scatter_jaxpr"), begun, at, [found[here]])
