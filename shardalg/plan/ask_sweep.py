"""What a plan with named sizes takes at millions of other sizes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from shardalg.costs.topology import machine, machine_text
from shardalg.plan.ask_cost import CostAnswers
from shardalg.plan.ask_sizes import SizeAnswers

if TYPE_CHECKING:
    from shardalg.costs.analyses.sweep import Sweep, Sweeper
    from shardalg.costs.hardware import Hardware
    from shardalg.costs.topology import Topology

_KEPT = 8
"""Sweeps of other sizes, chips or fixed sizes whose programs a plan keeps."""


class SweepAnswers(CostAnswers, SizeAnswers):
    """Seconds, memory and guards over arrays of sizes."""

    def sweep(
        self, hardware: str | Hardware | Topology, *, overlap: str = "none", **sizes: Any
    ) -> Sweep:
        """Step time, peak memory, and where the plan holds, at arrays of named sizes.

        Arrays broadcast against each other: a grid, `B=batches[:, None], X=axis`, costs least.
        Other sizes have their hints. The peak is the largest of the bytes at every instruction, so
        that it may stand elsewhere than at the hints; what is alive when is the hints'. Seconds and
        bytes are those of the hints' decisions; `Sweep.holds` says where these are taken: nowhere
        for certain where `unguarded` says that the questions are not known.

        Args:
          overlap: "none" or "full", as in `cost`.

        Raises:
          SymbolError: a name that the plan does not have, arrays that are no sizes or do not
            broadcast. HardwareError: as `cost` does. FormulaError: overlap="dependences".

        >>> import jax, numpy as np, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> B, M = sa.dims("B M", hint=(64, 16))
        >>> x = jax.ShapeDtypeStruct((B, M), "float32")
        >>> mesh = sa.Mesh({"X": 4}, symbolic=True)
        >>> plan = sa.plan(lambda x: x.sum(0), x, mesh=mesh, in_shardings=(P("X"),))
        >>> found = plan.sweep("tpu_v3", B=np.array([64, 96, 98]), X=np.array([[4], [2]]))
        >>> found.peak_memory_bytes.astype(int).tolist()
        [[1152, 1664, 1696], [2176, 3200, 3264]]
        >>> found.holds.tolist(), found.doubtful.tolist(), plan.holds(B=98, X=2)
        ([[True, True, False], [False, False, False]], [[False, ...], [True, True, True]], True)
        """
        from shardalg.costs.analyses.sweep import Sweep
        from shardalg.symbolic.symbols import points_of

        known, swept = points_of(self.sizes, sizes)
        chip = machine(hardware)
        key = (chip, overlap, tuple(known.items()))
        if key not in self._sweepers:
            while len(self._sweepers) >= _KEPT:
                self._sweepers.pop(next(iter(self._sweepers)))
            self._sweepers[key] = self._sweeper(chip, overlap, known)
        axes = [name for name in self.mesh.axis_names if name in swept]
        devices = "*".join(self.mesh.axis_names) if axes else self.mesh.size
        on = machine_text(hardware, devices)
        seconds, peak, holds, doubtful = self._sweepers[key].at(swept)
        return Sweep(chip.chip, swept, seconds, peak, holds, doubtful, on)

    @cached_property
    def _sweepers(self) -> dict[Any, Sweeper]:
        return {}

    def _sweeper(self, chip: Hardware | Topology, overlap: str, known: dict[str, int]) -> Sweeper:
        """The formulas and facts of a chip, with the sizes that are not swept in them."""
        from shardalg.costs.analyses.sweep import Sweeper
        from shardalg.sizes.facts import NONZERO, Fact
        from shardalg.sizes.formula import Formula

        cost = self.cost(chip, overlap=overlap)
        totals = cost.totals
        peaks = totals.peaks() if totals.peaks else (Formula.of(totals.peak_bytes),)
        guards = self._guards
        if guards is None:
            asked: Any = ((Fact(Formula({}), NONZERO),), ())
        else:
            # What is written over what in memory decides nothing else.
            own = guards.whole.facts
            called = [fact for fact in guards.decisive if fact not in own]
            asked = ([*own], [*called, *guards.traced])
        return Sweeper(cost._time(totals), peaks, asked, known)
