"""The summary of a plan in its file, and its comparison with the plan that loading makes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isclose
from typing import TYPE_CHECKING, Any

from shardalg import files
from shardalg.errors import PlanFileError, ShardalgError
from shardalg.plan import plan_file, planning
from shardalg.plan.plan_file import PlanFile
from shardalg.planner.propagate.options import Options
from shardalg.planner.stages import Stages
from shardalg.show.tables import collectives, collectives_by_module

if TYPE_CHECKING:
    from shardalg.plan.plan import Plan

Number = int | float
MOST_NAMED = 3
"""A warning that lists more differences of one kind is hard to read."""


@dataclass(frozen=True)
class PlanSummary:
    """Decisions and costs of a plan in numbers.

    Named sizes have the numbers at which the plan was made.

    Attributes:
      seal: SHA-256 of the inputs and of the program's text without its comments.
      shardings: the names of the values with a sharding, by its text; without replicated values.
      collectives: executions and wire bytes per step, by module, kind and axes.
      peak_bytes: the live bytes of a device at the peak, by class.
      step_time_s: seconds per step on the chip of the plan's options.
    """

    seal: str
    shardings: Mapping[str, tuple[str, ...]]
    collectives: tuple[tuple[str, str, str, int, Number], ...]
    peak_bytes: Mapping[str, Number]
    step_time_s: Number

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain data, from which `read_summary` makes it again."""
        return files.to_data(files.values(self, PlanSummary))


def read_summary(data: object) -> PlanSummary:
    """Return the summary that `PlanSummary.to_json` wrote.

    Raises:
      PlanFileError: a value that its type does not allow.
    """
    found: PlanSummary = files.read(PlanSummary, data, "summary")
    return found


def bare_text(stages: Stages) -> str:
    """Return the program's text without comments, so that new wording leaves digests equal."""
    return stages.program.text(stages.graph, comments=False)


def summary(stages: Stages, seal: str) -> PlanSummary:
    """Return the summary of a plan.

    Args:
      seal: the digest of the plan's inputs and program (`PlanFile.sealed`).
    """
    shardings: dict[str, list[str]] = {}
    for value, sharding in zip(stages.graph.values, stages.sharded.shardings, strict=True):
        # Most values of a large plan are replicated: the file stays small without them.
        if any(sharding.dims) or sharding.unreduced or sharding.manual:
            shardings.setdefault(sharding.text(), []).append(value.name)
    sent = collectives_by_module(collectives(stages.program, stages.graph))
    # Seal, values of each sharding, bytes sent, bytes at the peak by class, and seconds of a step:
    # these figures tell which part differs, and not only that the digest differs.
    return PlanSummary(
        seal,
        {text: tuple(names) for text, names in shardings.items()},
        sent.rows,
        dict(stages.cost.memory.by_class),
        stages.cost.step_time_s,
    )


def since_saved(
    saved: PlanFile, told: PlanSummary | None, stages: Stages, here: Mapping[str, str]
) -> tuple[str, ...]:
    """Return a text for each part in which a file's plan differs from the plan made here.

    Args:
      told: the file's summary; None in files of earlier schemas.
      stages: the plan of the file's inputs, made here.
      here: the versions of this process (`plan_file.versions`).
    """
    if told is None:
        # Earlier schemas have no figures, only a digest of the program's text with its comments. It
        # shows that something differs, but not which part.
        if saved.sealed(stages.program.text(stages.graph)) == saved.seal:
            return ()
        return (
            f"files of {saved.schema} have no summary, and its program had other instructions or "
            "comments: its plan may have been another one",
        )
    seal = saved.sealed(bare_text(stages))
    # All figures follow from inputs, program and versions, so they need not be computed again.
    if saved.versions == here and told.seal == seal:
        return ()
    found = differences(told, summary(stages, seal))
    apart = [
        f"{name} {saved.versions.get(name, 'unknown')} in the file, {here.get(name, 'none')} here"
        for name in dict.fromkeys((*saved.versions, *here))
        if saved.versions.get(name) != here.get(name)
    ]
    whose = f" ({'; '.join(apart)})" if apart else ""
    return tuple(f"{part}: {text}{whose}" for part, text in found)


def differences(saved: PlanSummary, here: PlanSummary) -> tuple[tuple[str, str], ...]:
    """Return the parts in which two summaries differ, with the values in the file and here.

    >>> saved = PlanSummary("a", {"[X]": ("w",)}, (("mlp", "all_gather", "X", 1, 64),), {}, 1e-3)
    >>> here = PlanSummary("b", {"[Y]": ("w",)}, (), {}, 2e-3)
    >>> for part, text in differences(saved, here):
    ...     print(part, "-", text)
    shardings - 1 differs: w [X] in the file, [Y] here
    collectives - 1 differs: all_gather X of mlp 1 x, 64 B in the file, none here
    step time - 0.001 s in the file, 0.002 s here
    """
    parts = (
        ("shardings", _listed(_by_name(saved), _by_name(here), "replicated")),
        ("collectives", _listed(_by_kind(saved), _by_kind(here), "none")),
        ("peak memory", _listed(_held(saved), _held(here), "0 B")),
    )
    found = [(part, text) for part, text in parts if text]
    # Seconds are sums of floats, which another version may add in another order.
    if not isclose(saved.step_time_s, here.step_time_s):
        found.append(
            ("step time", f"{saved.step_time_s:.6g} s in the file, {here.step_time_s:.6g} s here")
        )
    # All figures can agree although the plans differ, for example in the order of instructions.
    if not found and saved.seal != here.seal:
        found.append(("program", "other inputs or instructions with the same figures"))
    return tuple(found)


def _listed(saved: Mapping[str, str], here: Mapping[str, str], absent: str) -> str:
    """Return how many entries of two mappings differ, and the first of these, as text.

    E.g. "2 differ: w [X] in the file, [Y] here; ...". The text is "" if they are equal. At most
    `MOST_NAMED` entries are named.

    Args:
      saved, here: texts by name, in the file and in this process.
      absent: the text of an entry that one of the mappings lacks.
    """
    texts = [
        f"{name} {saved.get(name, absent)} in the file, {here.get(name, absent)} here"
        for name in dict.fromkeys((*saved, *here))
        if saved.get(name, absent) != here.get(name, absent)
    ]
    if not texts:
        return ""
    more = f"; and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    verb = "differs" if len(texts) == 1 else "differ"
    return f"{len(texts)} {verb}: {'; '.join(texts[:MOST_NAMED])}{more}"


def _by_name(found: PlanSummary) -> dict[str, str]:
    return {name: text for text, names in found.shardings.items() for name in names}


def _by_kind(found: PlanSummary) -> dict[str, str]:
    return {
        f"{kind} {axes}{f' of {module}' if module else ''}": f"{count} x, {sent:,} B"
        for module, kind, axes, count, sent in found.collectives
    }


def _held(found: PlanSummary) -> dict[str, str]:
    return {name: f"{held:,} B" for name, held in found.peak_bytes.items()}


def file_of(plan: Plan) -> PlanFile:
    """Return the content of a plan's file: the inputs of planning, versions, and a summary."""
    inputs = plan_file.inputs(plan._traced, plan._annotations, plan.options)
    content = PlanFile(inputs, plan_file.versions(plan.options))
    made = summary(plan._stages, content.sealed(bare_text(plan._stages)))
    return replace(content, summary=made.to_json())


def planned_file(saved: PlanFile, path: object) -> tuple[Stages, Options, tuple[str, ...]]:
    """Plan the inputs of a file again, and compare the plan with the file's summary.

    Args:
      path: names the file in errors and warnings.

    Returns:
      The stages, their options, and a text for each part that differs from the summary.

    Raises:
      PlanFileError: the content is no plan, or the same version gives another plan.
    """
    try:
        stages, options = planning.planned_annotations(*plan_file.read_inputs(saved))
        saved_summary = None if saved.summary is None else read_summary(saved.summary)
    except Exception as error:  # stages rely on guarantees of tracing
        raise PlanFileError(
            f"{path}: its content is not a plan ({type(error).__name__}: {error}). Save it again."
        ) from (None if isinstance(error, ShardalgError) else error)
    own_versions = plan_file.versions(options)
    differences_found = since_saved(saved, saved_summary, stages, own_versions)
    # Everything that decides is the same, so another plan means that the file was edited.
    if differences_found and saved.versions == own_versions:
        raise PlanFileError(
            f"{path} was edited, or saved by other code of this version: the plan of its inputs "
            f"differs from its summary: {'; '.join(differences_found)}. Plan the function again."
        )
    if differences_found:
        # `stacklevel=4` names the user's line: this function, `plan._loaded` and `load_plan` are
        # between it and `warn`.
        warnings.warn(f"{path}: {'; '.join(differences_found)}. Save the plan again.", stacklevel=4)
    return stages, options, differences_found
