"""The referee's verdict: the results of both programs on random arguments, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardalg.lower.xla_dump.hlo_text import HloInstruction, HloModule
from shardalg.xla.audit.hlo_attributes import block_indices, is_float, shardings_of
from shardalg.xla.audit.program_pair import ProgramPair, parameters_of
from shardalg.xla.audit.referee.field_interpreter import FieldRun
from shardalg.xla.audit.referee.random_field import random_elements
from shardalg.xla.audit.values.per_device import UnknownError


@dataclass(frozen=True)
class FieldVerdict:
    """The comparison of all results.

    Attributes:
      is_equal: whether every element of every result is the one before partitioning.
      result, device, element: the first place that differs.
      expected, found: the elements of the field at this place.
      reason: the operator that the interpreter does not have; then nothing is compared.
    """

    is_equal: bool
    result: int = 0
    device: int = 0
    element: tuple[int, ...] = ()
    reason: str = ""
    expected: str = ""
    found: str = ""


@dataclass(frozen=True, eq=False)
class WantedResults:
    """Random arguments, and the results of the program before partitioning on them."""

    module: HloModule
    arguments: tuple[Any, ...]
    results: tuple[Any, ...]


def wanted_results(before: HloModule, seed: int) -> WantedResults:
    """Return the results of a program before partitioning on random elements of the field.

    Raises:
      UnknownError: an operator that the interpreter does not have.
    """
    arguments = random_arguments(before, seed)
    results = FieldRun(before, 1).run(before.entry, arguments)
    return WantedResults(
        before, tuple(arguments), results if isinstance(results, tuple) else (results,)
    )


def field_verdict(pair: ProgramPair, seed: int = 0) -> FieldVerdict:
    """Return whether both programs compute the same results on random elements of the field."""
    try:
        return compared_results(wanted_results(pair.before, seed), pair.after, pair.devices)
    except UnknownError as error:
        return FieldVerdict(False, reason=error.why)


def compared_results(wanted: WantedResults, after: HloModule, devices: int) -> FieldVerdict:
    """Return whether a partitioned program has the wanted results.

    Several partitioned programs of one program are compared with the same results.

    Raises:
      UnknownError: an operator that the interpreter does not have, or a text that is no valid HLO.
    """
    before = wanted.module
    # Each device gets its block of every argument, as the sharding of the argument gives it.
    blocks = []
    for x, whole, local in zip(
        wanted.arguments, parameters_of(before), parameters_of(after), strict=True
    ):
        text = local.attributes.get("sharding") or whole.attributes.get("sharding", "")
        blocks.append(block_of(x, text, devices)[0])
    got = FieldRun(after, devices).run(after.entry, blocks)
    # Results are compared block by block, except the padding of uneven blocks.
    root, expected = before.roots[before.entry], wanted.results
    found = got if isinstance(got, tuple) else (got,)
    if len(found) != len(expected):
        raise UnknownError(f"the programs return {len(expected)} and {len(found)} values")
    texts = shardings_of(root.attributes.get("sharding"), len(expected))
    for number, (mine, theirs, text) in enumerate(zip(found, expected, texts, strict=True)):
        block, exists = block_of(theirs, text, devices)
        mine = np.broadcast_to(mine, (devices, *mine.shape[1:]))
        if mine.shape != block.shape:
            return FieldVerdict(False, number)
        wrong = (mine != block) & exists
        if wrong.any():
            device, *element = map(int, np.argwhere(wrong)[0])
            at = (device, *element)
            words = (f"{x[at]} in the field" for x in (block, mine))
            return FieldVerdict(False, number, device, tuple(element), "", *words)
    return FieldVerdict(True)


def block_of(value: np.ndarray, text: str, devices: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each device's block of a value on one device, and which elements exist."""
    shape = value.shape[1:]
    made, exists = value, np.ones((1,) * (1 + len(shape)), bool)
    made = np.broadcast_to(made, (devices, *shape))
    for dim, (rows, classes) in enumerate(block_indices(text, shape, devices)):
        at = rows[classes].reshape(devices, *(-1 if k == dim else 1 for k in range(len(shape))))
        made = np.take_along_axis(made, np.maximum(at, 0), 1 + dim)
        exists = exists & (at >= 0)
    return made, exists


def random_arguments(module: HloModule, seed: int) -> list[Any]:
    """Return random arguments of a program; some integers are out of range, to test the edges."""
    body = module.computations[module.entry]
    widest = max(
        [6, *(n for one in body.values() if one.opcode in ("gather", "scatter")
              for n in body[one.operands[0]].leaves[0][1])]
    )  # fmt: skip
    return [argument(one, seed, widest) for one in parameters_of(module)]


def argument(one: HloInstruction, seed: int, widest: int) -> np.ndarray:
    """Return the random value of one argument, [1, ...]."""
    dtype, shape = one.leaves[0]
    made = random_elements(f"argument {seed} {one.literal}", (1, *shape))
    if is_float(dtype):
        return made
    if dtype == "pred":
        return made % 2 == 0
    if not shape:
        return made % 4
    # Every third number is one at an edge of an index: there clamps and comparisons differ.
    edges = np.array([0, -1, widest - 1, widest, 1])
    inside = made % (widest + 4) - 2
    chosen = np.where(made // 97 % 3 == 0, edges[made // 7 % len(edges)], inside)
    return np.maximum(chosen, 0) if dtype.startswith("u") else chosen


def agree(verdicts: Sequence[FieldVerdict]) -> bool:
    """Return whether all runs of the referee found equal results."""
    return all(verdict.is_equal for verdict in verdicts)
