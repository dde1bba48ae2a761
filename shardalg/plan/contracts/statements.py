"""The statements of a contract: what must be true of a plan."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from shardalg.errors import ContractError

MEASURES = (
    "sent_bytes", "largest_bytes", "executions", "peak_bytes", "held_bytes", "step_time_s",
)  # fmt: skip
OF_COLLECTIVES = ("sent_bytes", "largest_bytes", "executions")
_WORDS = {
    "sent_bytes": "bytes sent per device and step by {}",
    "largest_bytes": "bytes sent per device by any one execution of {}",
    "executions": "executions per step of {}",
    "peak_bytes": "peak memory in bytes",
    "held_bytes": "bytes of {} at the peak",
    "step_time_s": "seconds of a step",
}


@dataclass(frozen=True)
class Subject:
    """The collectives that a statement is about: those that have all given properties.

    Attributes:
      kind: as in `plan.collectives()`, such as "all_gather"; None: every kind.
      axis: a mesh axis along which they run, alone or with others.
      phase: "forward", "backward" or "update".
      role: the role of the moved value, such as "weight".
      module: a part of the module's path, such as "layers_*/mlp"; `*` is any text of one step.
      region: the regions around them, such as "scan"; "root" is outside of every loop.
    """

    kind: str | None = None
    axis: str | None = None
    phase: str | None = None
    role: str | None = None
    module: str | None = None
    region: str | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            word = getattr(self, one.name)
            if word is not None and (not isinstance(word, str) or not word):
                raise ContractError(f"{one.name} is {word!r:.60}: give a word, such as 'model'.")

    def __str__(self) -> str:
        """Return the properties as text, such as "all_gather along model in the forward phase"."""
        words = [self.kind or "collective"]
        words += [f"along {self.axis}"] * (self.axis is not None)
        words += [f"of the role {self.role}"] * (self.role is not None)
        words += [f"of module {self.module}"] * (self.module is not None)
        words += [f"in region {self.region}"] * (self.region is not None)
        words += [f"in the {self.phase} phase"] * (self.phase is not None)
        return " ".join(words)


@dataclass(frozen=True)
class NoCollective:
    """The statement that a plan has none of some collectives."""

    subject: Subject

    def __str__(self) -> str:
        return f"no {self.subject}"


@dataclass(frozen=True)
class SomeCollective:
    """The statement that a plan has at least one of some collectives."""

    subject: Subject

    def __str__(self) -> str:
        return f"some {self.subject}"


@dataclass(frozen=True)
class AtMost:
    """The statement that an amount is at most a bound.

    Attributes:
      measure: one of `MEASURES`.
      bound: a number, or text with the names of sizes.
      subject: for the measures `OF_COLLECTIVES`, the collectives that count.
      memory_class: for "held_bytes", a class of `plan.memory.by_class`.
      hardware: for "step_time_s", a chip or topology; None: that of the plan's options.
      software: for "step_time_s", the constants of `Plan.cost`. "datasheet" uses none, so that
        better fitted constants break no contract.
      tolerance: for "step_time_s", the share by which the bound may be exceeded.
    """

    measure: str
    bound: int | float | str
    subject: Subject = Subject()
    memory_class: str | None = None
    hardware: str | None = None
    software: str = "datasheet"
    tolerance: float = 0.0

    def __str__(self) -> str:
        """Return the statement as text; one about seconds names the chip and the tolerance."""
        # Bytes that are held belong to a class of memory, all other amounts to collectives.
        subject = self.memory_class if self.measure == "held_bytes" else self.subject
        text = f"{_WORDS[self.measure].format(subject)} at most {self.bound}"
        if self.measure == "step_time_s":
            text += f" on {self.hardware or 'the plan’s chip'} ({self.software})"
            text += f", {self.tolerance:.0%} more allowed" if self.tolerance else ""
        return text


@dataclass(frozen=True)
class ShardedAlong:
    """The statement that no large argument of a role is replicated along a mesh axis.

    Attributes:
      role: "parameters", "optimizer_state" or "data".
      above_bytes: arguments of at most this many bytes, over all devices, may be replicated.
    """

    role: str
    axis: str
    above_bytes: int | float | str = 0

    def __str__(self) -> str:
        above = f" above {self.above_bytes} B" if self.above_bytes else ""
        return f"no argument of the role {self.role}{above} is replicated along {self.axis}"


@dataclass(frozen=True)
class NoIdleDevices:
    """The statement that no product is repeated on devices that could share it."""

    def __str__(self) -> str:
        return "no devices repeat the work of a product"


@dataclass(frozen=True)
class Unchanged:
    """The statement that shardings and collectives are those of a plan in a file.

    Attributes:
      path: the file, as `plan.save` writes it; relative to the contract's file if there is one.
    """

    path: str

    def __str__(self) -> str:
        return f"unchanged since {self.path}"


Statement = NoCollective | SomeCollective | AtMost | ShardedAlong | NoIdleDevices | Unchanged


def no(
    kind: str | None = None,
    *,
    axis: str | None = None,
    phase: str | None = None,
    role: str | None = None,
    module: str | None = None,
    region: str | None = None,
) -> NoCollective:
    """Return the statement that a plan has no collective with these properties.

    Args:
      kind: as in `plan.collectives()`, such as "all_gather"; None: every kind.
      axis, phase, role, module, region: as `Subject` has them; None: any.

    >>> print(no("all_gather", axis="model", phase="backward"))
    no all_gather along model in the backward phase
    """
    return NoCollective(Subject(kind, axis, phase, role, module, region))


def some(
    kind: str | None = None,
    *,
    axis: str | None = None,
    phase: str | None = None,
    role: str | None = None,
    module: str | None = None,
    region: str | None = None,
) -> SomeCollective:
    """Return the statement that a plan has at least one collective with these properties.

    Args:
      kind, axis, phase, role, module, region: the same as for `no`.

    >>> print(some("reduce_scatter", role="gradient"))
    some reduce_scatter of the role gradient
    """
    return SomeCollective(Subject(kind, axis, phase, role, module, region))


def at_most(
    kind: str | None = None,
    *,
    sent_bytes: int | float | str | None = None,
    largest_bytes: int | float | str | None = None,
    executions: int | float | str | None = None,
    peak_bytes: int | float | str | None = None,
    held_bytes: int | float | str | None = None,
    step_time_s: int | float | str | None = None,
    axis: str | None = None,
    phase: str | None = None,
    role: str | None = None,
    module: str | None = None,
    region: str | None = None,
    memory_class: str | None = None,
    hardware: str | None = None,
    software: str = "datasheet",
    tolerance: float = 0.0,
) -> AtMost:
    """Return the statement that one amount is at most a bound, for `Plan.require`.

    A bound is a number, or text such as "8*M*F//X" with named sizes of the plan. Bytes are those
    of one device.

    Args:
      sent_bytes, largest_bytes, executions: bounds of collectives: the bytes of a step, the bytes
        of the largest one, and how often they run in a step. The other arguments say which ones.
      kind, axis, phase, role, module, region: as of `no`.
      peak_bytes: bound of the peak memory, as in `plan.memory`.
      held_bytes: bound of a class of `plan.memory.by_class` at the peak; give `memory_class`.
      step_time_s: bound of the seconds of a step by `plan.cost`.
      memory_class: the class that `held_bytes` bounds, such as "activations".
      hardware: the chip or topology of `step_time_s`; None: that of the plan's options.
      software: the constants of `step_time_s`. With "datasheet", better fitted constants break no
        contract; "xla" and "pytorch" use the fitted ones.
      tolerance: the share by which `step_time_s` may be exceeded, such as 0.1.

    Raises:
      ContractError: not exactly one bound, or an argument that does not belong to it.

    >>> print(at_most("all_reduce", sent_bytes="8*F*M//Y", axis="X"))
    bytes sent per device and step by all_reduce along X at most 8*F*M//Y
    """
    # Each measure is a parameter of this function; the one that is given is the bound.
    given = locals()
    bounds = {measure: given[measure] for measure in MEASURES if given[measure] is not None}
    if len(bounds) != 1:
        raise ContractError(
            f"at_most has {len(bounds)} bounds ({', '.join(bounds) or 'none'}): give one of "
            f"{', '.join(MEASURES)}. Write a statement for each bound."
        )
    ((measure, bound),) = bounds.items()
    _check_bound(measure, bound)
    # The other arguments belong to some measures only. One that would be ignored is an error.
    subject = Subject(kind, axis, phase, role, module, region)
    if measure not in OF_COLLECTIVES and subject != Subject():
        raise ContractError(f"{measure} is no amount of collectives, but got: {subject}.")
    if (measure == "held_bytes") != (memory_class is not None):
        raise ContractError("held_bytes and memory_class belong together: give both, or none.")
    is_number = isinstance(tolerance, int | float) and not isinstance(tolerance, bool)
    if not is_number or not 0 <= tolerance < 1:
        raise ContractError(f"tolerance is {tolerance!r}: give a share from 0 to below 1.")
    if measure != "step_time_s" and (hardware, software, tolerance) != (None, "datasheet", 0.0):
        raise ContractError(
            f"hardware, software and tolerance belong to step_time_s, not {measure}."
        )
    return AtMost(measure, bound, subject, memory_class, hardware, software, tolerance)


def _check_bound(name: str, bound: object) -> None:
    """Raise an error unless a bound is a number or text.

    Raises:
      ContractError: it is something else.
    """
    if isinstance(bound, bool) or not isinstance(bound, int | float | str):
        raise ContractError(f"{name} is {bound!r:.60}: a bound is a number, or text of sizes.")
    if isinstance(bound, float) and not math.isfinite(bound):
        raise ContractError(f"{name} is {bound!r}: a bound is a finite number.")


def sharded(role: str, axis: str, *, above_bytes: int | float | str = 0) -> ShardedAlong:
    """Return the statement that no large argument is replicated along an axis.

    Args:
      role: the role of the arguments: "parameters", "optimizer_state" or "data".
      axis: the mesh axis.
      above_bytes: arguments of at most this many bytes, over all devices, may be replicated.

    Raises:
      ContractError: role or axis is no word.

    >>> print(sharded("optimizer_state", "data", above_bytes=4096))
    no argument of the role optimizer_state above 4096 B is replicated along data
    """
    for name, word in (("role", role), ("axis", axis)):
        if not isinstance(word, str) or not word:
            raise ContractError(f"{name} is {word!r:.60}: give a word, such as 'data'.")
    _check_bound("above_bytes", above_bytes)
    return ShardedAlong(role, axis, above_bytes)


def no_idle_devices() -> NoIdleDevices:
    """Return the statement that no product leaves a mesh axis unused.

    Devices along an unused axis repeat the same flops (`plan.warnings()` names the products).

    >>> print(no_idle_devices())
    no devices repeat the work of a product
    """
    return NoIdleDevices()


def unchanged(path: str | os.PathLike[str]) -> Unchanged:
    """Return the statement that a plan is the one in a file, as `plan.diff` compares them.

    Lines of the source may move: values and collectives are matched by module and operator.

    Args:
      path: a file that `plan.save` wrote.

    >>> print(unchanged("step.plan.json"))
    unchanged since step.plan.json
    """
    if not isinstance(path, str | os.PathLike):
        raise ContractError(f"path is {path!r:.60}: give the file that plan.save wrote.")
    return Unchanged(os.fspath(path))


def arguments_of(subject: Subject) -> Mapping[str, str]:
    """Return the given properties of collectives by name, as the arguments of `no`."""
    found = {one.name: getattr(subject, one.name) for one in fields(subject)}
    return {name: word for name, word in found.items() if word is not None}
