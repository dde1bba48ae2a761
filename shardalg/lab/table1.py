"""Table 1 of the paper, derived: the costs of each strategy as formulas, from planned programs.

The layers are planned with symbolic sizes, so each cost is a formula and has an order (`O(1/X)`).
`scaling_curves` draws each cost over the sizes of the mesh axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import sympy

from shardalg.algebra.mesh import Mesh
from shardalg.costs.analyses.scaling import QUANTITIES, Scaling, scaling
from shardalg.costs.saved_activations import saved_values
from shardalg.costs.symbolic import Symbolised
from shardalg.errors import StrategyError
from shardalg.lab.table1_strategies import STRATEGIES
from shardalg.models.training import part
from shardalg.models.transformer import WIDE_64B, Config
from shardalg.plan.plan import Plan, plan
from shardalg.sizes.formula import Formula, symbol
from shardalg.sizes.growth import Order
from shardalg.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from shardalg.sizes.facts import Assumed

COLUMNS = QUANTITIES[:4]
"""The four costs of the paper's table, which has none for the optimizer."""
Denominators = tuple[str, ...]
"""An order as a sum of terms `1 / product of axes`: ("X", "XY") is O(1/X + 1/(X*Y))."""


@dataclass(frozen=True)
class Costs:
    """The costs of a strategy, and how they depend on the sizes of the mesh axes.

    Attributes:
      scaling: the formula of each quantity.
      orders: the order of each quantity, in the sizes of the mesh's axes.
      hints: the sizes for which the program was planned.
      facts: the conditions on the sizes under which the formulas hold, such as divisibility.
    """

    scaling: Scaling
    orders: tuple[Order, ...]
    hints: Mapping[str, int]
    facts: tuple[Assumed, ...] = ()

    def order(self, quantity: str) -> Order:
        """Return the order of growth of a cost; `quantity` is one of `QUANTITIES`."""
        return self.orders[QUANTITIES.index(quantity)]


def derive(symbolised: Symbolised, roles: tuple[str, ...], *, per: str | None = None) -> Costs:
    """Return the costs of a symbolic plan's program.

    Args:
      roles: the role of each value of the graph.
      per: the name of a size, such as the number of layers L. Each cost is then its coefficient of
        this size; None takes the whole cost.
    """
    saved = saved_values(symbolised.hints, symbolised.graph)
    found = scaling(symbolised.program, symbolised.graph, roles, saved=saved)
    return costs(found if per is None else found.per(per), [symbolised])


def costs(found: Scaling, programs: Sequence[Symbolised]) -> Costs:
    """Return formulas with their orders, and with the hints and conditions of their programs.

    Args:
      found: the formulas of all costs.
      programs: the programs with named sizes from which the formulas come.
    """
    facts = tuple(dict.fromkeys(fact for each in programs for fact in each.conditions))
    axes = programs[0].sizes.axes.values()
    # An order is a statement about the mesh axes; all other sizes count as constants.
    growing = {name for size in axes for name in Formula.of(size).names}
    orders = found.orders(growing, [pair for fact in facts for pair in fact.divided])
    hints = {name: hint for each in programs for name, hint in each.sizes.hints.items()}
    return Costs(found, orders, hints, facts)


def paper_order(denominators: Denominators) -> Order:
    """Return the order of growth that Table 1 of the paper states: a sum of `1 / denominator`.

    Args:
      denominators: products of mesh axes, each written as a word: "XY" is X times Y.

    >>> paper_order(("X", "Y")), paper_order(("XY",)), paper_order(())
    (O(1/X + 1/Y), O(1/(X*Y)), 0)
    """
    # The terms are sorted by their text, because equal orders must be equal tuples.
    products = (1 / math.prod(map(symbol, axes), start=Formula.of(1)) for axes in denominators)
    return Order(tuple(sorted(products, key=str)))


def table(
    found: Mapping[str, Costs], paper: Mapping[str, Sequence[Denominators]] | None = None
) -> Table:
    """Return a row per strategy and cost: its formula, bytes per device, and order of growth.

    Bytes are for the sizes at which the strategies are planned (hints).

    Args:
      found: the costs by strategy.
      paper: the paper's orders of the quantities in `COLUMNS`, by strategy. None: the table has no
        comparison, and a row for every quantity, also for the optimizer's.
    """
    rows = []
    for name, strategy in found.items():
        for place, quantity in enumerate(COLUMNS if paper else QUANTITIES):
            order = strategy.orders[place]
            # One order, or none: a row that is not in the paper gets no cells for a comparison.
            paper_orders = [paper_order(paper[name][place])] if paper else []
            comparison = [
                cell for o in paper_orders for cell in (big_o(o), "yes" if o == order else "NO")
            ]
            priced = _priced(strategy.scaling.values()[place], strategy.hints)
            rows.append((name, quantity, *priced, big_o(order), *comparison))
    columns = ("strategy", "quantity", "formula", "bytes", "order")
    return Table(columns + (("paper", "equal") if paper else ()), tuple(rows))


def difference(found: Mapping[str, Scaling], hints: Mapping[str, int]) -> Table:
    """Return a row per strategy and cost that is not 0: its formula and its bytes.

    Args:
      found: by strategy, the difference of two costs.
      hints: the sizes for which the bytes are computed.
    """
    rows = (
        (name, quantity, *_priced(value, hints))
        for name, added in found.items()
        for quantity, value in zip(QUANTITIES, added.values(), strict=True)
        if value
    )
    return Table(("strategy", "quantity", "formula", "bytes"), tuple(rows))


def _priced(value: Formula | int, hints: Mapping[str, int]) -> tuple[sympy.Expr, int]:
    """Return a cost as a sympy expression, and its bytes for the sizes `hints`."""
    formula = Formula.of(value)
    return formula.sympy(), round(formula.at(hints))


class BigO(sympy.Function):
    """The function `O(...)` for printing.

    sympy's own `Order` has one limit point, and its MathML prints `o`.
    """

    nargs = 1

    def _sympystr(self, printer: Any) -> str:
        return f"O({printer.doprint(self.args[0])})"

    def _latex(self, printer: Any) -> str:
        return rf"O\left({printer.doprint(self.args[0])}\right)"

    def _mathml_presentation(self, printer: Any) -> Any:
        """Return the MathML element for `O(argument)`; sympy's printer calls this method."""

        def element(tag: str, *parts: Any) -> Any:
            """Return a new MathML element with a tag and its content."""
            node = printer.dom.createElement(tag)
            for piece in parts:
                node.appendChild(piece)
            return node

        name, opened, closed = (
            element(tag, printer.dom.createTextNode(text))
            for tag, text in (("mi", "O"), ("mo", "("), ("mo", ")"))
        )
        return element("mrow", name, opened, printer._print(self.args[0]), closed)


def big_o(order: Order) -> sympy.Expr:
    """Return an order of growth, such as O(1/X), as a sympy expression; 0 without terms.

    >>> big_o(paper_order(("X", "XY")))
    O(1/X + 1/(X*Y))
    """
    return BigO(sum(term.sympy() for term in order.terms)) if order.terms else sympy.S.Zero


INK = "#22262b"
COLORS = ("#c62828", "#ef6c00", "#1565c0", "#2e7d32", "#6a1b9a")
MARKERS = ("o", "s", "^", "D", "v")
POWERS = 2 ** np.arange(1, 9)


def scaling_curves(found: Mapping[str, Costs], axes: Sequence[str] = ("X", "Y")) -> Figure:
    """Draw bytes per device over the size of each mesh axis, with the other sizes at their hints.

    A column per quantity, a row per axis, a line per strategy; both scales are logarithmic, so that
    a cost of order 1/X falls by one step per step. A line ends where the formula's conditions do.
    """
    from shardalg.drawing import Drawing

    figure = Drawing(figsize=(3.1 * len(COLUMNS), 2.7 * len(axes) + 0.4), layout="constrained")
    grid = figure.subplots(len(axes), len(COLUMNS), squeeze=False)
    for row, axis in zip(grid, axes, strict=True):
        for panel, quantity in zip(row, COLUMNS, strict=True):
            curves = {name: sweep(costs, quantity, axis) for name, costs in found.items()}
            _draw(panel, curves, axis)
            panel.set_title(quantity.replace("_", " ") if axis == axes[0] else "", fontsize=10)
        row[0].set_ylabel("bytes per device", fontsize=9)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, ncols=len(labels), loc="outside upper left", frameon=False, fontsize=9
    )
    return figure


def sweep(costs: Costs, quantity: str, axis: str) -> np.ndarray:
    """Return bytes of a cost for each size in `POWERS` of one mesh axis.

    All other sizes have their hints. An entry is NaN if the plan would be another one there.

    Args:
      quantity: the name of the cost, one of `QUANTITIES`. axis: the axis with the sizes.
    """
    value = Formula.of(getattr(costs.scaling, quantity))
    swept = np.broadcast_to(value.lambdify()(**{**costs.hints, axis: POWERS}), POWERS.shape)
    points = ({**costs.hints, axis: int(size)} for size in POWERS)
    # A formula is that of the program at the hints: where a fact fails, the plan is another one.
    holds = [all(fact.holds(point) for fact in costs.facts) for point in points]
    return np.where(holds, swept, np.nan)


def _draw(panel: Axes, curves: Mapping[str, np.ndarray], axis: str) -> None:
    """Draw one quantity of all strategies; the axis label names the strategies whose cost is 0."""
    nothing = [name for name, values in curves.items() if not np.nansum(values)]
    for place, (name, values) in enumerate(curves.items()):
        # Costs of two strategies are often equal: a wider line below a narrower one shows both.
        panel.plot(
            POWERS, np.where(values > 0, values, np.nan), color=COLORS[place % len(COLORS)],
            lw=1.2 + 1.3 * (len(curves) - place - 1), alpha=0.85, label=name,
            marker=MARKERS[place % len(MARKERS)], ms=3.5,
        )  # fmt: skip
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.set_xticks(POWERS, [str(n) for n in POWERS], fontsize=7)
    panel.tick_params(axis="y", labelsize=7)
    panel.grid(color="#e2e5e9", lw=0.6)
    zeros = f"   ({', '.join(nothing)}: 0)" if nothing else ""
    panel.set_xlabel(f"{axis}{zeros}", fontsize=9, color=INK)
    panel.spines[["top", "right"]].set_visible(False)


PARTS = ("attention_gradient", "ffn_gradient")
SIZES = replace(WIDE_64B, scan=True)
"""The first column of the paper's Table 2: its sizes are the hints of the symbolic sizes."""
MESH = Mesh({"X": 8, "Y": 16}, symbolic=True)


def plan_part(config: Config, mesh: Mesh, strategy: str, name: str) -> Plan:
    """Return the plan of a part of the Transformer under a strategy of GSPMD's Table 1.

    On a symbolic mesh the model's sizes are symbolic too.

    Args:
      strategy: the name of a row of Table 1. name: the part, one of `training.PARTS`.
    """
    model_part = part(name)
    arguments = model_part.named_arguments if mesh.symbolic else model_part.arguments
    return plan(
        model_part.function(config),
        *arguments(config),
        strategy=STRATEGIES[strategy](mesh, config, name),
        roles=model_part.roles(),
        donate_argnums=model_part.donate_argnums(),
    )


def costs_of(plan: Plan, *, per: str | None = None) -> Costs:
    """Return formulas and orders of a plan with symbolic sizes.

    Args:
      per: the name of a size; each cost is then its coefficient of this size.

    Raises:
      StrategyError: the plan has numbers instead of symbolic sizes.
    """
    return derive(_symbolised(plan), plan._traced.roles, per=per)


def _symbolised(plan: Plan) -> Symbolised:
    """Return the plan's program in symbolic sizes.

    Raises:
      StrategyError: the plan has numbers instead of symbolic sizes.
    """
    if plan._symbolised is None:
        raise StrategyError(
            f"{plan!r} has no named sizes, so that its costs have no orders: plan on a mesh with "
            "symbolic=True and arguments in sa.dims, such as Part.named_arguments."
        )
    return plan._symbolised


def layer_costs(
    config: Config = SIZES, mesh: Mesh = MESH, strategies: Iterable[str] = tuple(STRATEGIES)
) -> dict[str, Costs]:
    """Return the costs of attention and feed-forward with their gradients, per strategy.

    Args:
      config: the numbers (hints) at which the symbolic sizes are planned.
      mesh: a mesh of two axes with symbolic sizes.
      strategies: names of rows of the paper's Table 1.
    """
    return {
        name: _together([plan_part(config, mesh, name, part) for part in PARTS])
        for name in strategies
    }


def _together(plans: list[Plan]) -> Costs:
    """Return the sum of the costs of two plans with named sizes."""
    # Costs add up, because attention and feed-forward run one after the other on each device.
    programs = [_symbolised(plan) for plan in plans]
    first, second = (costs_of(plan).scaling for plan in plans)
    return costs(first + second, programs)
