"""Train steps whose sizes are named: ours, and one of other packages."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardalg.algebra.dims import dims
from shardalg.graph.ops.canonicalize.normalise import normalise
from shardalg.graph.tracing.trace import trace
from shardalg.models import training
from shardalg.models.transformer import Config
from shardalg.sizes.symbolic.lift import compare, lift
from shardalg.sizes.symbolic.retrace import Retrace
from tests.calls_made import calls_made


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
    """Return declared dimensions: each size of a model with distinct sizes has a name."""
    letters = "BSMHNDV" + "L" * form["scan"]
    symbols = dims(" ".join(letters), hint=[hints[n] for n in letters])
    known = {getattr(PRIMES, s.name): s for s in symbols}
    shapes = numbers_of_model(name, replace(PRIMES, **form))
    return [tuple(known[n] for n in shape) for shape in shapes]


@pytest.mark.sampled(1)
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


ONE_TRACE = {
    "attention": ("attention", FORMS["unrolled"]),
    "layer": ("layer_gradient", FORMS["unrolled"]),
    "step": ("train_step", FORMS["unrolled"]),
    "loop": ("train_step", FORMS["remat"]),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "form"), ONE_TRACE.values(), ids=ONE_TRACE)
def test_one_trace_is_enough_for_a_transformer(name, form):
    hints = {"B": 8, "S": 16, "M": 32, "H": 64, "N": 8, "D": 4, "V": 64, "L": 3}
    lifted = lift(model_graph(name, Config(**hints, **form)), model_dims(name, form, hints))
    assert not lifted.constants
    layers = 5 if form["scan"] else 3
    other = {"B": 9, "S": 10, "M": 21, "H": 25, "N": 6, "D": 14, "V": 33, "L": layers}
    assert compare(lifted, Retrace(model_graph(name, Config(**other, **form)), other)) is None


def adam_step(sizes):
    """Return a step of equinox's MLP under optax's Adam, with its arguments."""
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
    assert [(c.size, c.source.split(":")[0]) for c in lifted.constants] == [
        (7, "test_lift_models.py")
    ]


def test_lifting_a_train_step_is_quick(show):
    form, hints = FORMS["scanned"], dict.fromkeys("BSMHNDV", 64) | {"L": 3}
    graph = model_graph("train_step", Config(**hints, **form))
    declared = model_dims("train_step", form, hints)
    _, calls = calls_made(lambda: lift(graph, declared))
    show(f"lift of {len(graph.nodes)} nodes: {calls} calls")
    assert calls <= 400 * len(graph.nodes)
