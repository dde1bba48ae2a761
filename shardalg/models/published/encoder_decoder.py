"""An encoder with experts and a decoder, each a pipeline over the same devices: figure 2 of GSPMD.

Encoder and decoder run one after the other, each on all devices. On the figure's (X, Y) mesh, axes
change their meaning between the parts (arXiv:2105.04663, section 3.3): X is data parallelism in
embedding and softmax and the pipeline in encoder and decoder; Y partitions the vocabulary, the
batch, or the experts. `FIGURE_2` is that layout. Each part of the encoder is a dense layer and a
layer of experts. A layer of the decoder also attends to the encoder's output, which moves from
stage to stage with its microbatch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from shardalg.costs.pipelines.schedules import Schedule
from shardalg.graph.annotate import annotate
from shardalg.models import transformer
from shardalg.models.model import Data, DimensionAxes, Model, Parameter
from shardalg.models.pipeline import pipeline
from shardalg.models.published import moe
from shardalg.models.published.moe import BALANCE, MoEConfig

Array = jax.Array
State = tuple[Array, Array]

FIGURE_2 = DimensionAxes({"L": "X", "V": "Y", "E": "Y"}, {"B": "X", "V": "Y", "b": "Y", "E": "Y"})
SITES = {
    "attention_heads": "bSND",
    "ffn_hidden": "bSH",
    "layer_output": "bSM",
    "embedded": "BSM",
    "logits": "BSV",
    "masks": "bSeC",
    "dispatched": "ebCM",
    "expert_input": "EzCM",
    "expert_hidden": "EzCH",
    "expert_output": "EzCM",
    "combined": "ebCM",
}
"""The letters of each annotated activation.

b is the number of sequences of a microbatch. A tensor with experts and sequences is sharded along Y
on one of both dimensions; the other dimension has the letter e (experts) or z (sequences).
"""


@dataclass(frozen=True)
class EncoderDecoder:
    """Sizes of the model, and the schedule of both pipelines.

    Attributes:
      encoder: the sizes of the model; its L is the number of encoder layers, two in each part.
      decoder_layers: the number of decoder layers.
      schedule: the schedule of the encoder's parts, and of the decoder's layers.
      axis: the mesh axis of the stages.

    Raises:
      PipelineError: the schedule does not divide the parts, the decoder's layers or the batch.
    """

    encoder: MoEConfig
    decoder_layers: int
    schedule: Schedule
    axis: str = "X"

    def __post_init__(self) -> None:
        self.schedule.layers_per_round(self.encoder.L // 2)
        self.schedule.layers_per_round(self.decoder_layers)
        self.schedule.microbatch_size(self.encoder.B)

    def pipelined(self, layer: Any) -> Any:
        """Return a pipeline of the function of one encoder part or one decoder layer."""
        schedule = self.schedule
        return pipeline(
            layer,
            stages=schedule.stages,
            microbatches=schedule.microbatches,
            rounds=schedule.rounds,
            axis=self.axis,
            remat="layer",
        )

    def loss(self, params: Any, source: Array, tokens: Array, targets: Array) -> Array:
        """Return the mean cross-entropy of the target tokens in nats, plus the balance loss."""
        config = replace(self.encoder, B=self.schedule.microbatch_size(self.encoder.B))
        embedding = params["embedding"].astype(config.dtype)
        x = annotate(embedding[source], "embedded")
        unbalanced = jnp.zeros(x.shape[0], jnp.float32)

        # Stages of a pipeline return one pytree, so the experts' balance loss travels with the
        # activations of its microbatch, from stage to stage.
        def encoder_part(weights: Any, state: State) -> State:
            x, unbalanced = state
            x, more = moe.pair(config, weights, x)
            return x, unbalanced + more

        encode = self.pipelined(encoder_part)
        encoded, unbalanced = encode(params["encoder"], (x, unbalanced))
        y = annotate(embedding[tokens], "embedded")
        decode = self.pipelined(partial(_decoder_layer, config.dense))
        y, _ = decode(params["decoder"], (y, encoded))
        logits = transformer.logits(config.dense, embedding, annotate(y, "embedded"))
        # Each part of the encoder added its loss: the mean over parts does not grow with depth.
        balance = jnp.mean(unbalanced) / (self.encoder.L // 2)
        return transformer.cross_entropy(logits, targets) + BALANCE * balance

    @property
    def model(self) -> Model:
        """The model with these sizes, with weights, data and loss, to be planned and trained."""
        config, stages = self.encoder, self.schedule.stages
        microbatch = self.schedule.microbatch_size(config.B)
        parts, layers = config.L // 2 // stages, self.decoder_layers // stages
        # Two letters have the size of a microbatch, because only one of them is sharded (`SITES`).
        # n counts the encoder's parts of a stage, r the decoder's layers of a stage.
        stage_sizes = {"L": stages, "n": parts, "r": layers, "b": microbatch, "z": microbatch}
        encoder = jax.tree.map(partial(_stacked, stacked="Ln"), config.model.weights["layers"])
        dense = config.model.weights["layers"]["dense"]
        # A decoder layer attends to the encoder's output, too, with weights of the same shapes.
        cross_weights = {f"across_{k}": w for k, w in dense.items() if k in transformer.ATTENTION}
        decoder = jax.tree.map(partial(_stacked, stacked="Lr"), {**dense, **cross_weights})
        return Model(
            sizes={**config.model.sizes, **stage_sizes},
            weights={"embedding": Parameter("VM"), "encoder": encoder, "decoder": decoder},
            data=(Data("BS", below="V"),) * 3,
            loss=self.loss,
            sites=SITES,
        )


def _stacked(weight: Parameter, stacked: str) -> Parameter:
    """Return the weight with its layer dimension split into the two letters of `stacked`.

    The first letter is the stage, the second the layer in the stage.
    """
    return Parameter(stacked + weight.dims[1:], weight.rows, weight.stacked + 1)


def _decoder_layer(config: transformer.Config, weights: Any, state: State) -> State:
    """Return the state (activations, encoder output) after one decoder layer."""
    x, encoded = state
    norm = partial(transformer.norm, config)
    x = x + transformer.attention(config, weights, norm(x))
    x = x + _across(config, weights, norm(x), encoded)
    x = x + transformer.ffn(config, weights, norm(x))
    return annotate(x, "layer_output"), encoded


def _across(config: transformer.Config, weights: Any, x: Array, encoded: Array) -> Array:
    """Return the attention of the decoder's tokens `x` to the encoder's output `encoded`."""
    w_q, w_k, w_v, w_o = (
        weights[f"across_{name}"].astype(config.dtype) for name in transformer.ATTENTION
    )
    q = annotate(jnp.einsum("bsm,mnd->bsnd", x, w_q), "attention_heads")
    k, v = (jnp.einsum("btm,mnd->btnd", encoded, w) for w in (w_k, w_v))
    scores = jnp.einsum("bsnd,btnd->bnst", q, k).astype(jnp.float32) * config.D**-0.5
    # There is no causal mask here, because each target token may read the whole source.
    heads = jnp.einsum("bnst,btnd->bsnd", jax.nn.softmax(scores, -1).astype(config.dtype), v)
    return jnp.einsum("bsnd,ndm->bsm", heads, w_o)
