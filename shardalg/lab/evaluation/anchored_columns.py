"""Predictions of Tables 5 to 8 from real plans, scaled by one measured column per table (anchor).

The paper does not state all sizes of these models. The missing facts come from the sources that it
cites:
- Conformer: the devices are the stages alone (8 and 16), 32 taps as in arXiv:2005.08100. The number
  of frames per sequence follows from the raw utilisation of the anchor, at 61.5e12 flops a second.
- Sparse MoE: the 36 layers of GShard (arXiv:2006.16668), M = 1024, H = 8192, 16 heads of 128; the
  parameter counts agree with these sizes. Sequences have 1024 tokens. The capacity is twice the
  mean, so that the compute per sample is constant except for the gating. XLA computed a prefix sum
  as a window over all earlier places (`tf2xla/kernels/scan_ops.cc`), with one addition per place on
  the vector unit.
- Hybrid MoE: 12 layers, M = 8192, D = 128, which the parameter counts determine; S as above.
- U-Net: four levels (arXiv:1606.06650), the first with 128 channels. The images of a core are
  padded to tiles of eight: features lie along the 128 lanes of a tile, the batch along its 8 rows
  (Google Cloud TPU performance guide; the layout {4,0,3,2,1} of the TPU compiler).
The measured seconds of the anchor correct errors of these facts, and the chip's efficiency.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.costs.pipelines.overheads import overheads
from shardalg.costs.pipelines.schedules import Schedule
from shardalg.costs.walk import walk
from shardalg.lab.evaluation.prediction import (
    ANCHORS,
    BUBBLES,
    PEAK,
    RECOMPUTE,
    STEP,
    Prediction,
    anchored,
    slice_of,
)
from shardalg.lab.evaluation.published import Column, column
from shardalg.models.published.conformer import PIPELINED, Conformer
from shardalg.models.published.moe import HYBRID, SPARSE, MoEConfig
from shardalg.models.published.unet3d import SPATIAL, UNet3D
from shardalg.plan.plan import Plan
from shardalg.spmd.instructions import Apply

FRAMES = 608
"""The frames of a Conformer's sequence; see the module docstring."""
IMAGES = 8
"""The number of images of a core is a multiple of the rows of a tile."""
VECTOR_FLOPS_PER_S = 8 * 128 * 940e6
"""Additions per second of a TPU v3 core's vector unit: 8 by 128 lanes at 940 MHz.

Source: Norrie et al., IEEE Micro 41, 2021.
"""


def conformer(here: Column) -> Plan:
    """Return the plan of the train step that a column of GSPMD's Table 5 measures (Conformer)."""
    facts = here.facts
    stages, batches, layers = facts["pipeline_stages"], facts["num_microbatches"], facts["L"]
    # A stage of a circular schedule has one layer per round (section 3.3 of the paper).
    rounds = layers // stages if facts["schedule"] == "circular" else 1
    sizes = {letter: facts[letter] for letter in "BMHNL"}
    schedule = Schedule(stages, batches, rounds)
    config = Conformer(schedule, **sizes, S=FRAMES, K=32, F=80, C=32, V=1024)
    return config.model.plan(Mesh({"L": stages}), PIPELINED)


def sparse(here: Column) -> Plan:
    """Return the plan of the train step that a column of GSPMD's Table 6 measures (sparse MoE)."""
    facts = here.facts
    # Twice the mean number of a sequence's 1024 tokens per expert, because the paper says that the
    # compute per sample stays constant with the number of experts.
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
    config = MoEConfig(B=facts["B"], E=facts["E"], C=capacity, **sizes)
    return config.model.plan(Mesh({"X": facts["devices"]}), SPARSE)


def hybrid(here: Column) -> Plan:
    """Return the plan of the train step that a column of GSPMD's Table 7 measures (hybrid MoE)."""
    facts = here.facts
    sizes: dict[str, Any] = {letter: facts[letter] for letter in "BHNE"}
    capacity = 2 * 1024 // facts["E"]
    config = MoEConfig(**sizes, S=1024, M=8192, D=128, V=32000, L=12, C=capacity)
    x, y = facts["mesh"]
    return config.model.plan(Mesh({"X": x, "Y": y}), HYBRID)


def unet(here: Column) -> Plan:
    """Return the plan of the train step that a column of GSPMD's Table 8 measures (3D U-Net).

    The images per core are padded to full tiles of the TPU.
    """
    facts = here.facts
    x, y = facts["mesh"]
    # A core computes whole tiles of `IMAGES` images, so fewer images per core take as long as one
    # full tile. The planned batch has full tiles.
    batch = x * IMAGES * math.ceil(facts["B"] / x / IMAGES)
    config = UNet3D(batch=batch, size=facts["image"][0], width=128, levels=4)
    return config.model.plan(Mesh({"X": x, "Y": y}), SPATIAL)


PLANS: Mapping[int, Callable[[Column], Plan]] = {5: conformer, 6: sparse, 7: hybrid, 8: unet}


@cache
def _planned(name: str) -> Plan:
    """Return the plan of the train step of a column of GSPMD's Tables 5 to 8.

    Args:
      name: the id of the column, such as "sparse-bench.c2".
    """
    here = column(name)
    return PLANS[here.table](here)


def _seconds(here: Column) -> float:
    """Return the unscaled predicted seconds of the train step of a column of the paper's tables.

    `anchored` scales them to the measured seconds of one column per table, the anchor.
    """
    plan = _planned(here.id)
    return float(
        plan.cost(slice_of(plan.mesh.size), overlap="dependences").step_time_s
    ) + prefix_sums_s(plan)


def prefix_sums_s(plan: Plan) -> float:
    """Return the seconds that all prefix sums (`cumsum`) of a plan take on a TPU v3.

    XLA computed a prefix sum as a window over all earlier elements, with one addition per element
    of the window.
    """
    additions = 0.0
    for step in walk(plan.program):
        attributes, node = step.instruction.attributes, step.instruction.node
        if type(attributes) is Apply and attributes.primitive == "cumsum" and node is not None:
            along = plan.graph.nodes[node].signature.param("axis")
            shape = plan.program.locals[step.instruction.operands[0]].shape
            # XLA's window over all earlier places adds `n` numbers at each of the `n` places, so
            # the cost is quadratic.
            additions += step.count * math.prod(shape) * shape[along]
    return additions / VECTOR_FLOPS_PER_S


def predict(here: Column) -> Mapping[str, Prediction]:
    """Return predictions for a column of GSPMD's Tables 5 to 8, by quantity.

    Every column has the step time. A pipeline also has the peak memory in GB, and bubbles and
    recomputation in per cent of the step.
    """
    predictions = {STEP: anchored(here, ANCHORS[here.table], _seconds)}
    if BUBBLES in here.measured:
        plan = _planned(here.id)
        on = slice_of(plan.mesh.size)
        shares = overheads(plan.program, plan.graph, on)
        predictions[PEAK] = Prediction(int(plan.cost(on).peak_memory_bytes) / 1e9)
        predictions[BUBBLES] = Prediction(100 * shares.bubbles)
        predictions[RECOMPUTE] = Prediction(100 * shares.recompute)
    return predictions
