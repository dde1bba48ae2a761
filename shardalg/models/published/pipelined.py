"""The dense Transformer with its layers pipelined: section 5.2 of GSPMD (arXiv:2105.04663).

Embedding and softmax stand before and after the pipeline; L numbers stages, n the layers of one.
`TABLE_4` is the paper's layout: stages along L, data along X, in-layer sharding along Y, and
weights not sharded along X, for they would be gathered for every microbatch. `GATHERED` is that
variant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax

from shardalg.costs.pipelines.schedules import Schedule
from shardalg.graph.annotate import annotate
from shardalg.models import transformer
from shardalg.models.model import Axes, Data, DimensionAxes, Model, Parameter
from shardalg.models.pipeline import Pipeline, pipeline
from shardalg.models.transformer import Config
from shardalg.planner.propagate.options import Options, Switches

Array = jax.Array

_INSIDE: dict[str, Axes] = {"B": ("X", "L"), "b": "X", "M": "Y", "N": "Y", "H": "Y", "V": "Y"}
TABLE_4 = DimensionAxes({"L": "L", "N": "Y", "H": "Y", "V": "Y"}, _INSIDE)
ONCE_A_STEP = Options(switches=Switches(defer_in_loops=True))
"""Gradients are reduced over the data axis once, after the loop, not for every microbatch."""
GATHERED = DimensionAxes({"L": "L", "N": "Y", "H": "Y", "V": "Y", "M": "X"}, _INSIDE)
SITES = {
    "attention_heads": "bSND",
    "ffn_hidden": "bSH",
    "layer_output": "bSM",
    "embedded": "BSM",
    "logits": "BSV",
}
_ROWS = {"w_q": 1, "w_k": 1, "w_v": 1, "w_o": 2, "w_in": 1, "w_out": 1}
_LETTERS = {
    **dict.fromkeys(("w_q", "w_k", "w_v"), "MND"),
    "w_o": "NDM",
    "w_in": "MH",
    "w_out": "HM",
}


@dataclass(frozen=True)
class Pipelined:
    """A Transformer and the schedule of its layers.

    Attributes:
      config: sizes of the model; B is the whole batch, L all layers.
      schedule: stages, microbatches, rounds.
      remat: "none", "layer" or "stage", as in `models.pipeline.pipeline`.

    Raises:
      PipelineError: the schedule does not divide layers or batch.
    """

    config: Config
    schedule: Schedule
    remat: str = "layer"

    def __post_init__(self) -> None:
        self.schedule.layers_per_round(self.config.L)
        self.schedule.microbatch_size(self.config.B)

    @property
    def pipe(self) -> Pipeline:
        """The layers as a pipeline, each applied to one microbatch at a time."""
        schedule = self.schedule
        # A layer sees one microbatch, so its config has the size of one as its batch.
        microbatch_config = replace(self.config, B=schedule.microbatch_size(self.config.B))
        return pipeline(
            partial(transformer.layer, microbatch_config),
            stages=schedule.stages,
            microbatches=schedule.microbatches,
            rounds=schedule.rounds,
            remat=self.remat,
        )

    def loss(self, params: Any, tokens: Array, targets: Array) -> Array:
        """Return the mean cross-entropy of the next tokens, in nats."""
        config = self.config
        # A cast inside the pipeline would be repeated for every microbatch.
        params = jax.tree.map(lambda weight: weight.astype(config.dtype), params)
        embedding = params["embedding"]
        x = self.pipe(params["layers"], annotate(embedding[tokens], "embedded"))
        x = annotate(x, "embedded")
        return transformer.cross_entropy(transformer.logits(config, embedding, x), targets)

    @property
    def model(self) -> Model:
        """The model with these sizes, with weights, data and loss, to be planned and trained.

        >>> small = Pipelined(Config(L=4), Schedule(stages=2, microbatches=4))
        >>> small.model.types()["layers"]["w_in"].shape
        (2, 2, 32, 64)
        """
        config, stages = self.config, self.schedule.stages
        sizes = {letter: getattr(config, letter) for letter in "BSMHNDV"}
        # Weights of layers are stacked: L numbers the stages, n the layers of a stage.
        layers = {name: Parameter("Ln" + dims, _ROWS[name], 2) for name, dims in _LETTERS.items()}
        return Model(
            sizes={
                **sizes,
                "b": self.schedule.microbatch_size(config.B),
                "L": stages,
                "n": config.L // stages,
            },
            weights={"embedding": Parameter("VM"), "layers": layers},
            data=(Data("BS", below="V"), Data("BS", below="V")),
            loss=self.loss,
            sites=SITES,
        )
