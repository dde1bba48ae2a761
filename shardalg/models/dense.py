"""A dense Transformer of any published size: its training step, its strategies and its costs.

The step is plain JAX on `models.transformer`: loss and gradients of `microbatches` parts of the
batch, one after the other, summed, then one update. Strategies lay it out on a mesh:

| strategy | axes | activations (B, S, M) | weights |
|---|---|---|---|
| "finalized" | X, Y | B along X, M along Y | M along X; heads, H and V along Y |
| "fsdp" | any of slice, data, fsdp | B along all | M along data and fsdp |
| "fsdp_tensor" | and tensor | B along those, M along tensor | M likewise; heads, H, V on tensor |

Along `slice` weights are repeated, so that only gradients cross it, once a step.
Sources: "finalized" is Table 1 of GSPMD (arXiv:2105.04663); "fsdp" is ZeRO, stage 3
(arXiv:1910.02054).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardalg.algebra.mesh import Mesh
from shardalg.costs.cost import Cost
from shardalg.costs.hardware import Hardware
from shardalg.costs.topology import Topology
from shardalg.errors import StrategyError
from shardalg.models import dense_strategies, transformer
from shardalg.models.deeper import SHALLOW, cost_on, machine_for
from shardalg.models.dense_strategies import mesh_of
from shardalg.models.training import OPTIMIZERS
from shardalg.models.transformer import REMAT, Config
from shardalg.plan.plan import Plan, plan
from shardalg.planner.propagate.strategy import Strategy

Array = jax.Array
ROLES = ("parameters", "optimizer_state", "data", "data")
DONATED = (0, 1)
_SIZES = ("layers", "model_dim", "hidden_dim", "heads", "head_dim", "vocab", "seq", "batch")


@dataclass(frozen=True)
class DenseTransformer:
    """A decoder of `layers` equal layers, trained with one optimizer on one global batch.

    Attributes:
      layers: the number of layers, each with attention and feed-forward.
      model_dim, hidden_dim: features of a token, and between the feed-forward products.
      heads, head_dim: attention heads and the features of each.
      kv_heads: heads of keys and values; None for as many as `heads`.
      vocab: the size of the vocabulary; the embedding is the output projection too.
      seq, batch: tokens of a sequence; sequences of a step on all devices, in all microbatches.
      gated: True for three feed-forward matrices instead of two.
      optimizer: "adafactor", "adam" or "sgd".
      remat: False, "full", "minimal" or "minimal_offloaded" (`models.transformer.Config`). The
        memory of `cost` does not contain values that the host keeps. A plan keeps them on the
        device, and warns.
      microbatches: parts of the batch whose gradients are summed before the update.
      attention: "plain", or "fused" for a kernel that keeps no scores in memory.
      param_dtype, dtype: of parameters, gradients and optimizer; of activations.

    Raises:
      StrategyError: a size below 1, an unknown choice, kv_heads that do not divide the heads,
        microbatches that do not divide the batch.

    >>> model = DenseTransformer(
    ...     layers=32, model_dim=8192, hidden_dim=65536, heads=128, head_dim=256, vocab=32000,
    ...     seq=1024, batch=64,
    ... )
    >>> model.parameters
    68981620736
    """

    layers: int
    model_dim: int
    hidden_dim: int
    heads: int
    head_dim: int
    vocab: int
    seq: int
    batch: int
    gated: bool = False
    optimizer: str = "adafactor"
    remat: bool | str = False
    microbatches: int = 1
    kv_heads: int | None = None
    attention: str = "plain"
    param_dtype: str = "float32"
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        """Raise StrategyError for an impossible size, an unknown choice, or uneven microbatches."""
        sizes = {name: getattr(self, name) for name in (*_SIZES, "microbatches")}
        bad_sizes = {k: v for k, v in sizes.items() if type(v) is not int or v < 1}
        if bad_sizes:
            raise StrategyError(f"sizes of a model are integers of at least 1, got {bad_sizes}.")
        if type(self.gated) is not bool or isinstance(self.kv_heads, bool):
            raise StrategyError(
                f"gated is True or False, kv_heads a number: got {self.gated!r}, {self.kv_heads!r}."
            )
        if self.optimizer not in tuple(OPTIMIZERS):
            raise StrategyError(
                f"optimizer {self.optimizer!r}: write one of {', '.join(OPTIMIZERS)}."
            )
        if self.remat is not False and self.remat not in tuple(REMAT):
            raise StrategyError(f"remat {self.remat!r}: write False or one of {', '.join(REMAT)}.")
        if self.batch % self.microbatches:
            raise StrategyError(
                f"a batch of {self.batch} has no {self.microbatches} equal microbatches."
            )
        # Building the config checks the values that this class does not check, such as kv_heads.
        _ = self.config

    @cached_property
    def config(self) -> Config:
        """The model of one microbatch, in the letters of `models.transformer`."""
        return Config(
            B=self.batch // self.microbatches,
            S=self.seq,
            M=self.model_dim,
            H=self.hidden_dim,
            N=self.heads,
            D=self.head_dim,
            V=self.vocab,
            L=self.layers,
            K=self.kv_heads,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            remat=self.remat,
            gated=self.gated,
            attention=self.attention,
            jit=True,
        )

    @property
    def parameters(self) -> int:
        """The number of trained parameters."""
        return sum(self.config.parameter_counts().values())

    @property
    def counted_flops(self) -> int:
        """Flops of a step as published utilisations count them, without rematerialisation.

        The count is 6 per parameter and token, and 12 L S N D per token for attention without its
        causal mask.
        """
        attention = 12 * self.layers * self.seq * self.heads * self.head_dim
        return (6 * self.parameters + attention) * self.batch * self.seq

    def train_step(
        self, params: Any, state: Any, tokens: Array, targets: Array
    ) -> tuple[Any, Any, Array]:
        """Return the parameters and optimizer state after a step, and the loss before the step."""
        loss, grads = self.gradients(params, tokens, targets)
        params, state = OPTIMIZERS[self.optimizer].apply(self.config, params, grads, state)
        return params, state, loss

    def gradients(self, params: Any, tokens: Array, targets: Array) -> tuple[Array, Any]:
        """Return the loss and its gradients: means over the batch, summed over microbatches."""
        # The loss is a mean over one microbatch, because the config has a microbatch's size; so the
        # sum below is divided by the number of microbatches.
        both = jax.value_and_grad(partial(transformer.loss, self.config))
        if self.microbatches == 1:
            return both(params, tokens, targets)

        def add(total: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, both(params, *part)), None

        # Microbatch m has the samples m, m + microbatches, ...: a batch that is split over devices
        # stays in place, and each device has a part of every microbatch.
        parts = [
            jnp.swapaxes(ids.reshape(-1, self.microbatches, self.seq), 0, 1)
            for ids in (tokens, targets)
        ]
        start: Any = jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, params)
        total, _ = lax.scan(add, start, tuple(parts))
        return jax.tree.map(lambda x: x / self.microbatches, total)

    def init(self, seed: int = 0) -> tuple[Any, Any]:
        """Return the parameters and the optimizer's state before the first step."""
        params = transformer.init_params(self.config, seed)
        return params, OPTIMIZERS[self.optimizer].init(self.config, params)

    def arguments(self) -> tuple[Any, ...]:
        """Return the shapes and types of the arguments of `train_step`."""
        params = transformer.param_types(self.config)
        state = jax.eval_shape(partial(OPTIMIZERS[self.optimizer].init, self.config), params)
        tokens = jax.ShapeDtypeStruct((self.batch, self.seq), jnp.int32)
        return params, state, tokens, tokens

    def strategy(self, mesh: Mesh | Mapping[str, int], name: str = "finalized") -> Strategy:
        """Return the shardings and annotated sites of `train_step` on a mesh."""
        return dense_strategies.strategy(
            self.config, OPTIMIZERS[self.optimizer], mesh_of(mesh), name
        )

    def plan(self, mesh: Mesh | Mapping[str, int], strategy: str = "finalized") -> Plan:
        """Plan `train_step` on a mesh; parameters and state are donated.

        >>> small = DenseTransformer(
        ...     layers=1, model_dim=16, hidden_dim=32, heads=2, head_dim=8, vocab=32,
        ...     seq=8, batch=8, optimizer="sgd",
        ... )
        >>> plan = small.plan({"fsdp": 4}, "fsdp")
        >>> sorted(set(plan.collectives()["kind"]))
        ['all_gather', 'all_reduce', 'all_to_all', 'reduce_scatter']
        """
        return plan(
            self.train_step,
            *self.arguments(),
            strategy=self.strategy(mesh, strategy),
            roles=ROLES,
            donate_argnums=DONATED,
        )

    def cost(
        self,
        mesh: Mesh | Mapping[str, int],
        hardware: str | Hardware | Topology,
        *,
        strategy: str = "finalized",
        overlap: str | None = None,
    ) -> Cost:
        """Return step time, memory and utilisation, by the constants fitted for the chip.

        Args:
          hardware: a chip by any of its names, with a chip per device of the mesh in the vendor's
            shape; or a `Topology`, or its text.
          overlap: the part of the communication time that the step waits for: "measured" is the
            measured share, "none" is all of it, "full" is the part longer than the computation.

        Raises:
          StrategyError: an unknown strategy or overlap. HardwareError: an unknown chip, no slice of
            so many chips, a mesh that does not tile it.

        >>> model = DenseTransformer(
        ...     layers=32, model_dim=4096, hidden_dim=16384, heads=32, head_dim=128, vocab=50368,
        ...     seq=2048, batch=96, optimizer="adam", microbatches=2, attention="fused",
        ... )
        >>> cost = model.cost({"fsdp": 8}, "a100_80gb", strategy="fsdp")
        >>> 4.8 < cost.step_time_s < 5.8, cost.fits
        (True, True)
        """
        laid = mesh_of(mesh)
        on = machine_for(laid, hardware)
        # Plans with few layers give the amounts of all layers, because equal layers cost the same.
        found = cost_on(self.layers, self.shallow_plans(laid, strategy), on, overlap)
        if self.remat != "minimal_offloaded":
            return found
        # The plan keeps the offloaded activations on the device (`Plan.warnings`). With offloading
        # a device holds those of one layer at a time, so its memory is that of remat="full".
        full = replace(self, remat="full").cost(laid, on, strategy=strategy)
        totals = replace(found.totals, memory=full.memory)
        # A model has no named sizes, so its totals at the hints are these, too.
        return replace(found, totals=totals, hints=totals)

    def shallow_plans(self, mesh: Mesh, strategy: str) -> dict[int, Plan]:
        """Return plans by their number of layers.

        The result is the plan of the model itself if it has at most three layers. Otherwise it is
        the plans of `SHALLOW` layers, from which `cost_on` interpolates.
        """
        depths = (self.layers,) if self.layers <= max(SHALLOW) else SHALLOW
        return {n: replace(self, layers=n).plan(mesh, strategy) for n in depths}
