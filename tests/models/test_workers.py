"""Candidates priced by several processes: the same ranking, whatever becomes of a worker."""

import pickle
from dataclasses import replace

import pytest

import shardalg as sa
from shardalg.errors import StrategyError
from shardalg.models.ranking import workers
from shardalg.models.ranking.candidate import Candidate

SMALL = sa.models.DenseTransformer(
    layers=2, model_dim=64, hidden_dim=128, heads=4, head_dim=16, vocab=128, seq=16, batch=16
)
CHOICES = {"strategy": ["finalized"], "batch": [16, 24], "remat": ["full"]}


@pytest.fixture
def started(monkeypatch):
    """Return the processes, all started."""
    found, start = [], workers._started
    monkeypatch.setattr(workers, "ALONE_S", 0)
    monkeypatch.setattr(workers, "_started", lambda: found.append(start()) or found[-1])
    return found


def ranked(processes, progress=None):
    asked = {"choices": CHOICES, "processes": processes, "progress": progress}
    return sa.strategies(SMALL, 8, "v3", **asked)


@pytest.fixture(scope="module")
def alone():
    """Return the ranking of one process, and its progress messages."""
    told = []
    return ranked(1, lambda *what: told.append(what)), told


@pytest.mark.slow
def test_two_processes_rank_as_one_does(started, alone):
    told = []
    assert ranked(2, lambda *what: told.append(what)).to_json() == alone[0].to_json()
    assert [process.returncode for process in started] == [0]
    assert told == alone[1]
    assert len(told) == 4


@pytest.mark.slow
def test_a_worker_answers_what_this_process_would():
    model = replace(SMALL, batch=24, remat="full")
    task = workers.PricingTask(
        [Candidate(model, sa.Mesh({"X": 8}), "finalized")], sa.Topology("v3", shape=(2, 2))
    )
    with workers._started() as process:
        answers = [
            workers._answered(process.stdin, process.stdout, pickle.dumps(task)) for _ in range(2)
        ]
    assert process.returncode == 0
    alone = workers.done(task, workers.CandidatePricing())
    assert [one.prices for one in answers] == 2 * [alone.prices]


@pytest.mark.slow
def test_what_a_dead_worker_had_is_priced_here(started, alone, monkeypatch):
    monkeypatch.setattr(workers, "_SERVE", "import sys; sys.stdin.buffer.read(9); sys.exit(3)")
    assert ranked(3).to_json() == alone[0].to_json()
    assert [process.returncode for process in started] == [3, 3]


def test_no_worker_is_left_by_an_interrupt(started, monkeypatch):
    # one that answers nothing: a quick one may be through with all before this process counts
    monkeypatch.setattr(workers, "_SERVE", "import time; time.sleep(600)")

    def stop(number, *_):
        if number > 4:
            raise KeyboardInterrupt

    assert ranked(2, stop).left
    (process,) = started
    assert process.returncode is not None


def test_a_refusal_is_an_answer(monkeypatch):
    def prices(self, found, on):
        raise StrategyError("does not divide")

    monkeypatch.setattr(workers.CandidatePricing, "prices", prices)
    task = workers.PricingTask(["a candidate"], None)
    assert workers.done(task, workers.CandidatePricing()).refused == "does not divide"
    with pytest.raises(StrategyError, match=r"the first of 8 candidates, .*: does not divide"):
        ranked(1)


@pytest.mark.parametrize("number", [0, -1, 1.5, True])
def test_a_number_of_processes_is_at_least_one(number):
    with pytest.raises(StrategyError, match=f"processes={number}: give a number of at least 1"):
        ranked(number)
