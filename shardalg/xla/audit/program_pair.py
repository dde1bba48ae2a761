"""The two programs of an audit, read from text and checked, and the walk of both."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from shardalg.errors import NotationError
from shardalg.lower.xla_dump.hlo_text import HloInstruction, HloModule, parse
from shardalg.xla.audit.block_checks import blocks_of, check_block
from shardalg.xla.audit.hlo_attributes import shardings_of
from shardalg.xla.audit.instruction_walk import (
    InstructionAnswer,
    Walk,
    leaves_of,
)
from shardalg.xla.audit.operators.operator_table import OperatorTable
from shardalg.xla.audit.values.element_views import Origin, picked, whole
from shardalg.xla.audit.values.per_device import ArrayPool, AuditFinding, RefutedError, UnknownError

_COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
_KEEP = ("parameter", "tuple", "get-tuple-element", "copy", "custom-call", "while")


@dataclass(frozen=True)
class ProgramPair:
    """A program before and after partitioning.

    Attributes:
      devices: number of devices.
    """

    before: HloModule
    after: HloModule
    devices: int


def read_pair(before: str, after: str) -> ProgramPair:
    """Read two texts of XLA's dump.

    Raises:
      NotationError: a text is cut short, the texts are of different programs, or one of them is
        from another stage of compilation.
    """
    modules = []
    for name, text in (("before", before), ("after", after)):
        module = parse(text)
        _check_whole(name, text, module)
        modules.append(module)
    first, second = modules
    counts = [partitions_of(text) for text in (before, after)]
    if counts[0] != counts[1] or counts[1] < 2:
        raise NotationError(
            f"the texts are for {counts[0]} and {counts[1]} partitions (num_partitions in their "
            "first lines). Pass two texts of one program for two devices or more."
        )
    theirs, mine = parameters_of(first), parameters_of(second)
    names = {one.op_name for one in _instructions(first)}
    own = [one.op_name for one in _instructions(second) if one.op_name]
    strange = [name for name in own if name not in names]
    if len(theirs) != len(mine) or 2 * len(strange) > len(own) > 0:
        example = f", for example {strange[0]!r}" if strange else ""
        raise NotationError(
            f"the texts are of different programs: they have {len(theirs)} and {len(mine)} "
            f"arguments, and {len(strange)} of {len(own)} operations of the second text are not in "
            f"the first{example}. Pass two texts of one compilation."
        )
    return ProgramPair(first, second, counts[1])


def partitions_of(text: str) -> int:
    """Return the number of partitions that the first line of a text names."""
    found = re.search(r"num_partitions=(\d+)", text.partition("\n")[0])
    return int(found[1]) if found else 1


def _instructions(module: HloModule) -> list[HloInstruction]:
    return [one for body in module.computations.values() for one in body.values()]


def parameters_of(module: HloModule) -> list[HloInstruction]:
    """Return the arguments of a program, in order."""
    entry = module.computations[module.entry].values()
    found = [one for one in entry if one.opcode == "parameter"]
    return sorted(found, key=lambda one: int(one.literal))


def _check_whole(name: str, text: str, module: HloModule) -> None:
    """Raise an error unless a text is whole, in order, and not from after optimisation.

    Raises:
      NotationError: it is not.
    """
    _check_order(name, module)
    lost = [c for c in module.computations if c not in module.roots]
    for one in _instructions(module):
        for key in ("calls", "to_apply", "body", "condition"):
            target = one.attributes.get(key, "").lstrip("%")
            if target and target not in module.computations:
                lost.append(target)
        here = module.computations[one.computation]
        lost += [o for o in one.operands if o not in here]
    if lost or not text.rstrip().endswith("}"):
        raise NotationError(
            f"the text {name} partitioning is cut short: {(lost or [module.entry])[0]!r} is not "
            "whole. Pass the whole file of the dump."
        )
    fused = next((one for one in _instructions(module) if one.opcode == "fusion"), None)
    if fused is not None or "is_scheduled=true" in text.partition("\n")[0]:
        raise NotationError(
            f"the text {name} partitioning is from after optimisation"
            f"{f' ({fused.name} is a fusion)' if fused else ''}. Pass the files "
            "*before_spmd-partitioning* and *after_spmd-partitioning* of the dump."
        )
    collective = next((one for one in _instructions(module) if one.opcode in _COLLECTIVES), None)
    manual = any("manual" in one.attributes.get("sharding", "") for one in _instructions(module))
    if name == "before" and collective is not None and not manual:
        raise NotationError(
            f"the text before partitioning is partitioned already: {collective.name} is a "
            "collective. Pass the file *before_spmd-partitioning* first."
        )
    shardings = [
        one.name
        for one in _instructions(module)
        if "sharding" in one.attributes and one.opcode not in _KEEP and not manual
    ]
    if name == "after" and shardings:
        raise NotationError(
            f"the text after partitioning is not partitioned yet: {shardings[0]} has a sharding. "
            "Pass the file *after_spmd-partitioning* second."
        )


def _check_order(name: str, module: HloModule) -> None:
    """Raise an error unless every value is computed before it is read, and parameters are counted.

    Raises:
      NotationError: a value is read too early, or the parameters of a computation are not 0, 1, ...
    """
    for computation, body in module.computations.items():
        made: set[str] = set()
        for one in body.values():
            # A name that the computation does not have is reported as a text that is cut short.
            early = next((o for o in one.operands if o in body and o not in made), None)
            if early is not None:
                raise NotationError(
                    f"the text {name} partitioning is out of order: {one.name} in {computation} "
                    f"reads {early}, which a later line computes. Pass the file as XLA wrote it."
                )
            made.add(one.name)
        numbers = sorted(int(one.literal) for one in body.values() if one.opcode == "parameter")
        if numbers != list(range(len(numbers))):
            raise NotationError(
                f"the text {name} partitioning has parameters {numbers} in {computation}; "
                f"{len(numbers)} parameters have the numbers 0 to {len(numbers) - 1}. "
                "Pass the file as XLA wrote it."
            )


def walk_pair(pair: ProgramPair, watch: Callable[[Walk], None] | None = None) -> tuple[Walk, Walk]:
    """Return the walks of both programs; the second one has a row per instruction.

    Args:
      watch: is called with the second walk before each of its instructions.
    """
    pool = ArrayPool(pair.devices)
    table = OperatorTable(pool)
    first = Walk(pair.before, pool, table)
    arguments = []
    parameters = parameters_of(pair.before)
    for one in parameters:
        dtype, shape = one.leaves[0]
        base = table.new_base(shape, dtype, f"argument {one.literal} ({one.name})")
        arguments.append(whole(pool, base, shape))
    wanted = first.run(pair.before.entry, arguments)
    second = Walk(pair.after, pool, table, first, watch=watch)
    blocks = []
    for x, theirs, mine in zip(arguments, parameters, parameters_of(pair.after), strict=True):
        text = mine.attributes.get("sharding") or theirs.attributes.get("sharding", "")
        try:
            block = picked(pool, x, blocks_of(pool, text, x.shape))
        except UnknownError as error:
            raise NotationError(
                f"argument {mine.literal} cannot be laid out: {error.why}. Pass two texts of one "
                "compilation."
            ) from None
        if block.shape != mine.leaves[0][1]:
            raise NotationError(
                f"argument {mine.literal} has the shape {list(mine.leaves[0][1])} on a device, and "
                f"{list(block.shape)} by the sharding {text or '{replicated}'}. Pass two texts of "
                "one compilation."
            )
        blocks.append(block)
    got = second.run(pair.after.entry, blocks)
    root, out = pair.before.roots[pair.before.entry], pair.after.roots[pair.after.entry]
    shapes = [shape for _, shape in root.leaves]
    results, found = (
        [None] * len(shapes) if tree is None else leaves_of(tree) for tree in (wanted, got)
    )
    if not len(shapes) == len(results) == len(found):
        raise NotationError(
            f"the programs return {len(shapes)} and {len(found)} values. Pass two texts of one "
            "compilation."
        )
    shardings = shardings_of(root.attributes.get("sharding"), len(shapes))
    producers = out.operands if out.opcode == "tuple" else (out.name,) * len(found)
    for number, (a, b, text) in enumerate(zip(found, results, shardings, strict=True)):
        if a is None:
            continue
        key = ("result", f"{number}")
        one = pair.after.computations[pair.after.entry][producers[number]]
        try:
            at = blocks_of(pool, text, shapes[number])
            check_block(pool, a, b, at, f"result {number}")
            second.rows[key] = InstructionAnswer(one, "proved", None, a)
        except RefutedError as error:
            second.rows[key] = InstructionAnswer(one, "refuted", error, a)
            if isinstance(error.origin, Origin):
                second.blame(error.origin)
            second.trace(pair.after.entry, one.name, error)
        except AuditFinding as error:
            second.rows[key] = InstructionAnswer(one, "not understood", error, a)
    return first, second
