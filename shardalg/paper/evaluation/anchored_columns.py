"""Tables 5 to 8, whose models the paper leaves open in part: real plans, and one anchor per table.

What the paper does not state is taken from the sources that it cites, and stands here:
- Conformer: devices are the stages alone (8 and 16), 32 taps as in arXiv:2005.08100, 1024 frames.
- Sparse MoE: the 36 layers of GShard (arXiv:2006.16668), M = 1024, H = 8192, 16 heads of 128, to
  which the parameter counts fit; sequences of 1024; a capacity of twice the mean, so that the
  compute per sample is constant but for the gating.
- Hybrid MoE: 12 layers, M = 8192, D = 128, which the parameter counts determine; S as above.
- U-Net: four levels (arXiv:1606.06650), the first of 128 channels.
The seconds of one column, as measured, stand for all of this and for the chip's efficiency.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.costs.hardware import load
from shardalg.costs.pipelines.bubbles import overheads
from shardalg.costs.pipelines.schedules import Schedule
from shardalg.models.published.conformer import PIPELINED, Conformer
from shardalg.models.published.moe import HYBRID, SPARSE, MoEConfig
from shardalg.models.published.unet3d import SPATIAL, UNet3D
from shardalg.paper.evaluation.anchors import ANCHORS, anchored
from shardalg.paper.evaluation.goals import BUBBLES, RECOMPUTE, STEP
from shardalg.paper.evaluation.prediction import Prediction
from shardalg.paper.evaluation.published import Column, column
from shardalg.plan.plan import Plan

CHIP = "tpu_v3"


def conformer(here: Column) -> Plan:
    """The step of a column of Table 5; in a circular one every layer of a device is a round."""
    facts = here.facts
    stages, batches, layers = facts["pipeline_stages"], facts["num_microbatches"], facts["L"]
    rounds = layers // stages if facts["schedule"] == "circular" else 1
    sizes = {letter: facts[letter] for letter in "BMHNL"}
    schedule = Schedule(stages, batches, rounds)
    made = Conformer(schedule, **sizes, S=1024, K=32, F=80, C=32, V=1024)
    return made.model.plan(Mesh({"L": stages}), PIPELINED)


def sparse(here: Column) -> Plan:
    """The step of a column of Table 6."""
    facts = here.facts
    capacity = 2 * 1024 // facts["E"]
    sizes: dict[str, Any] = {
        "S": 1024,
        "M": 1024,
        "H": 8192,
        "N": 16,
        "D": 128,
        "V": 32000,
        "L": 36,
    }
    made = MoEConfig(B=facts["B"], E=facts["E"], C=capacity, **sizes)
    return made.model.plan(Mesh({"X": facts["devices"]}), SPARSE)


def hybrid(here: Column) -> Plan:
    """The step of a column of Table 7."""
    facts = here.facts
    sizes: dict[str, Any] = {letter: facts[letter] for letter in "BHNE"}
    capacity = 2 * 1024 // facts["E"]
    made = MoEConfig(**sizes, S=1024, M=8192, D=128, V=32000, L=12, C=capacity)
    x, y = facts["mesh"]
    return made.model.plan(Mesh({"X": x, "Y": y}), HYBRID)


def unet(here: Column) -> Plan:
    """The step of a column of Table 8."""
    facts = here.facts
    made = UNet3D(batch=facts["B"], size=facts["image"][0], width=128, levels=4)
    x, y = facts["mesh"]
    return made.model.plan(Mesh({"X": x, "Y": y}), SPATIAL)


PLANS: Mapping[int, Callable[[Column], Plan]] = {5: conformer, 6: sparse, 7: hybrid, 8: unet}


@cache
def _planned(name: str) -> Plan:
    here = column(name)
    return PLANS[here.table](here)


def _seconds(here: Column) -> float:
    return float(_planned(here.id).cost(CHIP).step_time_s)


def predict(here: Column) -> Mapping[str, Prediction]:
    """The step time; of a pipeline, bubbles and recomputation in per cent of it."""
    found = {STEP: anchored(here, ANCHORS[here.table], _seconds)}
    if BUBBLES in here.measured:
        plan = _planned(here.id)
        spent = overheads(plan.program, plan.graph, load(CHIP))
        found[BUBBLES] = Prediction(100 * spent.bubbles)
        found[RECOMPUTE] = Prediction(100 * spent.recompute)
    return found
