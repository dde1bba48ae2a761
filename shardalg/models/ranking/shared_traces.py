"""Plans of candidates that train one step: it is traced once, and planned on every mesh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardalg.costs.cost import Cost
from shardalg.costs.hardware import Hardware
from shardalg.costs.topology import Topology
from shardalg.models.dense_cost import SHALLOW, cost_on, machine_for
from shardalg.models.ranking.candidate import PIPELINED, Candidate
from shardalg.plan.plan import Plan

OFFLOADED = "minimal_offloaded"


class SharedTraces:
    """The traces of the last step; each cost is the same as the candidate's own.

    >>> from shardalg.algebra.mesh import Mesh
    >>> from shardalg.models.dense import DenseTransformer
    >>> model = DenseTransformer(2, 16, 32, 2, 8, 32, 8, 8)
    >>> one, other = (Candidate(model, Mesh({"X": n}), "finalized") for n in (4, 8))
    >>> shared = SharedTraces()
    >>> [shared.cost(c, "v5e").step_time_s == c.cost("v5e").step_time_s for c in (one, other)]
    [True, True]
    """

    def __init__(self) -> None:
        self.step: object = None
        self.traced: dict[int, Plan] = {}

    def cost(self, one: Candidate, hardware: str | Hardware | Topology) -> Cost:
        """The cost of a candidate; see `Candidate.cost`."""
        if one.model.remat == OFFLOADED:
            return one.cost(hardware)
        on = machine_for(one.mesh, hardware)
        return cost_on(one.model.layers, self.plans(one), on)

    def plans(self, one: Candidate) -> Mapping[int, Plan]:
        """Plans by layers: of all in a pipeline, else of few (`DenseTransformer.shallow_plans`)."""
        if one.step != self.step:
            self.step, self.traced = one.step, {}
        layers = one.model.layers
        whole = one.strategy == PIPELINED or layers <= max(SHALLOW)
        return {n: self._planned(one, n) for n in ((layers,) if whole else SHALLOW)}

    def _planned(self, one: Candidate, layers: int) -> Plan:
        shallow = replace(one, model=replace(one.model, layers=layers))
        if layers in self.traced:
            return self.traced[layers].replan(shallow.laid_out())
        made = self.traced[layers] = shallow.plan()
        return made
