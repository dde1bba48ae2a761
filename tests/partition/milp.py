"""The problem of coordinate descent as a mixed-integer program, solved by scipy's HiGHS.

    x[u, k]     unit u takes option k                        sum_k x[u, k] = 1
    y[v, S, H]  value v is made as S and lies in H           sum_H y[v, S, H] = made as S
    z[v, H, D]  v is brought from H to D                     sum_H z[v, H, D] >= a user asks for D
A home is where the value is made (without pending sums) or asked for.
"""

import math
from collections import defaultdict

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array


class Model:
    """Variables with their costs, and rows `low <= sum <= high`."""

    def __init__(self):
        self.costs, self.rows, self.low, self.high = [], [], [], []

    def variable(self, cost):
        self.costs.append(cost)
        return len(self.costs) - 1

    def row(self, terms, low, high):
        self.rows.append(terms)
        self.low.append(low)
        self.high.append(high)

    def solve(self, seconds):
        entries = [(r, v, c) for r, terms in enumerate(self.rows) for v, c in terms]
        r, v, c = zip(*entries, strict=True)
        matrix = coo_array((c, (r, v)), (len(self.rows), len(self.costs))).tocsr()
        scale = max(self.costs)
        found = milp(
            np.array(self.costs) / scale,
            constraints=LinearConstraint(matrix, self.low, self.high),
            integrality=np.ones(len(self.costs)),
            bounds=Bounds(0, 1),
            options={"time_limit": seconds, "mip_rel_gap": 1e-9},
        )
        return found.fun * scale if found.status == 0 else None


def optimum(problem, seconds=60):
    """Fewest seconds of any options and homes; None where HiGHS does not prove it in time."""
    model = Model()
    takes = [[model.variable(o.seconds) for o in options] for options in problem.units]
    for unit in takes:
        model.row([(x, 1) for x in unit], 1, 1)
    for value in problem.values:
        _value(model, problem, value, takes)
    return model.solve(seconds)


def _value(model, problem, value, takes):
    made, asked = _made(problem, value, takes), _asked(problem, value, takes)
    direct = set()
    known = [*made, *asked, *problem.outside.get(value, ())]
    value_shardings = problem.places(known[0], known[1:])
    if value in problem.value_shardings:
        value_shardings = (problem.value_shardings[value],)
    if value in problem.alone:  # its user may take it as it is made, and no more is done with it
        direct = set(made) - set(value_shardings)
        value_shardings = tuple(dict.fromkeys((*value_shardings, *made)))
    lies = defaultdict(list)
    for layout, units in made.items():
        found = []
        for result_sharding in (layout,) if value in problem.still else value_shardings:
            cost = problem.first_move(value, layout, result_sharding)
            if math.isfinite(cost) and (result_sharding not in direct or result_sharding == layout):
                found.append(model.variable(cost))
                lies[result_sharding].append(found[-1])
        model.row([*((y, 1) for y in found), *((x, -1) for x in units)], *_equal(units))
    for result_sharding in value_shardings:
        if value not in problem.value_shardings and result_sharding not in problem.outside.get(
            value, ()
        ):
            near = [
                x for s, xs in made.items() if result_sharding in problem.places(s, ()) for x in xs
            ]
            near += [x for xs in asked.get(result_sharding, {}).values() for x in xs]
            if not _always(near, made, result_sharding, problem):
                model.row(
                    [*((y, 1) for y in lies[result_sharding]), *((x, -1) for x in near)], -np.inf, 0
                )
    for goal in dict.fromkeys((*asked, *problem.outside.get(value, ()))):
        always = goal in problem.outside.get(value, ())
        _brought(model, problem, (value, goal, always, direct), asked, lies)


def _brought(model, problem, wanted, asked, lies):
    value, goal, always, direct = wanted
    ways = []
    for result_sharding, ys in lies.items():
        cost = problem.move(value, result_sharding, goal)
        if math.isfinite(cost) and (result_sharding not in direct or result_sharding == goal):
            ways.append(model.variable(cost))
            model.row([(ways[-1], 1), *((y, -1) for y in ys)], -np.inf, 0)
    if always:
        model.row([(z, 1) for z in ways], 1, np.inf)
    for xs in asked.get(goal, {}).values():
        model.row([*((z, 1) for z in ways), *((x, -1) for x in xs)], 0, np.inf)


def _always(near, made, result_sharding, problem):
    """Return True if the value is given, so that its sharding is no choice."""
    return not near and any(not units for units in made.values())


def _equal(units):
    return (0, 0) if units else (1, 1)


def _made(problem, value, takes):
    """Layout to the variables of the options that make the value so; none where it is given."""
    unit = problem.makers.get(value)
    if unit is None:
        return {problem.given[value]: []}
    found = defaultdict(list)
    for option, x in zip(problem.units[unit], takes[unit], strict=True):
        found[dict(option.makes)[value]].append(x)
    return found


def _asked(problem, value, takes):
    """Layout to, per unit, the variables of the options that ask for it."""
    found = defaultdict(lambda: defaultdict(list))
    for unit in problem.users.get(value, ()):
        for option, x in zip(problem.units[unit], takes[unit], strict=True):
            for layout in dict.fromkeys(at for v, at in option.asks if v == value):
                found[layout][unit].append(x)
    return found
