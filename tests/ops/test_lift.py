"""Formulas of every dimension, against the shapes of the same function traced at other sizes."""

import time
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from shardalg.algebra.dims import SymbolError, dims, evaluate, second_hints
from shardalg.graph.trace import trace
from shardalg.models import training
from shardalg.models.transformer import Config
from shardalg.ops.lift import compare, lift
from shardalg.ops.normalise import normalise
from shardalg.ops.retrace import Retrace

HINTS = {"B": 6, "S": 40, "D": 14, "M": 64, "H": 58, "E": 8, "V": 50, "C": 4, "F": 10, "K": 3}


@dataclass(frozen=True)
class Function:
    """A function, the dimensions of its arguments as text, and the formulas of its results.

    `divides` says that it can only be traced where sizes divide as they do at the hints.
    `constants`: sizes left as numbers, True for those that change with the arguments.
    """

    fn: object
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    constants: tuple[tuple[int, bool], ...] = ()
    divides: bool = False
    integers: tuple[int, ...] = ()

    def symbols(self, hints=HINTS):
        words = sympy.sympify(f"[{','.join(filter(None, self.arguments))}]", locals=RAW)
        names = sorted({str(s) for e in words for s in getattr(e, "free_symbols", ())})
        return dict(zip(names, dims(" ".join(names), hint=[hints[n] for n in names]), strict=True))

    def declared(self, hints=HINTS):
        known = self.symbols(hints)
        return [parsed(text, known) for text in self.arguments]

    def graph(self, values, hints=HINTS):
        shapes = [[evaluate(size, values) for size in shape] for shape in self.declared(hints)]
        kinds = ["int32" if k in self.integers else "float32" for k in range(len(shapes))]
        pairs = zip(shapes, kinds, strict=True)
        return normalise(trace(self.fn, *(jax.ShapeDtypeStruct(*pair) for pair in pairs)))

    def retraced(self, values):
        return Retrace(self.graph(values), values)


RAW = {name: sympy.Symbol(name) for name in HINTS}  # S and E are something else to sympy


def parsed(text, known):
    found = sympy.sympify(f"({text},)" if text else "()", locals=known)
    return tuple(int(e) if e.is_Integer else e for e in found)


def split_heads(x, w):
    return (x @ w).reshape(*x.shape[:2], 8, -1).sum(1)


def sized_heads(x, w):
    return (x @ w).reshape(*x.shape[:2], -1, 16).sum(1)


def rope(x):
    first, second = jnp.split(x, 2, -1)
    turned = jnp.concatenate([-second, first], -1)
    return turned * jnp.cos(jnp.arange(x.shape[1], dtype=x.dtype))[None, :, None]


def halves_by_index(x):
    half = x.shape[1] // 2
    return jnp.split(x, [half, half + 4], 1)


def mixture(x, gate, w):
    """Experts with a capacity that Python computes."""
    experts = gate.shape[1]
    capacity = 2 * x.shape[1] // experts
    chosen = jax.nn.one_hot(jnp.argmax(x @ gate, -1), experts)
    place = (jnp.cumsum(chosen, 1) * chosen).sum(-1).astype(jnp.int32)
    sent = chosen[..., None] * jax.nn.one_hot(place, capacity)[..., None, :]
    return jnp.einsum("gsec,gsm->egcm", sent, x) @ w[:, None]


def conv(x, k, padding="SAME", stride=2):
    return lax.conv_general_dilated(x, k, (stride,), padding)


def attention_gradient(q, k, v):
    attend = partial(jax.nn.dot_product_attention, is_causal=True)
    return jax.grad(lambda q: attend(q, k, v).sum())(q)


def masked(x):
    size = x.shape[1]
    return jnp.where(np.tril(np.ones((size, size), bool)), x[:, :, None], 0.0)


def row_by_row(x):
    def add(i, y):
        return y + lax.dynamic_slice_in_dim(x, i, 1, 0)[0]

    return lax.fori_loop(0, x.shape[0], add, x[0])


def shifted(x):
    return x[:, :-1] * x[:, 1:], x[:, ::2], x[:, :10], x[:, 5:], x[:, -3:], x[:, : x.shape[1] // 2]


def moved(x):
    return jnp.flip(x, 1), jnp.tile(x, (1, 3)), jnp.pad(x, ((0, 0), (2, 1))), jnp.roll(x, 3, 1)


def whole(x):
    return lax.top_k(x, 4)[0], jnp.sort(x, 1), jnp.cumsum(x, 1), jnp.fft.rfft(x), jnp.fft.irfft(x)


VALID = partial(conv, padding="VALID")
X = ("B,S",)
SEVERAL = {
    "python numbers": Function(
        lambda x: x * x.shape[-1] ** -0.5 / np.sqrt(x.shape[0]), X, ("B,S",)
    ),
    "attention": Function(attention_gradient, ("B,S,C,D",) * 3, ("B,S,C,D",)),
    "flatten": Function(lambda x, w: x.reshape(-1, x.shape[-1]) @ w, ("B,S,M", "M,H"), ("B*S,H",)),
    "split heads": Function(
        split_heads, ("B,S,M", "M,M"), ("B,8,M/8",), ((8, False),), divides=True
    ),
    "sized heads": Function(
        sized_heads, ("B,S,M", "M,M"), ("B,M/16,16",), ((16, False),), divides=True
    ),
    "rope": Function(rope, ("B,S,D",), ("B,S,D",), divides=True),
    "rope of 2D": Function(rope, ("B,S,2*D",), ("B,S,2*D",)),
    "microbatches": Function(
        lambda x: x.reshape(2, -1, x.shape[1]).sum(1), X, ("2,S",), ((2, False),), divides=True
    ),
    "shifted": Function(
        shifted,
        X,
        ("B,S-1", "B,floor(S/2+1/2)", "B,10", "B,S-5", "B,3", "B,S/2"),
        ((10, False), (3, False)),
        divides=True,
    ),
    "moved": Function(moved, X, ("B,S", "B,3*S", "B,S+3", "B,S"), ((3, False),)),
    "whole": Function(whole, X, ("B,4", "B,S", "B,S", "B,floor(S/2)+1", "B,2*S-2"), ((4, False),)),
    "pieces": Function(
        halves_by_index, X, ("B,S/2", "B,4", "B,S/2-4"), ((4, False),), divides=True
    ),
    "concatenate": Function(
        lambda x: jnp.concatenate([jnp.zeros((x.shape[0], 10)), x, x], 1),
        X,
        ("B,2*S+10",),
        ((10, False),),
    ),
    "convolution": Function(conv, ("B,C,S", "F,C,K"), ("B,F,floor(S/2+1/2)",)),
    "valid convolution": Function(VALID, ("B,C,S", "F,C,3"), ("B,F,floor(S/2-1/2)",)),
    "valid convolution, even": Function(
        VALID, ("B,C,S", "F,C,3"), ("B,F,floor(S/2-1/2)",), divides=True
    ),
    "gradient of a kernel": Function(
        jax.grad(lambda k, x: conv(x, k).sum()), ("F,C,K", "B,C,S"), ("F,C,K",)
    ),
    "pooling": Function(
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3), (1, 2), "SAME"),
        X,
        ("B,floor(S/2+1/2)",),
    ),
    "cond": Function(
        lambda x: lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: x, x)[:, None], X, ("B,1,S",)
    ),
    "embedding": Function(
        lambda e, t: e[t] + e[jnp.arange(t.shape[1])], ("V,M", "B,S"), ("B,S,M",), integers=(1,)
    ),
    "mask of numpy": Function(masked, X, ("B,S,S",)),
    "loop over rows": Function(row_by_row, X, ("S",)),
    "vmap": Function(jax.vmap(lambda x: jnp.outer(x, x)), X, ("B,S,S",)),
    "declared number": Function(lambda x, w: x @ w, ("B,12", "12,H"), ("B,H",)),
}


@pytest.mark.parametrize("case", SEVERAL.values(), ids=SEVERAL)
def test_formulas_are_the_shapes_of_a_retrace(case):
    graph, symbols = case.graph({}), case.symbols()
    second = case.retraced(second_hints(symbols.values(), multiples=case.divides))
    lifted = lift(graph, case.declared(), second)
    expected = [parsed(text, symbols) for text in case.results]
    found = [lifted.shapes[v] for v in graph.results]
    for ours, theirs in zip(found, expected, strict=True):
        assert len(ours) == len(theirs)
        assert all(sympy.expand(a - b) == 0 for a, b in zip(ours, theirs, strict=True)), found
    assert {(c.size, c.varies) for c in lifted.constants} == set(case.constants)
    for factor in (2, 6):  # neither the hints nor the sizes that the formulas were read off
        more = 0 if case.divides else factor - 1
        values = {n: s.hint * (factor + k) + more for k, (n, s) in enumerate(symbols.items())}
        assert compare(lifted, case.retraced(values)) is None


STEPS = {
    "flatten": lambda x: x.reshape(-1, *x.shape[2:]) if x.ndim > 1 else x,
    "split": lambda x: x.reshape(*x.shape[:-1], 2, -1),
    "cut": lambda x: x[1:],
    "drop": lambda x: x[..., :-1],
    "pad": lambda x: jnp.pad(x, [(1, 2)] + [(0, 0)] * (x.ndim - 1)),
    "twice": lambda x: jnp.concatenate([x, x], -1),
    "turn": lambda x: x.T,
    "every other": lambda x: x[::2],
    "outer": lambda x: x[..., None] * x[:1, ..., :, None].mean(-2, keepdims=True),
    "sum": lambda x: x.sum(0) if x.ndim > 1 else x,
}


@given(steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6))
@settings(max_examples=25)
def test_chains_of_layout_operators(steps):
    def fn(x):
        for name in steps:
            x = STEPS[name](x)
        return x

    case = Function(fn, ("8*B,8*S,16*D",), ())
    values = ({"B": 7, "S": 41, "D": 17}, {"B": 10, "S": 47, "D": 9})
    try:
        second, third = (case.retraced(v) for v in values)
    except TypeError:  # an odd size has no halves
        return
    lifted = lift(case.graph({}), case.declared(), second)
    assert compare(lifted, third) is None


def numbers_of_model(name, config):
    """Shapes of the arguments."""
    return [leaf.shape for leaf in jax.tree.leaves(training.part(name).arguments(config))]


def model_graph(name, config):
    part = training.part(name)
    return normalise(trace(part.function(config), *part.arguments(config)))


PRIMES = Config(B=5, S=7, M=11, H=13, N=17, D=19, V=23, L=3)
FORMS = {
    "unrolled": {"scan": False},
    "scanned": {"scan": True},
    "remat": {"scan": True, "remat": True},
}


def model_dims(name, form, hints):
    """Declared dimensions: each number of a model whose sizes are all different is a name."""
    letters = "BSMHNDV" + "L" * form["scan"]
    symbols = dims(" ".join(letters), hint=[hints[n] for n in letters])
    known = {getattr(PRIMES, s.name): s for s in symbols}
    shapes = numbers_of_model(name, replace(PRIMES, **form))
    return [tuple(known[n] for n in shape) for shape in shapes]


@pytest.mark.parametrize("equal", [False, True], ids=["hints", "equal hints"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_names_of_a_train_step_travel_along_loops(form, equal):
    plain = {"B": 8, "S": 16, "M": 32, "H": 64, "N": 8, "D": 4, "V": 64}
    hints = (dict.fromkeys(plain, 64) if equal else plain) | {"L": 3}
    other = {
        "B": 9,
        "S": 10,
        "M": 21,
        "H": 25,
        "N": 6,
        "D": 14,
        "V": 33,
        "L": 5 - 2 * (not form["scan"]),
    }
    graph = model_graph("train_step", Config(**hints, **form))
    declared = model_dims("train_step", form, hints)
    second = Retrace(model_graph("train_step", Config(**other, **form)), other)
    lifted = lift(graph, declared, second)
    assert compare(lifted, second) is None
    assert not lifted.constants
    names = dict(zip((v.name for v in graph.values), lifted.shapes, strict=True))
    logits = next(shape for name, shape in names.items() if name.startswith("logits"))
    assert [str(s) for s in logits] == ["B", "S", "V"]
    assert {str(t) for t in lifted.trip_counts} == ({"1", "L"} if form["scan"] else {"1"})


@pytest.mark.parametrize("name", ["attention", "layer_gradient"])
def test_one_trace_is_enough_for_a_layer(name):
    hints = {"B": 8, "S": 16, "M": 32, "H": 64, "N": 8, "D": 4, "V": 64}
    lifted = lift(
        model_graph(name, Config(**hints, L=3)), model_dims(name, FORMS["unrolled"], hints)
    )
    other = {"B": 9, "S": 10, "M": 21, "H": 25, "N": 6, "D": 14, "V": 33}
    assert compare(lifted, Retrace(model_graph(name, Config(**other)), other)) is None
    assert not lifted.constants


def swapped(x):
    return x.reshape(x.shape[1], 2, x.shape[0])


def decided(x):
    return jnp.pad(x, ((0, 0), (0, 3))) if x.shape[1] > 50 else x * 2


WRONG = {
    "meet": (
        Function(lambda x, y: x + y, ("B,S", "C,S"), ()),
        {"C": 6},
        "add:1.*: B and C, both 6",
    ),
    "number": (Function(lambda x, w: x @ w, ("B,M", "64,H"), ()), {}, "dot_general.*M and 64"),
    "product": (
        Function(
            lambda x, y: x.reshape(-1) + y,
            (
                "B,C",
                "M",
            ),
            (),
        ),
        {"M": 24},
        r"two sizes meet.*(M and B\*C|B\*C and M)",
    ),
    "hint of 1": (Function(jnp.tanh, ("B",), ()), {"B": 1}, "hint of B is 1"),
    "if": (Function(decided, X, ()), {}, r"mul.*test_lift.py:\d+ at the hints, pad.*test_lift.py"),
    "slice of all": (Function(lambda x: x[:, :40] * 2, X, ()), {}, "slice.* at other sizes"),
    "swap": (Function(swapped, ("B,S,2",), ()), {"S": 6}, r"test_lift.py:\d+.*\[B, 2, S\] by the"),
}


@pytest.mark.parametrize(("case", "hints", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_named_says_where(case, hints, message):
    hints = HINTS | hints
    declared = case.declared(hints)
    values = second_hints(case.symbols(hints).values())
    try:
        second = case.retraced(values)
    except TypeError:  # the function itself cannot be traced where the two sizes differ
        second = None
    with pytest.raises(SymbolError, match=message):
        lift(case.graph({}, hints), declared, second)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ([], "of 0 arguments for 1: x"),
        ([(3, 4)], r"x \[3, 4\] = \[3, 4\], traced as \[6, 40\]"),
        ([(6,)], r"x \[6\]"),
        ([(dims("B", hint=6)[0], sympy.Symbol("S"))], "S has no hint"),
    ],
)
def test_declared_dimensions_must_fit(declared, message):
    graph = normalise(trace(lambda x: x * 2, jax.ShapeDtypeStruct((6, 40), "float32")))
    with pytest.raises(SymbolError, match=message):
        lift(graph, declared)


def test_a_size_computed_in_python_is_listed_with_its_line():
    case = Function(mixture, ("B,S,M", "M,E", "E,M,H"), ())
    second = case.retraced(second_hints(case.symbols().values()))
    lifted = lift(case.graph({}), case.declared(), second)
    (constant,) = lifted.constants
    assert (constant.size, constant.varies) == (10, True)
    line = mixture.__code__.co_firstlineno + 6
    assert str(constant).startswith(f"size 10 at test_lift.py:{line} is a constant in the formulas")
    found = compare(lifted, second)
    assert (found.kind, found.source) == ("constant", f"test_lift.py:{line}")


def test_without_a_second_trace_a_wrong_reading_is_found_by_comparing():
    case = Function(lambda x: x[:, :10], X, ())
    lifted = lift(case.graph({}), case.declared())
    assert str(lifted.shapes[lifted.graph.results[0]]) == "(B, S/4)"  # the likelier reading
    found = compare(lifted, case.retraced({"B": 7, "S": 44}))
    assert (found.kind, found.node) == ("size", 0)
    assert "[B, S/4] by the formulas, hence [7, 11]" in str(found)


def adam_step(sizes):
    """A step of equinox's MLP under optax's Adam, with its arguments."""
    equinox, optax = pytest.importorskip("equinox"), pytest.importorskip("optax")
    widths = sizes["M"], sizes["C"], sizes["H"]
    model = equinox.filter_eval_shape(equinox.nn.MLP, *widths, 2, key=jax.random.key(0))
    params, static = equinox.partition(model, lambda x: isinstance(x, jax.ShapeDtypeStruct))
    optimizer = optax.adam(1e-2)

    def step(params, state, x, y):
        def loss(params):
            made = jax.vmap(equinox.combine(params, static))(x)
            return jnp.mean((made[:, None] - y) ** 2) + (jnp.arange(7) * made.max()).sum()

        grads = jax.grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    x = jax.ShapeDtypeStruct((sizes["B"], sizes["M"]), "float32")
    y = jax.ShapeDtypeStruct((sizes["B"], 9, sizes["C"]), "float32")
    return step, (params, jax.eval_shape(optimizer.init, params), x, y)


def test_a_step_of_other_packages():
    names = {"B": 5, "M": 7, "C": 11, "H": 13}
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(adam_step(names)[1])]
    hints = {"B": 8, "M": 16, "C": 8, "H": 16}
    symbols = dims(" ".join(hints), hint=tuple(hints.values()))
    known = {names[s.name]: s for s in symbols}
    declared = [tuple(known.get(n, n) for n in shape) for shape in shapes]
    traced = {}
    for key, values in {"hints": hints, "second": {"B": 6, "M": 10, "C": 14, "H": 22}}.items():
        step, arguments = adam_step(values)
        traced[key] = Retrace(normalise(trace(step, *arguments)), values)
    lifted = lift(traced["hints"].graph, declared, traced["second"])
    assert compare(lifted, traced["second"]) is None
    assert [(c.size, c.source.split(":")[0]) for c in lifted.constants] == [(7, "test_lift.py")]


def test_lifting_a_train_step_is_quick(show):
    form, hints = FORMS["scanned"], dict.fromkeys("BSMHNDV", 64) | {"L": 3}
    graph = model_graph("train_step", Config(**hints, **form))
    declared = model_dims("train_step", form, hints)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        lift(graph, declared)
        times.append(time.perf_counter() - start)
    show(f"lift of {len(graph.nodes)} nodes: {min(times) * 1e3:.1f} ms, first {times[0] * 1e3:.1f}")
    assert min(times) < 0.1
