"""Worker processes that price groups of candidates in parallel with this process.

A worker is a new interpreter that receives tasks and sends prices through pipes. The start methods
of `multiprocessing` are not suitable: `spawn` runs the user's script again, and `fork` copies a
process in which JAX has threads.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from shardalg.costs.hardware import Hardware
from shardalg.costs.topology import Topology
from shardalg.errors import ShardalgError
from shardalg.models.ranking.candidate import Candidate
from shardalg.models.ranking.groups import CandidatePricing, Price

# A search shorter than the start of a worker would gain nothing, so workers start after this time.
ALONE_S = 1.0
# A worker needs several hundred megabytes, so their number has a limit (this process included).
MOST = 8
_SERVE = f"from {__name__} import serve; serve()"


@dataclass(frozen=True)
class PricingTask:
    """Candidates of one step on one mesh, and the machine that they are priced for."""

    group: Sequence[Candidate]
    on: Hardware | Topology


@dataclass(frozen=True)
class Done:
    """The result of a task.

    Attributes:
      prices: the prices in the order of the task's group; () if the task failed.
      planned: the number of plans that the task made.
      refused: the text of the error if the task failed, otherwise "".
    """

    prices: tuple[Price, ...]
    planned: int
    refused: str = ""


def done(task: PricingTask, pricing: CandidatePricing) -> Done:
    """Return the task's prices, computed in this process.

    The result has the prices in the order of the group, the number of plans that were made, and the
    error's text if no plan can be made.
    """
    planned_before = pricing.planned
    if not task.group:
        return Done((), 0)
    try:
        # Candidates that share a plan may be priced in another order than that of the group.
        price_of = {id(one): price for one, price in pricing.prices(task.group, task.on)}
    except ShardalgError as error:
        return Done((), pricing.planned - planned_before, str(error))
    return Done(tuple(price_of[id(one)] for one in task.group), pricing.planned - planned_before)


def cores() -> int:
    """Return the number of cores that this process may use, at most `MOST`."""
    usable = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    return min(MOST, len(usable(0)))


def serve() -> None:
    """Read tasks from standard input and write their results, until the input ends.

    This function is the whole program of a worker.
    """
    answers = os.fdopen(os.dup(1), "wb")
    # A library's print would corrupt the pickles on standard output: it goes to standard error.
    os.dup2(2, 1)
    pricing = CandidatePricing()
    with suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        while True:
            pickle.dump(done(pickle.load(sys.stdin.buffer), pricing), answers)
            answers.flush()


def _started() -> subprocess.Popen[bytes]:
    """Return a new worker process, which imports the package from where this process has it."""
    root = os.fspath(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-c", _SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path},
        # In one session Ctrl-C would also interrupt the workers; this process handles it.
        start_new_session=True,
    )


@dataclass(eq=False)
class Workers:
    """Tasks that this process prices and, after `ALONE_S`, worker processes too.

    Attributes:
      tasks: the tasks in the order in which they are begun.
      begun: called in this thread with the index of each task, in order.
      count: the largest number of processes, this one included.
      pricing: the pricing of this process.
      done: the results so far, by the index of the task; all results after `run`.
    """

    tasks: Sequence[PricingTask]
    begun: Callable[[int], None]
    count: int
    pricing: CandidatePricing = field(default_factory=CandidatePricing)
    done: dict[int, Done] = field(default_factory=dict)
    _taken: int = 0
    _num_begun: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self) -> None:
        """Price all tasks; if this is interrupted, `done` has the results so far.

        This process and up to `count - 1` worker processes each take the next task that no other
        one has taken, until none is left. A thread starts the workers and feeds them (`_beside`).
        """
        many = min(self.count - 1, len(self.tasks) - 1)
        # Tasks are pickled before pricing starts, because pricing in this process fills the caches
        # that a task's values have, and these would be pickled too.
        pickled = [pickle.dumps(task) for task in self.tasks] if many > 0 else []
        # Threads only start and feed processes; pricing in threads would share one interpreter
        # lock.
        others = threading.Thread(target=self._beside, args=(many, pickled))
        others.start()
        try:
            for place in self._places():
                self._tell()
                self.done[place] = done(self.tasks[place], self.pricing)
            others.join()
            # A worker that died has left its task without a result.
            for place in set(range(len(self.tasks))) - self.done.keys():
                self.done[place] = done(self.tasks[place], self.pricing)
            self._tell()
        finally:
            with self._lock:
                self._taken = len(self.tasks)
                self._ended.set()
                # A killed worker closes its pipe, which ends the thread that reads its answer.
                for process in self._processes:
                    process.kill()
            others.join()

    def _beside(self, many: int, pickled: Sequence[bytes]) -> None:
        """Start up to `many` worker processes after `ALONE_S`; send them tasks until none is left.

        Args:
          pickled: the tasks in their order.
        """
        if self._ended.wait(ALONE_S):
            return
        # If the system refuses a further process, fewer workers do the same tasks.
        with self._lock, suppress(OSError):
            left = 0 if self._ended.is_set() else len(self.tasks) - self._taken
            for _ in range(min(many, left)):
                self._processes.append(_started())

        # A task of a worker that dies stays without a result: `run` prices it in this process.
        def serve_tasks(process: subprocess.Popen[bytes]) -> None:
            with suppress(OSError, EOFError, pickle.UnpicklingError), process:
                for place in self._places():
                    self.done[place] = _answered(process.stdin, process.stdout, pickled[place])

        # One thread per worker, because reading an answer blocks until the worker has priced it.
        threads = [threading.Thread(target=serve_tasks, args=(p,)) for p in self._processes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _places(self) -> Iterator[int]:
        """Yield the index of the next task that no process has taken, until none is left."""
        while True:
            with self._lock:
                # Threads take tasks at the same time: the lock gives each task to one of them.
                place, self._taken = self._taken, self._taken + 1
            if place >= len(self.tasks):
                self._ended.set()
                return
            yield place

    def _tell(self) -> None:
        """Call `begun` for the tasks that a process took since the last call, in this thread."""
        for place in range(self._num_begun, min(self._taken, len(self.tasks))):
            self._num_begun = place + 1
            self.begun(place)


def _answered(given: IO[Any] | None, answers: IO[Any] | None, task: bytes) -> Done:
    """Send a pickled task to a worker and return its result; this blocks until it is priced."""
    assert given is not None and answers is not None
    given.write(task)
    given.flush()
    found: Done = pickle.load(answers)
    return found
