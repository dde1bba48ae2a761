"""A training step in named sizes, and a plan of it made in numbers, for the tests of sweeps."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.topology import machine
from shardalg.planner.stages import priced

HINTS = {"B": 512, "D": 256, "F": 1024}
AXES = {"data": 16, "model": 4}
WEIGHTS = {"up": P(None, None, "model"), "down": P(None, "model", None)}
SPECS = {"in_shardings": (WEIGHTS, P("data")), "out_shardings": WEIGHTS}
ROLES = ("parameters", "data")
LAYERS = 4


def layer(hidden, weights):
    wide = jnp.maximum(hidden @ weights["up"], 0)
    return hidden + jnp.tanh(wide @ weights["down"]), None


def step_of(body):
    """Return a step of gradient descent whose layers are a scan over `body`."""

    def step(weights, x):
        def loss(weights):
            return (jax.lax.scan(body, x, weights)[0] ** 2).mean()

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    return step


step = step_of(layer)


def arguments(B, D, F):
    up, down = (jax.ShapeDtypeStruct(s, "float32") for s in ((LAYERS, D, F), (LAYERS, F, D)))
    return {"up": up, "down": down}, jax.ShapeDtypeStruct((B, D), "float32")


def named_plan(axes=AXES, *, symbolic=True, fn=step):
    sizes = dict(zip(HINTS, sa.dims(" ".join(HINTS), hint=tuple(HINTS.values())), strict=True))
    mesh = sa.Mesh(axes, symbolic=symbolic)
    return sa.plan(fn, *arguments(**sizes), mesh=mesh, roles=ROLES, **SPECS)


def made_there(hardware, axes, sizes, remat, options):
    """Return (seconds, peak bytes, sent bytes) of a plan in numbers of the function by hand."""
    body = layer
    if remat is not None:
        policy = getattr(jax.checkpoint_policies, remat)
        body = jax.checkpoint(layer, policy=policy, prevent_cse=False)
    plan = sa.plan(
        step_of(body),
        *arguments(**{**HINTS, **sizes}),
        mesh=sa.Mesh(axes),
        roles=ROLES,
        options=options,
        **SPECS,
    )
    # A chip by itself has links of its own for each axis, as formulas over axes have.
    cost = priced(plan._traced, plan.program, machine(hardware))
    return float(cost.step_time_s), float(cost.peak_memory_bytes), float(cost.wire_bytes)
