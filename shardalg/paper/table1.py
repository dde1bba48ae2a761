"""The layers of Table 1, planned with named sizes, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shardalg.algebra.mesh import Mesh
from shardalg.costs.symbolic import Symbolised
from shardalg.errors import StrategyError
from shardalg.models.training import part
from shardalg.models.transformer import WIDE_64B, Config
from shardalg.paper.table1_costs import Costs, costs, derive
from shardalg.paper.table1_strategies import STRATEGIES
from shardalg.plan.plan import Plan, plan

PARTS = ("attention_gradient", "ffn_gradient")
# The first column of the paper's Table 2: sizes have the paper's letters, and these hints.
SIZES = replace(WIDE_64B, scan=True)
MESH = Mesh({"X": 8, "Y": 16}, symbolic=True)


def plan_part(config: Config, mesh: Mesh, strategy: str, name: str) -> Plan:
    """The plan of a part of the model under a strategy of Table 1.

    On a symbolic mesh the model's sizes have names too.
    """
    chosen = part(name)
    arguments = chosen.named_arguments if mesh.symbolic else chosen.arguments
    return plan(
        chosen.function(config),
        *arguments(config),
        strategy=STRATEGIES[strategy](mesh, config, name),
        roles=chosen.roles(),
        donate_argnums=chosen.donate_argnums(),
    )


def costs_of(made: Plan, *, per: str | None = None) -> Costs:
    """What a plan with named sizes takes: in formulas and orders, per unit of the size `per`.

    Raises:
      StrategyError: a plan in numbers.
    """
    return derive(_named(made), made._traced.roles, per=per)


def _named(made: Plan) -> Symbolised:
    if made._symbolised is None:
        raise StrategyError(
            f"{made!r} has no named sizes, so that its costs have no orders: plan on a mesh with "
            "symbolic=True and arguments in sa.dims, such as Part.named_arguments."
        )
    return made._symbolised


def layer_costs(
    config: Config = SIZES, mesh: Mesh = MESH, strategies: Iterable[str] = tuple(STRATEGIES)
) -> dict[str, Costs]:
    """Attention and feed-forward with their gradients, together, per strategy.

    Args:
      config: the hints of the sizes. mesh: symbolic, of two axes.
    """
    return {
        name: _together([plan_part(config, mesh, name, part) for part in PARTS])
        for name in strategies
    }


def _together(plans: list[Plan]) -> Costs:
    programs = [_named(made) for made in plans]
    first, second = (costs_of(made).scaling for made in plans)
    return costs(first + second, programs)
