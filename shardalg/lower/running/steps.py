"""A lowered plan that is called for several steps; some results are the next step's arguments."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from shardalg.errors import LoweringError
from shardalg.lower.running.processes import on_host
from shardalg.lower.shard_map import Lowered


@dataclass(frozen=True)
class Ran:
    """The results of some steps.

    Attributes:
      results: results of the last step; uneven ones keep their padding.
      scalars: per result without dimensions, by its path, its value after each step.
      seconds: time of each step, from its arguments to its results.
    """

    results: Any
    scalars: Mapping[str, list[Any]]
    seconds: tuple[float, ...] = field(compare=False)

    def on_host(self, lowered: Lowered) -> dict[str, np.ndarray]:
        """Return every result by its path: arrays of the last step, scalars of every step.

        A scalar, such as the loss, becomes an array with one number per step. Results lose their
        padding.
        """
        leaves = lowered.leave(jax.tree.leaves(self.results))
        array_of = {b.path: x for b, x in zip(lowered.results, leaves, strict=True)}
        return {
            path: np.asarray(self.scalars[path]) if path in self.scalars else on_host(x)
            for path, x in array_of.items()
        }


def run_steps(
    lowered: Lowered,
    args: Sequence[Any],
    steps: int,
    carry: Mapping[int, int],
    tell: Callable[[int, float, Mapping[str, Any]], None] = lambda *_: None,
) -> Ran:
    """Call `lowered` `steps` times, each time with results of the call before as arguments.

    Args:
      args: arguments of the first step.
      carry: per number of an argument, the number of the result that replaces it from the second
        step on. Other arguments stay the same.
      tell: called after each step with its number from 1, its seconds, and the results without
        dimensions by their paths.

    Raises:
      LoweringError: `carry` has a number that no argument or result has, a result has another shape
        or type than its argument, or an argument is a shape instead of an array.
    """
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(tuple(args))):
        raise LoweringError(
            "args() gives shapes, which are planned but cannot run: let it give arrays, or define "
            "arrays() beside it (arrays, or per array a function from a block's place to it)."
        )
    unknown = [number for number in carry if number >= len(args)]
    if unknown:
        raise LoweringError(f"no argument {unknown[0]} to carry to: there are {len(args)}, from 0.")
    # Arguments are padded and sharded once. Results stay padded between the steps.
    arguments = list(lowered.place(*args))
    scalars: dict[str, list[Any]] = {}
    seconds: list[float] = []
    _ = lowered.compiled  # compiled here, so that the first step's time does not include it
    for step in range(1, steps + 1):
        start = time.perf_counter()
        results = jax.block_until_ready(lowered.padded(*arguments))
        seconds.append(time.perf_counter() - start)
        # Results without dimensions are read after every step; arrays stay on the devices.
        leaves = zip(lowered.results, jax.tree.leaves(results), strict=True)
        step_scalars = {b.path: on_host(x)[()] for b, x in leaves if not b.sharding.shape}
        for path, value in step_scalars.items():
            scalars.setdefault(path, []).append(value)
        tell(step, seconds[-1], step_scalars)
        if step < steps:
            arguments = _next_arguments(arguments, args, results, carry)
    return Ran(results, scalars, tuple(seconds))


def _next_arguments(
    now: Sequence[Any], args: Sequence[Any], results: Any, carry: Mapping[int, int]
) -> list[Any]:
    """Return the arguments of the next step.

    Args:
      now: arguments of this step. args: arguments of the first step.
      results: results of this step. carry: per argument, the result that replaces it.
    """
    # A function that returns no tuple has one result.
    result_list = results if isinstance(results, tuple | list) else (results,)
    unknown = [number for number in carry.values() if number >= len(result_list)]
    if unknown:
        raise LoweringError(
            f"no result {unknown[0]} to carry: there are {len(result_list)}, from 0."
        )
    following = []
    for number, arg in enumerate(now):
        arrays = [leaf for leaf in jax.tree.leaves(arg) if isinstance(leaf, jax.Array)]
        if number in carry:
            following.append(result_list[carry[number]])
        # A donated argument is gone after the step, so that the first step's argument is used.
        elif any(array.is_deleted() for array in arrays):
            following.append(args[number])
        else:
            following.append(arg)
    return following
