"""Twelve train steps and functions as their users write them: no line is there for the planner.

Each gives the function, its arguments (made anew, since a step may update them), its keyword
arguments, and what it is planned with beside them: nothing where the program says all itself.
"""

import functools
from types import MappingProxyType
from typing import NamedTuple

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

RNG = np.random.default_rng(0)
X, Y = (RNG.normal(size=(8, 8)).astype("float32") for _ in range(2))


class Call(NamedTuple):
    """A call: of `fn` with these arguments; `around` is a mesh that is set while it runs."""

    fn: object
    args: tuple
    kwargs: dict = MappingProxyType({})
    plan: dict = MappingProxyType({})
    around: object = None


def mesh(kind=AxisType.Auto, other=None):
    return jax.make_mesh((2, 2), ("data", "model"), axis_types=(kind, other or kind))


class Perceptron(nn.Module):
    """A block of linen with dropout."""

    width: int = 16

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.relu(nn.Dense(self.width, name="up")(nn.LayerNorm()(x)))
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(8, name="down")(x)


def linen_train_state():
    """Return a TrainState step; the `jit` has its shardings and donation."""
    model = Perceptron()
    params = model.init(jax.random.key(0), X)["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(1e-2))
    on = functools.partial(NamedSharding, mesh())
    kernels = jax.tree.map(lambda v: on(P(None, "model") if np.ndim(v) == 2 else P()), state)

    @functools.partial(
        jax.jit,
        in_shardings=(kernels, on(P("data")), on(P("data"))),
        out_shardings=(kernels, on(P())),
        donate_argnums=0,
    )
    def train_step(state, x, y):
        def loss_of(params):
            return jnp.mean((state.apply_fn({"params": params}, x) - y) ** 2)

        loss, grads = jax.value_and_grad(loss_of)(state.params)
        return state.apply_gradients(grads=grads), loss

    return Call(train_step, (state, X, Y))


def linen_keywords():
    """Return a step with static arguments by name, random keys by keyword, a batch as a dict."""
    model = Perceptron()
    variables = model.init(jax.random.key(0), X)

    @functools.partial(jax.jit, static_argnames=("train", "scale"))
    def apply(variables, batch, *, train, rngs, scale=2):
        return model.apply(variables, batch["x"], train=train, rngs=rngs) * scale

    keywords = {"train": True, "rngs": {"dropout": jax.random.key(1)}, "scale": 3}
    given = {"mesh": mesh(), "in_shardings": (None, P("data"))}
    return Call(apply, (variables, {"x": X}), keywords, given)


class Block(nnx.Module):
    """A block of nnx that keeps running means and the counts of its keys."""

    def __init__(self, rngs):
        self.up = nnx.Linear(8, 16, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.drop = nnx.Dropout(0.25, rngs=rngs)
        self.down = nnx.Linear(16, 8, rngs=rngs)

    def __call__(self, x):
        return self.down(self.drop(nnx.relu(self.norm(self.up(x)))))


class Stack(nnx.Module):
    """Blocks behind each other."""

    def __init__(self, rngs):
        self.layers = nnx.List([Block(rngs)])

    def __call__(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def nnx_train_step(model, optimizer, x, y):
    """One step, which updates both of its first arguments."""

    def loss_of(model):
        return jnp.mean((model(x) - y) ** 2)

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def nnx_state():
    model = Stack(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.sgd(1e-2, momentum=0.9), wrt=nnx.Param)


def nnx_jit():
    """`nnx.jit`, whose arguments are a module and an optimizer."""
    given = {"mesh": mesh(), "in_shardings": (None, None, P("data"), P("data"))}
    return Call(nnx.jit(nnx_train_step), (*nnx_state(), X, Y), plan=given)


def nnx_bare():
    """Return the same step without jit; shardings are a state of specs."""
    model, optimizer = nnx_state()
    specs = jax.tree.map(lambda v: P(None, "model") if v.ndim == 2 else P(), nnx.state(model))
    given = {"mesh": mesh(), "in_shardings": (specs, None, P("data"), P("data"))}
    return Call(nnx_train_step, (model, optimizer, X, Y), plan=given)


def equinox_step():
    model = eqx.nn.MLP(8, 8, 16, 1, key=jax.random.key(0))
    optimizer = optax.sgd(1e-2, momentum=0.9)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    def step(model, state, x, y):
        def loss_of(model):
            return jnp.mean((jax.vmap(model)(x) - y) ** 2)

        loss, grads = eqx.filter_value_and_grad(loss_of)(model)
        updates, state = optimizer.update(grads, state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), state, loss

    return step, (model, state, X, Y)


def equinox_filter_jit():
    """`eqx.filter_jit` with everything donated; a module of specs."""
    step, args = equinox_step()
    specs = jax.tree.map(
        lambda leaf: P("model") if eqx.is_array(leaf) and leaf.ndim == 2 else None, args[0]
    )
    given = {"mesh": mesh(), "in_shardings": (specs, None, P("data"), P("data"))}
    return Call(eqx.filter_jit(step, donate="all"), args, plan=given)


def equinox_bare():
    """Not jitted: the module holds a function and a number beside its arrays."""
    step, args = equinox_step()
    return Call(step, args, plan={"mesh": mesh(), "in_shardings": (None, None, "P('data')", None)})


def haiku_with_state():
    """haiku with state and random keys."""

    def forward(x):
        x = hk.BatchNorm(True, True, 0.9)(hk.Linear(16, name="up")(x), is_training=True)
        return hk.Linear(8, name="down")(jax.nn.relu(x))

    model = hk.transform_with_state(forward)
    params, state = model.init(jax.random.key(0), X)

    @jax.jit
    def step(params, state, x, y):
        def loss_of(params):
            out, kept = model.apply(params, state, None, x)
            return jnp.mean((out - y) ** 2), kept

        (loss, kept), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), kept, loss

    given = {"mesh": mesh(), "in_shardings": (None, None, P("data"), P("data"))}
    return Call(step, (params, state, X, Y), plan=given)


def optax_chain():
    """Plain JAX, a chain of optax, a static number by position."""
    params = [{"w": X.copy(), "b": np.zeros(8, "float32")} for _ in range(2)]
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))

    @functools.partial(jax.jit, static_argnums=3, donate_argnums=(0, 1))
    def step(params, state, x, repeats):
        def loss_of(params):
            h = x
            for _ in range(repeats):
                for layer in params:
                    h = jnp.tanh(h @ layer["w"] + layer["b"])
            return jnp.sum(h**2)

        updates, state = optimizer.update(jax.grad(loss_of)(params), state, params)
        return optax.apply_updates(params, updates), state

    arrays = jax.device_put(X, NamedSharding(mesh(), P("data", "model")))
    return Call(step, (params, optimizer.init(params), arrays, 2))


def explicit_mode():
    """Layouts are types: operators say theirs, and values are moved by hand."""
    around = mesh(AxisType.Explicit)

    def step(x, w):
        h = jnp.dot(x, w, out_sharding=P("data", None))
        h = jax.sharding.reshard(jnp.tanh(h), P(None, "model"))
        return jnp.sum(h, axis=1), jnp.zeros((8, 4), out_sharding=P("data", None)) + 1

    x, w = (
        jax.device_put(v, NamedSharding(around, spec))
        for v, spec in ((X, P("data", "model")), (Y, P("model", None)))
    )
    return Call(step, (x, w), around=around)


def mixed_axes():
    """One axis is explicit, the other automatic."""
    around = mesh(AxisType.Explicit, AxisType.Auto)

    @jax.jit
    def step(x, w):
        x = jax.sharding.reshard(x, P("data", None))
        return jax.lax.with_sharding_constraint(jnp.sin(x) @ w, P(None, "model"))

    return Call(step, (X, Y), around=around)


def set_mesh():
    """Constraints by bare specs on the mesh that is set; a scan of rematerialised layers."""

    def loss_of(weights, x):
        @jax.checkpoint
        def layer(x, w):
            x = jax.lax.with_sharding_constraint(x, P("data", None))
            return jnp.tanh(x @ w), None

        return jnp.mean(jax.lax.scan(layer, x, weights)[0])

    return Call(jax.grad(loss_of), (np.stack([X, Y]), X), around=mesh())


class Trainer:
    """A method that is jitted in its class; the trainer itself is static."""

    rate = 0.1

    @functools.partial(jax.jit, static_argnums=0, donate_argnames="params")
    def step(self, params, *, batch):
        grads = jax.grad(lambda params: jnp.sum(jnp.tanh(batch["x"] @ params["w"])))(params)
        return jax.tree.map(lambda p, g: p - self.rate * g, params, grads)


def jitted_method():
    """Return a method called by keyword, with arrays on their mesh."""
    batch = {"x": jax.device_put(X, NamedSharding(mesh(), P("data")))}
    return Call(Trainer().step, ({"w": Y.copy()},), {"batch": batch})


PROGRAMS = (
    linen_train_state, linen_keywords, nnx_jit, nnx_bare, equinox_filter_jit, equinox_bare,
    haiku_with_state, optax_chain, explicit_mode, mixed_axes, set_mesh, jitted_method,
)  # fmt: skip
