"""The paper's Table 1 as an output: what strategies cost, derived from their programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy

from shardalg.costs.analyses.scaling import QUANTITIES, Scaling, scaling
from shardalg.costs.saved_activations import saved_values
from shardalg.io.table import Table
from shardalg.sizes.formula import Formula, symbol
from shardalg.sizes.growth import Order

if TYPE_CHECKING:
    from shardalg.costs.symbolic import Symbolised
    from shardalg.sizes.assumed import Assumed

# Four columns of the table; the optimizer has none.
COLUMNS = QUANTITIES[:4]
Denominators = tuple[str, ...]


@dataclass(frozen=True)
class Costs:
    """What a strategy takes, and how it scales with the mesh.

    Attributes:
      scaling: formulas.
      orders: of each quantity, in the sizes of the mesh's axes.
      hints: the sizes at which it was planned.
      facts: what divides what, or does not, at the hints and in the formulas, and axes whose size
        the formulas take to be their hint.
    """

    scaling: Scaling
    orders: tuple[Order, ...]
    hints: Mapping[str, int]
    facts: tuple[Assumed, ...] = ()

    def order(self, quantity: str) -> Order:
        """The order of one quantity."""
        return self.orders[QUANTITIES.index(quantity)]


def derive(symbolised: Symbolised, roles: tuple[str, ...], *, per: str | None = None) -> Costs:
    """The costs of a symbolic plan's program.

    Args:
      roles: per graph value.
      per: a size, such as the number of layers, of which every cost is taken the coefficient.
    """
    saved = saved_values(symbolised.hints, symbolised.graph)
    found = scaling(symbolised.program, symbolised.graph, roles, saved=saved)
    return costs(found if per is None else found.per(per), [symbolised])


def costs(found: Scaling, programs: Sequence[Symbolised]) -> Costs:
    """Formulas with their orders, on the shardings of the programs that they are of."""
    facts = tuple(dict.fromkeys(fact for made in programs for fact in made.conditions))
    axes = programs[0].sizes.axes.values()
    growing = {name for size in axes for name in Formula.of(size).names}
    orders = found.orders(growing, [pair for fact in facts for pair in fact.divided])
    hints = {name: hint for made in programs for name, hint in made.sizes.hints.items()}
    return Costs(found, orders, hints, facts)


def paper_order(denominators: Denominators) -> Order:
    """An order as the paper's table has it.

    >>> paper_order(("X", "Y")), paper_order(("XY",)), paper_order(())
    (O(1/X + 1/Y), O(1/(X*Y)), 0)
    """
    products = (1 / math.prod(map(symbol, axes), start=Formula.of(1)) for axes in denominators)
    return Order(tuple(sorted(products, key=str)))


def table(
    found: Mapping[str, Costs], paper: Mapping[str, Sequence[Denominators]] | None = None
) -> Table:
    """A row per strategy and quantity: the formula, bytes on one device at the hints, the order.

    Args:
      paper: per strategy the orders that its costs are held against, in the order of `COLUMNS`;
        without it every quantity has a row, the optimizer's too.
    """
    rows = []
    for name, strategy in found.items():
        for place, quantity in enumerate(COLUMNS if paper else QUANTITIES):
            ours = strategy.orders[place]
            theirs = [paper_order(paper[name][place])] if paper else []
            against = [cell for o in theirs for cell in (big_o(o), "yes" if o == ours else "NO")]
            priced = _priced(strategy.scaling.values()[place], strategy.hints)
            rows.append((name, quantity, *priced, big_o(ours), *against))
    columns = ("strategy", "quantity", "formula", "bytes", "order")
    return Table(columns + (("paper", "equal") if paper else ()), tuple(rows))


def difference(found: Mapping[str, Scaling], hints: Mapping[str, int]) -> Table:
    """A row per strategy and quantity that is not 0: formula, and bytes at the hints."""
    rows = (
        (name, quantity, *_priced(value, hints))
        for name, added in found.items()
        for quantity, value in zip(QUANTITIES, added.values(), strict=True)
        if value
    )
    return Table(("strategy", "quantity", "formula", "bytes"), tuple(rows))


def _priced(value: Formula | int, hints: Mapping[str, int]) -> tuple[sympy.Expr, int]:
    formula = Formula.of(value)
    return formula.sympy(), round(formula.at(hints))


class BigO(sympy.Function):
    """`O(...)` as it is printed. sympy's own `Order` is of one limit, and MathML would say `o`."""

    nargs = 1

    def _sympystr(self, printer: Any) -> str:
        return f"O({printer.doprint(self.args[0])})"

    def _latex(self, printer: Any) -> str:
        return rf"O\left({printer.doprint(self.args[0])}\right)"

    def _mathml_presentation(self, printer: Any) -> Any:
        def element(tag: str, *parts: Any) -> Any:
            made = printer.dom.createElement(tag)
            for part in parts:
                made.appendChild(part)
            return made

        name, opened, closed = (
            element(tag, printer.dom.createTextNode(text))
            for tag, text in (("mi", "O"), ("mo", "("), ("mo", ")"))
        )
        return element("mrow", name, opened, printer._print(self.args[0]), closed)


def big_o(order: Order) -> sympy.Expr:
    """An order in sympy; 0 where nothing is spent.

    >>> big_o(paper_order(("X", "XY")))
    O(1/X + 1/(X*Y))
    """
    return BigO(sum(term.sympy() for term in order.terms)) if order.terms else sympy.S.Zero
