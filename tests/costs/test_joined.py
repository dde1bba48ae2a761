"""Unequal stages in time: the closed form where stages are alike, else a linear program."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import linprog

import shardalg as sa
from shardalg.costs.pipelines.events import BUBBLE, EventGroup
from shardalg.costs.pipelines.joined import (
    BACKWARD,
    FORWARD,
    ORDERS,
    StageTimes,
    in_flight,
    join_stages,
    orders,
)
from shardalg.models import schedules


def part(phase, seconds):
    return (EventGroup("compute", (), phase, seconds),)


def stage(forward, backward, after=0.0, sends=0.0, returns=0.0):
    once = part(BACKWARD, after) if after else ()
    return StageTimes(part(FORWARD, forward), part(BACKWARD, backward), once, sends, returns)


def ends(events):
    return max(event.start_s + event.seconds for event in events)


@pytest.mark.parametrize("schedule", ORDERS)
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 3), (2, 2), (4, 3), (4, 16)])
def test_equal_stages_have_the_bubbles_of_the_formula(schedule, stages, microbatches):
    """Both schedules have the bubbles of `(M + L - 1) (forward + backward)`; memory differs."""
    order = orders(schedule, stages, microbatches)
    events = join_stages([stage(1.0, 2.0)] * stages, order)
    assert ends(events) == pytest.approx(3 * (microbatches + stages - 1))
    table = schedules(stages, microbatches)
    ratio = dict(zip(table["schedule"], table["bubble_ratio"], strict=True))[schedule]
    for number in range(stages):
        waits = sum(e.seconds for e in events if e.kind == BUBBLE and e.stage == number)
        assert waits / ends(events) == pytest.approx(ratio)
    kept = [in_flight(each) for each in order]
    assert kept == (
        [microbatches] * stages
        if schedule == "gpipe"
        else [min(microbatches, stages - number) for number in range(stages)]
    )


def by_linear_program(stages, order):
    """Return the earliest end, with each task after its predecessors, as HiGHS finds it."""
    number = {
        (s, task): n
        for n, (s, task) in enumerate((s, task) for s, tasks in enumerate(order) for task in tasks)
    }
    rows, least = [], []
    took = {FORWARD: lambda s: s.forward[0].seconds, BACKWARD: lambda s: s.backward[0].seconds}

    def behind(late, early, seconds):
        row = np.zeros(len(number) + 1)
        row[number[early]] = 1
        row[-1 if late is None else number[late]] = -1
        rows.append(row)
        least.append(-(took[early[1].phase](stages[early[0]]) + seconds))

    for s, tasks in enumerate(order):
        for early, late in pairwise(tasks):
            behind((s, late), (s, early), 0)
        behind(None, (s, tasks[-1]), sum(p.seconds for p in stages[s].after))
        for task in tasks:
            if task.phase == FORWARD and s:
                behind((s, task), (s - 1, task), stages[s - 1].sends_s)
            if task.phase == BACKWARD and s < len(stages) - 1:
                behind((s, task), (s + 1, task), stages[s].returns_s)
    goal = np.eye(len(number) + 1)[-1]
    return linprog(goal, A_ub=np.array(rows), b_ub=np.array(least)).fun


@pytest.mark.parametrize("seed", range(12))
def test_unequal_stages_end_when_a_linear_program_says(seed, show):
    rng = np.random.default_rng(seed)
    show(f"seed {seed}")
    stages = [stage(*rng.uniform(0.1, 3, 5)) for _ in range(rng.integers(1, 5))]
    for schedule in ORDERS:
        order = orders(schedule, len(stages), int(rng.integers(1, 7)))
        events = join_stages(stages, order)
        assert ends(events) == pytest.approx(by_linear_program(stages, order))
        for number in range(len(stages)):
            own = [e for e in events if e.stage == number]
            now = 0.0
            for event in own:
                assert event.start_s == pytest.approx(now)
                now += event.seconds
            assert now == pytest.approx(ends(events))


def test_an_unknown_schedule():
    with pytest.raises(sa.PipelineError, match="'zigzag' here: write one of gpipe, 1f1b"):
        orders("zigzag", 2, 2)
