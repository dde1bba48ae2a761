"""Every row executed literally is JAX's primitive; a row that is changed a little is not."""

from collections import Counter
from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest
from jax import lax

from shardalg.graph import evaluate
from shardalg.graph.ops import rule as rows
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import Access
from shardalg.graph.tracing.trace import trace
from tests.ops import cases, random_cases
from tests.ops.meaning import by_blocks, by_rows, by_windows, meaning


@dataclass
class Run:
    """One traced node with concrete operands and JAX's results."""

    signature: object
    binding: object
    operands: list
    results: list

    def types(self):
        return [(r.shape, r.dtype) for r in self.results]


def runs(fn, args):
    """Return the nodes of `fn`, evaluated one after the other."""
    graph = trace(fn, *args)
    env = dict(graph.constants)
    env.update(zip(graph.arguments, args, strict=True))
    for node in graph.nodes:
        operands = [env[v] for v in node.operands]
        made = evaluate.apply(node.primitive, graph.bindings[node.index], (), operands)
        env.update(zip(node.results, made, strict=True))
        is_key = any("key" in v.dtype for v in (*node.signature.operands, *node.signature.results))
        if not is_key:
            results = [np.asarray(m) for m in made]
            yield Run(
                node.signature,
                graph.bindings[node.index],
                [np.asarray(o) for o in operands],
                results,
            )


WINDOWS = ("select_and_scatter", "select_and_scatter_add")


def literal(run, table_rows):
    """Return the rows' results for the operands of a run."""
    made = []
    for rule in table_rows:
        types = run.types()[len(made) : len(made) + len(rule.results)]
        execute = by_blocks if rule.whole else meaning
        execute = by_windows if rule.primitive in WINDOWS else execute
        execute = by_rows if rule.primitive == "row_groups" else execute
        made += execute(rule, run, run.operands, types)
    return made


def same(ours, theirs):
    return len(ours) == len(theirs) and all(
        a.shape == b.shape and np.allclose(a, b, rtol=1e-6, atol=1e-7, equal_nan=True)
        for a, b in zip(ours, theirs, strict=True)
    )


def drawn(group, seed):
    with jax.enable_x64(True):
        for fn, args in group(np.random.default_rng(seed)):
            yield from runs(fn, args)


SEEDS = [(group, 0) for group in cases.GROUPS] + [(cases.pointwise, 1), (cases.shifted, 1)]
SEEDS += [(group, 100) for group in random_cases.GROUPS]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("group", "seed"), SEEDS, ids=lambda v: getattr(v, "__name__", str(v)))
def test_a_row_executed_literally_is_the_primitive(group, seed):
    counts = Counter()
    for run in drawn(group, seed):
        table_rows = rules(run.signature)
        assert table_rows is not None, run.signature.primitive
        with jax.enable_x64(True):
            ours = literal(run, table_rows)
        assert same(ours, run.results), f"{table_rows[0]} of {run.signature}, seed {seed}"
        counts[run.signature.primitive] += 1
    assert counts


def shift_read(rule):
    """Shift the first read index with a loop by one."""
    term = rule.terms[0]
    number, access = next((n, a) for n, a in enumerate(term) if any(i.terms for i in a.dims))
    dim = next(d for d, i in enumerate(access.dims) if i.terms)
    index = access.dims[dim]
    moved = replace(index, constant=index.constant + 1)
    dims = (*access.dims[:dim], moved, *access.dims[dim + 1 :])
    read = Access(access.operand, dims)
    return replace(rule, terms=((*term[:number], read, *term[number + 1 :]), *rule.terms[1:]))


def other_combine(rule):
    others = {rows.SUM: rows.MAX, rows.MAX: rows.MIN, rows.MIN: rows.MAX, rows.PRODUCT: rows.SUM}
    others |= {rows.ARGMAX: rows.ARGMIN, rows.OR: rows.AND, rows.PICK: rows.SUM}
    init = 0 if rule.combine == rows.PICK and rule.init is None else rule.init
    return replace(rule, combine=others[rule.combine], init=init)


def swap_result(rule):
    """Two result dimensions of one size change places."""
    first, second, *rest = rule.results[0]
    return replace(rule, results=((second, first, *rest),))


def drop_guard(rule):
    return replace(rule, guards=rule.guards[1:])


def other_window(rule):
    """Start the whole window one element later."""
    return replace(rule, symbols=tuple(replace(s, high=s.high - 1) for s in rule.symbols))


def other_direction(rule):
    return replace(rule, prefix=(rule.prefix[0], not rule.prefix[1]))


def without_init(rule):
    return replace(rule, init=None, linear=frozenset(), addends=frozenset())


# Every fault shows: the maxima stand in the first row, and no two reads are alike.
X = np.random.default_rng(7).normal(size=(5, 5))
IDS = np.array([4, 0, 2])


def take(x, i):
    return jax.numpy.take(x, i, axis=0)


def grow(x):
    return jax.lax.pad(x, np.float64(2.5), ((1, 1, 0), (0, 0, 0)))


def window(x):
    return jax.lax.reduce_window(x, -np.inf, jax.lax.max, (1, 2), (1, 1), "VALID")


kernel = X[:, :, None][:, :, :1] * np.ones(3)


def convolve(x, k):
    return jax.lax.conv_general_dilated(x, k, (1,), [(1, 1)])


def gradient(x):
    return jax.grad(lambda x: (window(x) * X[:, :4]).sum())(x)


def later_window(rule):
    """Start the window of candidates one element later."""
    term = tuple(Access(a.operand, tuple(map(_later, a.dims))) for a in rule.terms[0])
    return replace(rule, terms=(term,))


def _later(index):
    return index + 1 if any(name[0] == "q" for name in index.variables) else index


MUTATIONS = [
    (gradient, (X,), (later_window, shift_read)),
    (lambda x: x * 2, (X,), (shift_read, swap_result)),
    (lambda x: x.T @ x, (X,), (shift_read, other_combine)),
    (lambda x, y: x @ y, (X, X + 1), (swap_result, shift_read)),
    (lambda x: x.sum(1), (X,), (shift_read, other_combine)),
    (lambda x: x.max(0), (X - 9 * np.arange(5)[:, None],), (shift_read, other_combine)),
    (lambda x: jax.lax.argmax(x, 0, np.int32), (X,), (shift_read, other_combine)),
    (lambda x: jax.lax.cumsum(x, 1), (X,), (other_direction, shift_read)),
    (lambda x: x.reshape(25), (X,), (shift_read,)),
    (lambda x: x[1:3], (X,), (shift_read,)),
    (lambda x: jax.lax.rev(x, (0,)), (X,), (shift_read,)),
    (grow, (X,), (shift_read, without_init)),
    (lambda x: jax.numpy.concatenate([x, 2 * x]), (X,), (shift_read,)),
    (take, (X, IDS), (drop_guard, other_window, shift_read)),
    (lambda x, i: x.at[i].add(x[:3] * 3), (X, IDS), (drop_guard, other_combine, without_init)),
    (lambda x: jax.lax.dynamic_slice(x, (2, 0), (2, 5)), (X,), (drop_guard, shift_read)),
    (window, (X,), (shift_read, other_combine)),
    (convolve, (X[None], kernel), (shift_read, other_combine)),
]


@pytest.mark.parametrize(("fn", "args", "mutations"), MUTATIONS)
def test_a_changed_row_is_caught(fn, args, mutations):
    with jax.enable_x64(True):
        run = list(runs(fn, args))[-1]
        (rule,) = rules(run.signature)
        assert same(literal(run, (rule,)), run.results)
        for mutate in mutations:
            mutant = mutate(rule)
            assert not same(literal(run, (mutant,)), run.results), f"{mutate.__name__}: {mutant}"


@pytest.mark.parametrize("pool", [(lax.max, -np.inf), (lax.min, np.inf)])
def test_a_window_of_what_loses_gathers_nothing(pool):
    """Found by seed 4: the infinity that a window starts from, with 0, wins every tie."""
    how, worst = pool

    def tangent(x, t):
        def pooled(x):
            return lax.reduce_window(x, worst, how, (2,), (2,), ((1, 1),))

        return jax.jvp(pooled, (x,), (t,))[1]

    x = np.array([0, 0, 1, worst, worst, worst, worst, 2], np.float32)
    made = runs(tangent, (x, np.ones_like(x)))
    run = next(r for r in made if r.signature.primitive == "select_and_gather_add")
    assert same(literal(run, rules(run.signature)), run.results)


@pytest.mark.parametrize("find", [lax.argmin, lax.argmax])
def test_a_nan_is_the_best_value_wherever_it_stands(find):
    """Found by seed 4: the NaN came behind a number."""
    x = np.array([[1, 2, np.nan, np.nan], [np.nan, 1, 2, 0], [1, 0, 3, 2]], np.float32)
    (run,) = runs(lambda x: find(x, 1, np.int32), (x,))
    assert same(literal(run, rules(run.signature)), run.results)
