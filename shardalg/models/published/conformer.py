"""A pipelined Conformer (arXiv:2005.08100): section 5.3 of GSPMD (arXiv:2105.04663).

Convolutional subsampling, L layers as a pipeline, and an output projection: data parallel before
and after the pipeline along all axes, the devices of the stages included. A layer is half a
feed-forward layer, attention, a convolution module, another half, and a norm. The loss is the mean
cross-entropy of a label per frame.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardalg.costs.pipelines.schedules import Schedule
from shardalg.errors import StrategyError
from shardalg.graph.annotate import annotate
from shardalg.models import transformer
from shardalg.models.model import Data, DimensionAxes, Model, Parameter
from shardalg.models.pipeline import Pipeline, pipeline

Array = jax.Array

PIPELINED = DimensionAxes({"L": "L"}, {"B": ("X", "L"), "b": "X"})
SITES = {"subsampled": "BSM", "layer_output": "bSM", "labels": "BSV"}
"""The letters of each annotated activation; b is the number of sequences of a microbatch."""
_WEIGHTS = {
    "in_1": Parameter("LnMH", 1, 2),
    "out_1": Parameter("LnHM", 1, 2),
    **{name: Parameter("LnMND", 1, 2) for name in ("w_q", "w_k", "w_v")},
    "w_o": Parameter("LnNDM", 2, 2),
    "pointwise_1": Parameter("LnMG", 1, 2),
    "depthwise": Parameter("LnKM", 1, 2),
    "pointwise_2": Parameter("LnMM", 1, 2),
    "in_2": Parameter("LnMH", 1, 2),
    "out_2": Parameter("LnHM", 1, 2),
}


@dataclass(frozen=True)
class Conformer:
    """Sizes in the paper's letters, and the schedule of the layers.

    Attributes:
      B, S: sequences, frames of a sequence after subsampling by four.
      M, H, N: features, features between the feed-forward products, heads of M / N features.
      K: taps of the depthwise convolution. F, C, V: features of a frame, channels of the
        subsampling, labels.
      L: layers.

    Raises:
      StrategyError: a size below 1, or heads that do not divide M. PipelineError: the schedule
        does not divide layers or batch.
    """

    schedule: Schedule
    B: int = 8
    S: int = 4
    M: int = 16
    H: int = 32
    N: int = 4
    K: int = 3
    F: int = 8
    C: int = 4
    V: int = 8
    L: int = 2
    dtype: str = "bfloat16"
    remat: str = "layer"

    def __post_init__(self) -> None:
        """Raise an error for an impossible size, or a schedule that does not divide the model."""
        # The sizes are the fields with the paper's letters; other fields are no sizes.
        sizes = {f.name: getattr(self, f.name) for f in fields(self) if len(f.name) == 1}
        bad_sizes = {k: v for k, v in sizes.items() if type(v) is not int or v < 1}
        if bad_sizes or self.M % self.N:
            raise StrategyError(
                f"sizes of a Conformer are integers of at least 1, and N heads divide M features, "
                f"got {bad_sizes or (self.M, self.N)}."
            )
        # Both calls raise an error if the schedule does not divide the layers or the batch.
        self.schedule.layers_per_round(self.L)
        self.schedule.microbatch_size(self.B)

    @property
    def pipe(self) -> Pipeline:
        """The layers as a pipeline."""
        schedule = self.schedule
        return pipeline(
            partial(layer, self),
            stages=schedule.stages,
            microbatches=schedule.microbatches,
            rounds=schedule.rounds,
            remat=self.remat,
        )

    @property
    def model(self) -> Model:
        """The model with these sizes, with weights, data and loss, to be planned and trained.

        >>> Conformer(Schedule(2, 4)).model.types()["layers"]["in_1"].shape
        (2, 1, 16, 32)
        """
        # Further letters of weights and data: n layers of a stage, D features of a head, G features
        # of a gate and its value, T frames before subsampling, Q frequencies after it.
        stages, half = self.schedule.stages, (self.F + 1) // 2
        sizes = {letter: getattr(self, letter) for letter in "BSMHNKFCV"}
        more = {"L": stages, "n": self.L // stages, "D": self.M // self.N, "G": 2 * self.M}
        taps = {"3": 3, "1": 1, "Q": (half + 1) // 2, "T": 4 * self.S}
        before = {"first": Parameter("331C", 3), "second": Parameter("33CC", 3)}
        return Model(
            sizes={**sizes, **more, **taps, "b": self.schedule.microbatch_size(self.B)},
            weights={
                "subsampling": {**before, "project": Parameter("QCM", 2)},
                "layers": dict(_WEIGHTS),
                "labels": Parameter("MV"),
            },
            data=(Data("BTF"), Data("BS", below="V")),
            loss=partial(loss, self),
            sites=SITES,
        )


def loss(config: Conformer, params: Any, features: Array, labels: Array) -> Array:
    """Return the mean cross-entropy of the frames' labels, in nats."""
    x = _subsampled(config, params["subsampling"], features)
    x = config.pipe(params["layers"], annotate(x, "subsampled"))
    x = annotate(x, "subsampled")
    logits = jnp.einsum("bsm,mv->bsv", x, params["labels"].astype(config.dtype))
    return transformer.cross_entropy(annotate(logits, "labels").astype(jnp.float32), labels)


def _subsampled(config: Conformer, weights: Any, features: Array) -> Array:
    """Return the frames after subsampling, (B, S, M).

    Two convolutions have stride 2 in time and frequency; a projection makes M features.
    """
    x = features.astype(config.dtype)[..., None]
    for name in ("first", "second"):
        kernel, names = weights[name].astype(config.dtype), ("NHWC", "HWIO", "NHWC")
        x = jax.nn.relu(
            lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=names)
        )
    return jnp.einsum("bsqc,qcm->bsm", x, weights["project"].astype(config.dtype))


def layer(config: Conformer, weights: Any, x: Array) -> Array:
    """Return the activations of a microbatch after one Conformer layer, (b, S, M).

    Two half feed-forward layers surround attention and convolution; each part has a norm and a
    residual.
    """
    weights = {name: weight.astype(config.dtype) for name, weight in weights.items()}
    x = x + _feed_forward(weights["in_1"], weights["out_1"], _norm(config, x)) / 2
    x = x + _attention(config, weights, _norm(config, x))
    x = x + _convolution(config, weights, _norm(config, x))
    x = x + _feed_forward(weights["in_2"], weights["out_2"], _norm(config, x)) / 2
    return annotate(_norm(config, x), "layer_output")


def _feed_forward(w_in: Array, w_out: Array, x: Array) -> Array:
    hidden = jax.nn.silu(jnp.einsum("bsm,mh->bsh", x, w_in))
    return jnp.einsum("bsh,hm->bsm", hidden, w_out)


def _attention(config: Conformer, weights: Any, x: Array) -> Array:
    """Return the self-attention of activations; `x` and the result are (b, S, M)."""
    q, k, v = (jnp.einsum("bsm,mnd->bsnd", x, weights[name]) for name in ("w_q", "w_k", "w_v"))
    scores = jnp.einsum("bsnd,btnd->bnst", q, k) * (config.M // config.N) ** -0.5
    shares = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(config.dtype)
    heads = jnp.einsum("bnst,btnd->bsnd", shares, v)
    return jnp.einsum("bsnd,ndm->bsm", heads, weights["w_o"])


def _convolution(config: Conformer, weights: Any, x: Array) -> Array:
    """Return the convolution module of `x`, (b, S, M): pointwise, depthwise, norm, pointwise."""
    gated = jnp.einsum("bsm,mg->bsg", x, weights["pointwise_1"])
    value, gate = jnp.split(gated, 2, -1)
    # The padding before the first frame centres the taps; the slices drop the surplus at the end.
    padded = jnp.pad(value * jax.nn.sigmoid(gate), ((0, 0), (config.K // 2, config.K), (0, 0)))
    # A depthwise convolution as K shifted products: each feature has its own taps, so that no
    # features are contracted.
    taps = (padded[:, k : k + config.S] * weights["depthwise"][k] for k in range(config.K))
    x = jax.nn.silu(_norm(config, sum(taps, jnp.zeros_like(x))))
    return jnp.einsum("bsm,mo->bso", x, weights["pointwise_2"])


def _norm(config: Conformer, x: Array) -> Array:
    """Return `x` with zero mean and unit variance over each frame's features, in float32 inside."""
    x = x.astype(jnp.float32)
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return (centred * lax.rsqrt(variance + 1e-6)).astype(config.dtype)
