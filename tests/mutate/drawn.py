"""Programs of random operators in random layouts, to be tampered with: any row's emission.

A name such as `gathers@4` draws one function of that group of rows, with seed 4, and the layouts of
`tests.partition.fuzz`: of a few, those that make the longest program.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import shardalg as sa
from tests.ops.numbers import functions
from tests.partition import fuzz
from tests.partition.planned import instructions

NARROW = {"float64": "float32", "int64": "int32", "complex128": "complex64"}
"""Types as they are drawn, and those they are planned in: JAX has no wide ones unasked."""
TRIED = 4
"""Layouts of which the one with the longest program is taken."""


@dataclass(frozen=True, eq=False)
class DrawnCase:
    """The counterpart of `tests.mutate.programs.Case` for a random operator.

    Attributes:
      arguments: of the first draw; others hold the same numbers in another order.
      plan: in the layouts that were drawn.
    """

    fn: object
    arguments: tuple
    plan: sa.Plan
    options: sa.Options = sa.Options()  # noqa: RUF009 (frozen)

    def drawn(self, seed):
        """Arguments of a seed: floats change places, indices stay as they were drawn."""
        rng = np.random.default_rng(seed)
        return [_turned(rng, x) if x.dtype.kind in "fc" else x for x in self.arguments]


def drawn_names(seed):
    """Names of the programs of a seed: one per group of rows."""
    return [f"{group.__name__}@{seed}" for group in fuzz.GROUPS]


def drawn_case(name):
    """Return the program of a name."""
    group_name, seed = name.split("@")
    (group,) = (g for g in fuzz.GROUPS if g.__name__ == group_name)
    rng = np.random.default_rng((int(seed), 7))
    for drawn in rng.permutation(np.array([*functions(group, int(seed))], dtype=object)):
        arguments = tuple(_narrow(np.asarray(x)) for x in drawn.arguments)
        flat = _flat(drawn.fn)
        try:
            flat(*arguments)
            whole = sa.plan(flat, *arguments, mesh=sa.Mesh({"X": 1}))
        except (TypeError, ValueError):  # it has numbers of a wide type of its own
            continue
        plans = [whole.replan(fuzz.layouts(rng, whole.graph)) for _ in range(TRIED)]
        return DrawnCase(flat, arguments, max(plans, key=_length))
    raise LookupError(f"{name}: no function of the group has narrow types")


def _flat(fn):
    return lambda *arguments: tuple(jax.tree.leaves(fn(*map(jnp.asarray, arguments))))


def _length(plan):
    return sum(1 for _ in instructions(plan.program.block))


def _narrow(x):
    return x.astype(NARROW.get(x.dtype.name, x.dtype))


def _turned(rng, x):
    return rng.permutation(x.ravel()).reshape(x.shape)
