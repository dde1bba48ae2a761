"""Figure 8 of GSPMD (arXiv:2105.04663): a layer of experts, each on one device or sharded too."""

from __future__ import annotations

from functools import partial

import jax
from jax.sharding import PartitionSpec

from shardalg.algebra.mesh import Mesh
from shardalg.models.model import DimensionAxes
from shardalg.models.published.moe import HYBRID, SPARSE, MoEConfig, experts
from shardalg.plan.plan import Plan, plan
from shardalg.planner.propagate.strategy import Strategy
from shardalg.show.figures import Panel

# No two dimensions of the layer are equal, so that drawings can name a dimension by its size.
SIZES = MoEConfig(B=16, S=64, M=128, H=512, E=8, C=32, dtype="float32")
DRAWN = {
    "8a: sparse, experts on X": (Mesh({"X": 8}), SPARSE),
    "8b: hybrid, experts on X, each on Y": (Mesh({"X": 2, "Y": 4}), HYBRID),
}
_SITES = ("dispatched", "expert_input", "expert_hidden", "expert_output", "combined")


def layer_plan(mesh: Mesh, layout: DimensionAxes, config: MoEConfig = SIZES) -> Plan:
    """Return the plan of the forward pass of one mixture-of-experts layer.

    The planned function takes the weights, the gating's masks (`moe.gating`) and the activations.

    Args:
      layout: the mesh axis of each dimension of the model, such as `SPARSE` or `HYBRID`.

    >>> plan = layer_plan(Mesh({"X": 2, "Y": 4}), HYBRID)
    >>> [f"{row['kind']} {row['mesh_axes']}" for row in plan.collectives_table]
    ['all_to_all X', 'all_gather Y', 'reduce_scatter Y', 'all_to_all X']
    """
    model = config.model
    model_strategy, types = model.strategy(mesh, layout), model.types()["layers"]["moe"]
    specs = model_strategy.in_shardings[0]["layers"]["moe"]  # type: ignore[index]
    names = ("w_in", "w_out")
    # The model's weights have a leading dimension of layers, and the figure has one layer.
    weights = {name: jax.ShapeDtypeStruct(types[name].shape[1:], "float32") for name in names}
    laid_out = {name: PartitionSpec(*tuple(specs[name])[1:]) for name in names}
    sizes = {letter: getattr(config, letter) for letter in "BSECM"}
    masks, x = (
        jax.ShapeDtypeStruct(tuple(sizes[letter] for letter in dims), "float32")
        for dims in ("BSEC", "BSM")
    )
    # A layer reads and returns activations of the residual stream, which have one sharding.
    residual_sharding = model_strategy.sites["layer_output"]
    in_shardings = laid_out, model_strategy.sites["masks"], residual_sharding
    strategy = Strategy(
        mesh, in_shardings, residual_sharding, {name: model_strategy.sites[name] for name in _SITES}
    )
    roles = ("parameters", "data", "data")
    return plan(partial(experts, config), weights, masks, x, strategy=strategy, roles=roles)


def panels() -> list[Panel]:
    """Return the two halves of figure 8 of the GSPMD paper, drawn from planned programs."""
    letters = {getattr(SIZES, letter): letter for letter in "BSMHEC"}
    plans = {title: layer_plan(*given) for title, given in DRAWN.items()}
    return [Panel(t, p.program, p.graph, dim_names=letters) for t, p in plans.items()]
