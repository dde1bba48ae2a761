"""Memory of a device as a sum over the arguments of a step, and its price in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from shardalg.plan.search.cost_table import CostTable
from shardalg.plan.search.minimising.factor_graph import FactorGraph, Vector

Terms = Mapping[int, Vector]
"""Per variable of a value, the bytes on a device of each of its labels."""


def memory_terms(table: CostTable) -> Terms:
    """Return the bytes of the arguments on a device: parameters, optimizer state and data.

    Each label of an argument has a home, which determines the bytes of its block. All arguments are
    in memory at the start of a step, so that their sum is a lower bound of the peak. Activations
    are left out, because their peak is no sum over values.
    """
    found: dict[int, Vector] = {}
    for value in table.graph.arguments:
        variable = table.value_of.get(value)
        if variable is None:
            continue
        shards = [table.moves.num_shards(home) for home in table.homes[variable]]
        sizes = np.array([table.bytes(value) / count for count in shards])
        # Labels are all homes fused, then all homes in memory.
        both = np.concatenate([sizes, sizes])
        found[variable] = found.get(variable, np.zeros(len(both))) + both
    return found


def with_memory_price(factors: FactorGraph, terms: Terms, ps_per_byte: float) -> FactorGraph:
    """Return the factor graph in which every byte of memory costs this many picoseconds.

    Prices are rounded down to whole picoseconds, so that a lower bound stays one.
    """
    costs = [
        own + np.floor(terms[variable] * ps_per_byte) if variable in terms else own
        for variable, own in enumerate(factors.costs)
    ]
    return replace(factors, costs=costs)
