"""Plans made by the workers of an executor, such as a pool of processes or a cluster.

A job has all inputs of planning as text, as a plan file has them: the traced graph, the annotations
and the options. The function itself stays here, so that it may be a lambda or be defined in a
notebook. A worker returns numbers.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from shardalg.costs.topology import Machine
from shardalg.errors import ShardalgError, StrategyError
from shardalg.plan import plan_file
from shardalg.plan.comparing.step_figures import StepFigures, StrategyFigures
from shardalg.plan.planning import refuse_fallbacks
from shardalg.planner.propagate.options import Options
from shardalg.planner.propagate.strategy import Annotations
from shardalg.planner.stages import Stages, is_named, planned
from shardalg.planner.traced import Traced

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardalg.plan.plan import Plan

AHEAD = 64
"""Jobs that are submitted before the oldest result is read."""


class Executor(Protocol):
    """The part of `concurrent.futures.Executor` that is used."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """Run a function elsewhere, and return an object whose `result()` waits for its result."""


@dataclass(frozen=True, eq=False)
class PlanInputs:
    """All that a plan in numbers, or at the hints, is made from.

    Attributes:
      plan_type: `Plan`, which imports the modules of sweeps and therefore is not imported here.
      machine: the chip or topology that the plan is priced on.
      overlap: as in `Plan.cost`.
      own_links: whether each mesh axis has links of its own (`Stages.has_own_links`).
    """

    plan_type: type[Plan]
    traced: Traced
    annotations: Annotations
    options: Options
    machine: Machine
    overlap: str | None = None
    own_links: bool = False

    @property
    def is_named(self) -> bool:
        """True if sizes of arguments or of mesh axes have names."""
        return is_named(self.traced, self.annotations)

    @cached_property
    def plan(self) -> Plan:
        """The plan, which is made as soon as one of its methods needs the program."""
        return self.plan_type(self.options.where(named=self.is_named), self.stages)

    def stages(self) -> Stages:
        """Plan the function.

        Raises:
          ShardalgError: the function cannot be planned so.
        """
        stages = planned(self.traced, self.annotations, self.options)
        refuse_fallbacks(stages, self.options)
        return replace(stages, has_own_links=self.own_links)

    def step(self) -> StepFigures:
        """Return seconds and bytes of a step; raises as `stages` and `Plan.cost` do."""
        return StepFigures.of(self.plan.cost(self.machine, overlap=self.overlap))

    def strategy(self) -> StrategyFigures:
        """Return the figures of a strategy; raises as `stages` and `Plan.cost` do."""
        return StrategyFigures.of(self.plan, self.machine, overlap=self.overlap)

    def job(self, asked: str) -> PlanJob:
        """Return the same as a value that can be pickled.

        Args:
          asked: the name of the method that the worker calls: "step" or "strategy".

        Raises:
          PlanFileError: an option is a Python function (a price of a kernel), which has no text.
        """
        inputs = plan_file.inputs(self.traced, self.annotations, self.options)
        versions = plan_file.versions(self.options)
        settings = (self.machine, self.overlap, self.own_links)
        return PlanJob(self.plan_type, json.dumps(inputs), versions, settings, asked)


@dataclass(frozen=True)
class PlanJob:
    """The inputs of a plan as text, for another process.

    Attributes:
      plan_type: as in `PlanInputs`.
      inputs: as a plan file has them.
      versions: of shardalg, jax and the chip's figures here (`plan_file.versions`).
      settings: machine, overlap and own links, as in `PlanInputs`.
      asked: as in `PlanInputs.job`.
    """

    plan_type: type[Plan]
    inputs: str
    versions: dict[str, str]
    settings: tuple[Machine, str | None, bool]
    asked: str

    def run(self) -> Any:
        """Plan in this process, and return the figures, or a text that says why there are none.

        The text is an error of planning, or says that the worker has other versions.
        """
        saved = plan_file.PlanFile(json.loads(self.inputs), self.versions)
        try:
            traced, annotations, options = plan_file.read_inputs(saved)
            here = plan_file.versions(options)
            if here != self.versions:
                return f"the worker has {here}, and the plan is for {self.versions}"
            # `asked` is the name of the method that returns the figures.
            plan_inputs = PlanInputs(self.plan_type, traced, annotations, options, *self.settings)
            return getattr(plan_inputs, self.asked)()
        except ShardalgError as error:
            return reason(error)


class Job(Protocol):
    """The inputs of a computation in a worker, as a value that can be pickled."""

    def run(self) -> Any:
        """Return the result, or a text that says why there is none."""


def run_job(job: Job) -> Any:
    """Return the result of a job; executors are given this function."""
    return job.run()


def reason(error: BaseException) -> str:
    """Return the message of an error on one line; errors of other packages with their type."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ShardalgError) else f"{type(error).__name__}: {text}"


@dataclass(frozen=True)
class Failed:
    """An error of the executor itself, which says nothing about the plan."""

    text: str

    def __str__(self) -> str:
        return f"the executor failed: {self.text}"


def check_executor(executor: Any) -> None:
    """Raise unless an executor is None or has a method `submit`.

    Raises:
      StrategyError: it is something else, or a class.
    """
    if executor is not None and (isinstance(executor, type) or not hasattr(executor, "submit")):
        raise StrategyError(
            f"executor is {executor!r:.60}: give an object with submit(function, job), such as "
            "concurrent.futures.ProcessPoolExecutor(4)."
        )


def check_failures(failures: Sequence[str], count: int) -> None:
    """Raise if an executor failed for all of its jobs.

    Args:
      failures: the texts of its failures.
      count: the number of its jobs.

    Raises:
      StrategyError: it did.
    """
    if count and len(failures) == count:
        raise StrategyError(
            f"{failures[0]}. It failed for {count} of {count} jobs. A pool of processes needs a "
            'main module that can be imported: put the call under `if __name__ == "__main__":`, '
            'and start the pool with mp_context=multiprocessing.get_context("spawn").'
        )


def results(executor: Executor, jobs: Iterable[tuple[Any, Job]]) -> Iterator[tuple[Any, Any]]:
    """Yield (key, result) for each pair (key, job), in order; a result as of `PlanJob.run`.

    At most `AHEAD` jobs wait in the executor, so that little is left in it after an interruption.
    An exception of the executor is a `Failed`.
    """
    waiting: deque[tuple[Any, Any]] = deque()
    for key, job in jobs:
        try:
            waiting.append((key, executor.submit(run_job, job)))
        except Exception as error:  # an executor may raise anything, for example after a shutdown
            yield key, Failed(reason(error))
        # The oldest job is awaited before the next one is submitted, so that the order stays.
        if len(waiting) >= AHEAD:
            yield _result(*waiting.popleft())
    while waiting:
        yield _result(*waiting.popleft())


def _result(key: Any, future: Any) -> tuple[Any, Any]:
    try:
        return key, future.result()
    except Exception as error:  # a worker that ends, or a value that cannot be pickled
        return key, Failed(reason(error))
