"""Functions planned on small meshes, and their simulation held against JAX on one device."""

import jax
import jax.numpy as jnp
import numpy as np

import shardalg as sa
from shardalg.spmd.host.simulate import simulate

MESH = sa.Mesh({"X": 2, "Y": 4})


def numbers(*shape, seed=0, dtype=np.float32):
    """Small integers as `dtype`: every sum of them is exact, in any order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def planned(fn, arguments, specs=None, *, mesh=MESH, **more):
    """Return the plan of `fn`; `specs` are in_shardings, one per argument."""
    return sa.plan(fn, *arguments, mesh=mesh, in_shardings=specs, **more)


def check_equal(plan, fn, arguments):
    """Check that the simulated program equals `fn` on one device."""
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
    results = simulate(plan.program, plan.graph, *flat)
    for result, want in zip(results, jax.tree.leaves(fn(*arguments)), strict=True):
        assert result.shape == want.shape
        assert result.dtype == want.dtype
        exact = not jnp.issubdtype(want.dtype, jnp.floating)
        close = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-5, "atol": 1e-5}
        np.testing.assert_allclose(np.float64(result), np.float64(want), **close)


def checked(fn, arguments, specs=None, **more):
    """Return the plan after its simulation was found right."""
    plan = planned(fn, arguments, specs, **more)
    check_equal(plan, fn, arguments)
    return plan


def moves(plan):
    """(kind, axes) of every collective, in order."""
    return [(row["kind"], row["mesh_axes"]) for row in plan.collectives_table]


def instructions(block):
    """Every instruction, loop bodies included."""
    for step in block.instructions:
        yield step
        for body in step.attributes.bodies:
            yield from instructions(body)


def kinds(plan):
    """Names of all kinds of instruction that are not an `Apply`."""
    return {type(step.attributes).__name__ for step in instructions(plan.program.block)} - {"Apply"}
