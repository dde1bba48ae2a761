"""Formulas of pipeline schedules, against schedules that are carried out step by step."""

import itertools

import pytest
import sympy

import shardalg as sa
from shardalg.costs.pipelines.schedules import MPMD, Mpmd, Schedule, compared

SIZES = [(2, 2), (2, 5), (4, 4), (4, 8), (8, 16)]


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize(("stages", "batches"), SIZES)
def test_the_loop_runs_every_piece_once_and_waits_as_said(stages, batches, rounds):
    schedule = Schedule(stages, batches, rounds)
    done = {}
    for t, stage in itertools.product(range(schedule.iterations), range(stages)):
        turn, batch = divmod(t - stage, batches)
        if 0 <= turn < rounds:
            before = (stage - 1, turn, batch) if stage else (stages - 1, turn - 1, batch)
            assert before == (stages - 1, -1, batch) or done[before] < t
            assert (stage, turn, batch) not in done
            done[stage, turn, batch] = t
    assert len(done) == stages * rounds * batches
    idle = 1 - len(done) / (stages * schedule.iterations)
    assert schedule.bubble_ratio == pytest.approx(idle)


def run(orders, seconds, depends):
    """Return the ends of the tasks if each device runs its own in order, as soon as possible."""
    ends, free, places = {}, [0] * len(orders), [0] * len(orders)
    while any(place < len(order) for place, order in zip(places, orders, strict=True)):
        moved = False
        for device, order in enumerate(orders):
            if places[device] < len(order):
                task = order[places[device]]
                needs = depends(device, task)
                if all(need in ends for need in needs):
                    start = max([free[device], *(ends[need] for need in needs)])
                    ends[device, task] = free[device] = start + seconds[task[0]]
                    places[device] += 1
                    moved = True
        assert moved, "the orders wait for each other"
    return ends


def one_f_one_b(stages, batches, device, rounds=1):
    """Return Megatron's order: some forwards first, then one of each, then backwards."""
    if rounds == 1:
        first = min(stages - device - 1, batches)
        forward = [("F", 0, m) for m in range(batches)]
        backward = [("B", 0, m) for m in range(batches)]
    else:
        groups = range(0, batches, stages)
        forward = [("F", r, g + m) for g in groups for r in range(rounds) for m in range(stages)]
        backward = [
            ("B", r, g + m) for g in groups for r in reversed(range(rounds)) for m in range(stages)
        ]
        first = min(2 * (stages - device - 1) + (rounds - 1) * stages, len(forward))
    order = forward[:first]
    for ahead, back in itertools.zip_longest(forward[first:], backward):
        order += [task for task in (ahead, back) if task]
    return order


def depends_on(stages, rounds):
    def depends(device, task):
        kind, turn, batch = task
        if kind == "W":
            return [(device, ("B", turn, batch))]
        if kind == "F":
            if device == 0:
                return [(stages - 1, ("F", turn - 1, batch))] if turn else []
            return [(device - 1, task)]
        own = [(device, ("F", turn, batch))]
        if device < stages - 1:
            return [*own, (device + 1, task)]
        return [*own, (0, ("B", turn + 1, batch))] if turn < rounds - 1 else own

    return depends


def most_alive(order, frees="B"):
    alive = peak = 0
    for kind, *_ in order:
        alive += (kind == "F") - (kind == frees)
        peak = max(peak, alive)
    return peak


@pytest.mark.parametrize(("kind", "rounds"), [("1f1b", 1), ("interleaved", 2), ("interleaved", 3)])
@pytest.mark.parametrize(("stages", "batches"), [(2, 4), (4, 8), (4, 16)])
def test_schedules_of_megatron(stages, batches, kind, rounds):
    orders = [one_f_one_b(stages, batches, device, rounds) for device in range(stages)]
    ends = run(orders, {"F": 1, "B": 2}, depends_on(stages, rounds))
    busy = 3 * rounds * batches
    schedule = Mpmd(stages, batches, rounds, kind)
    assert schedule.bubble_ratio == pytest.approx(1 - busy / max(ends.values()))
    assert schedule.stash == pytest.approx(max(map(most_alive, orders)) / rounds)


def zero_bubble(stages, batches, device):
    """Return forwards up to the memory limit; then a backward, a forward, and a weights' part."""
    first = min(stages - device, batches)
    order = [("F", 0, m) for m in range(first)]
    ahead, weights = first, 0
    for batch in range(batches):
        order.append(("B", 0, batch))
        if batch >= device:
            order.append(("W", 0, weights))
            weights += 1
        if ahead < batches:
            order.append(("F", 0, ahead))
            ahead += 1
    return order + [("W", 0, m) for m in range(weights, batches)]


@pytest.mark.parametrize(("stages", "batches"), [(2, 8), (4, 12), (8, 32)])
def test_the_zero_bubble_schedule_with_the_memory_of_1f1b(stages, batches):
    orders = [zero_bubble(stages, batches, device) for device in range(stages)]
    ends = run(orders, {"F": 1, "B": 1, "W": 1}, depends_on(stages, 1))
    schedule = Mpmd(stages, batches, kind="zero-bubble H1")
    assert schedule.bubble_ratio == pytest.approx(1 - 3 * batches / max(ends.values()))
    assert max(most_alive(order, "W") for order in orders) == schedule.stash


def test_in_symbols():
    L, M, R = sympy.symbols("L M R", positive=True)
    circular, gpipe = Schedule(L, M / 4, R), Schedule(L, M)
    # section 5.3: with four rounds and a quarter of the batch the ratio is GPipe's
    assert sympy.simplify(circular.bubble_ratio.subs(R, 4) - gpipe.bubble_ratio) == 0
    table = compared(L, M, R)
    assert sorted(set(table["schedule"])) == sorted(["gpipe", "circular", *MPMD])
    assert table.rows[-1][2] == 0


def test_what_is_not_lowered_says_so():
    table = compared(4, 8, 2)
    said = dict(zip(table["schedule"], table["lowered"], strict=True))
    assert said["gpipe"] == said["circular"] == "yes"
    assert all(said[kind].startswith("not lowered here") for kind in MPMD)


def test_an_unknown_schedule():
    with pytest.raises(sa.PipelineError, match="no schedule 'dualpipe': write one of 1f1b"):
        Mpmd(2, 4, kind="dualpipe")
