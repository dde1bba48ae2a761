"""Every program whose plans are held fixed: recorded ones, siblings, models, and random operators.

`programs(policy)` names them; each is a function that plans one, so that only what is asked for is
planned. Names do not depend on the version of jax; what is planned of them may.
"""

from functools import partial

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import shardalg as sa
from tests import every_plan
from tests.oracle import siblings
from tests.partition import fuzz
from tests.propagate import siblings as sisters

POLICIES = every_plan.POLICIES
DRAWN, SIBLINGS, SEED = 300, 60, 20_000


def of_sibling(one, policy):
    """Return a sibling of a recorded program, with the annotations that its seed draws."""
    mesh = sa.Mesh(one.mesh)
    specs, options = one.specs, sa.Options(policy=policy)
    return sa.plan(one.function, *one.types, mesh=mesh, in_shardings=specs, options=options)


def of_sister(name, policy):
    """Return a program without a recording, as written."""
    mesh, rows, function = sisters.SIBLINGS[name]
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in rows]
    specs = tuple(spec for _, _, spec in rows)
    options = sa.Options(policy=policy)
    return sa.plan(function, *types, mesh=sa.Mesh(mesh), in_shardings=specs, options=options)


def drawn(group, number, policy):
    """Draw an operator of a group in a random sharding, sometimes uneven."""
    rng = np.random.default_rng((SEED, number))
    found = list(fuzz.functions(group, SEED + number))
    one = found[int(rng.integers(len(found)))]

    def flat(*arguments):
        return tuple(jax.tree.leaves(one.fn(*arguments)))

    with jax.enable_x64(True):
        options = sa.Options(policy=policy)
        whole = sa.plan(flat, *one.arguments, mesh=sa.Mesh({"X": 1}), options=options)
        return whole.replan(fuzz.layouts(rng, whole.graph))


def pipeline(policy):
    """Return the gradient of a shifting buffer of stages under vmap: one permute per shift."""
    stages, batches, width = 4, 6, 8

    def loss(w, x):
        def step(state, batch):
            state = jax.numpy.concatenate([batch[None], state[:-1]])
            state = jax.vmap(lambda w, s: jax.numpy.tanh(s @ w))(w, state)
            return state, state[-1]

        start = jax.numpy.zeros((stages, *x.shape[1:]), x.dtype)
        return (jax.lax.scan(step, start, x)[1] ** 2).sum()

    shapes = (stages, width, width), (batches, 2, width)
    w, x = (jax.ShapeDtypeStruct(s, "float32") for s in shapes)
    options = sa.Options(policy=policy)
    mesh, specs = sa.Mesh({"L": 4, "Y": 2}), (P("L"), P())
    return sa.plan(jax.grad(loss), w, x, mesh=mesh, in_shardings=specs, options=options)


def programs(policy):
    """Name to a function that plans it under this policy."""
    few = siblings.programs(SIBLINGS, 0)
    return {
        **{f"model/{name}": make for name, make in every_plan.models(policy).items()},
        **{f"recorded/{name}": make for name, make in every_plan.oracle(policy).items()},
        **{f"sibling/{one.name}": partial(of_sibling, one, policy) for one in few},
        **{f"sister/{name}": partial(of_sister, name, policy) for name in sisters.SIBLINGS},
        **{
            f"drawn/{group.__name__}/{number}": partial(drawn, group, number, policy)
            for group in fuzz.GROUPS
            for number in range(-(-DRAWN // len(fuzz.GROUPS)))
        },
        "pipeline/shifting buffer": partial(pipeline, policy),
    }
