"""The train step of a tiny Transformer of two layers, planned once for several test files."""

from functools import cache

import jax
import numpy as np

import shardalg as sa
from shardalg.lab import table1_strategies as table1
from shardalg.models import training
from shardalg.models.transformer import Config

MESH = sa.Mesh({"X": 2, "Y": 4})
CONFIG = Config(B=4, S=4, M=16, H=16, N=4, D=2, V=16, dtype="float32")
STEP = training.part("train_step")


def strategy(mesh=MESH):
    return table1.finalized(mesh, CONFIG)


@cache
def plan():
    """Plan by a strategy: mesh, shardings and sites in one value."""
    return sa.plan(
        STEP.function(CONFIG),
        *STEP.arguments(CONFIG),
        strategy=strategy(),
        roles=STEP.roles(),
        donate_argnums=STEP.donate_argnums(),
    )


def assert_close(results, wants):
    pairs = zip(jax.tree.leaves(results), jax.tree.leaves(wants), strict=True)
    for got, want in pairs:
        np.testing.assert_allclose(np.float64(got), np.float64(want), rtol=1e-5, atol=1e-5)
