"""A training step of a decoder-only Transformer in plain JAX, as a user would write it.

Published runs are priced by the plan of this function; the cost model has no special case for it.
The step has RMS norms, rotary positions, grouped keys and values, gated or plain feed-forward
layers, Adam, and rematerialisation by the names of saved values, as in MaxText and llm-foundry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from shardalg.algebra.mesh import Mesh
from shardalg.costs.fusion import ON_CHIP
from shardalg.graph.annotate import annotate
from shardalg.plan.plan import Plan, plan
from shardalg.planner.propagate.strategy import Strategy

Array = jax.Array
Weights = Mapping[str, Array]
BATCH_AXES = ("slice", "replica", "data", "fsdp")
"""The mesh axes that split the batch."""
WEIGHT_AXES = ("data", "fsdp")
"""The mesh axes that also split the weights (ZeRO, stage 3)."""
ROLES = ("parameters", "optimizer_state", "data", "data")


@dataclass(frozen=True)
class LlamaSizes:
    """Sizes and form of a decoder and of its training step.

    Attributes:
      batch: sequences of a step on all devices. seq: tokens of a sequence.
      kv_heads: heads of keys and values, each for `heads / kv_heads` heads of queries.
      gated: three feed-forward matrices instead of two.
      tied: whether the embedding is the output projection too.
      rotary: whether queries and keys are rotated by their position.
      flash: whether attention is a kernel that keeps no scores in memory.
      remat: False, "full", "minimal", "minimal_offloaded", or "custom" for the names below.
      saved, offloaded: names of the values that the backward pass finds on the device and on the
        host; all other values of a layer are recomputed.
      microbatches: parts of the batch whose gradients are summed before the update.
      scan: layers in one `lax.scan` over stacked weights instead of one after the other.
    """

    layers: int
    model_dim: int
    hidden_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    seq: int
    batch: int
    gated: bool = True
    tied: bool = False
    rotary: bool = True
    flash: bool = True
    remat: bool | str = False
    saved: tuple[str, ...] = ()
    offloaded: tuple[str, ...] = ()
    microbatches: int = 1
    param_dtype: str = "float32"
    scan: bool = False

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each weight of one layer, by name.

        Keys and values have `kv_heads` heads; a gated feed-forward layer has a third matrix,
        "w_gate".
        """
        key_shape = (self.model_dim, self.kv_heads, self.head_dim)
        gate_shape = {"w_gate": (self.model_dim, self.hidden_dim)} if self.gated else {}
        return {
            "norm_1": (self.model_dim,),
            "norm_2": (self.model_dim,),
            "w_q": (self.model_dim, self.heads, self.head_dim),
            "w_k": key_shape,
            "w_v": key_shape,
            "w_o": (self.heads, self.head_dim, self.model_dim),
            "w_in": (self.model_dim, self.hidden_dim),
            "w_out": (self.hidden_dim, self.model_dim),
            **gate_shape,
        }

    def outer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the weights outside of the layers."""
        table = (self.vocab, self.model_dim)
        output = {} if self.tied else {"output": table}
        return {"embedding": table, "norm": (self.model_dim,), **output}

    @property
    def parameters(self) -> int:
        """The number of trained parameters."""
        layer = sum(map(math.prod, self.layer_shapes().values()))
        return self.layers * layer + sum(map(math.prod, self.outer_shapes().values()))

    @property
    def step_flops(self) -> int:
        """The flops of a step as published utilisations count them.

        The count is 6 per parameter and token, and attention without its causal mask.
        """
        # An embedding that is not also the output projection is only looked up, without a product.
        used = self.parameters - (0 if self.tied else self.vocab * self.model_dim)
        attention = 12 * self.layers * self.seq * self.heads * self.head_dim
        return (6 * used + attention) * self.batch * self.seq


def _norm(x: Array, scale: Array) -> Array:
    """Return the RMS norm of `x` over its features, computed in float32."""
    wide = x.astype(jnp.float32)
    size = jnp.mean(wide * wide, axis=-1, keepdims=True)
    return (wide * lax.rsqrt(size + 1e-5) * scale).astype(x.dtype)


def _rotated(x: Array) -> Array:
    """Return `x`, (B, S, heads, D), with rotary position embeddings (arXiv:2104.09864).

    Feature i and feature i + D / 2 of a head are rotated as a pair.
    """
    half = x.shape[-1] // 2
    # Pair i of the features turns by position * 10000^(-2i/D), and half = D / 2.
    rates = 10000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * rates
    cos, sin = jnp.cos(angle)[None, :, None, :], jnp.sin(angle)[None, :, None, :]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def _attended(sizes: LlamaSizes, q: Array, k: Array, v: Array) -> Array:
    """Return the causal attention of queries, keys and values, each (B, S, heads, D).

    Keys and values may have fewer heads than queries.
    """
    # Each head of keys serves several heads of queries, which a repetition makes plain.
    if sizes.kv_heads < sizes.heads:
        k, v = (jnp.repeat(x, sizes.heads // sizes.kv_heads, axis=2) for x in (k, v))
    # Plain JAX writes the scores to memory, a flash kernel does not: ON_CHIP tells this to the cost
    # model.
    on_chip = partial(annotate, name=ON_CHIP) if sizes.flash else lambda x: x
    scores = on_chip(jnp.einsum("bsnd,btnd->bnst", q, k)) * sizes.head_dim**-0.5
    # A token attends to itself and to earlier tokens only; -1e9 has the softmax weight 0.
    query = lax.broadcasted_iota(jnp.int32, scores.shape[2:], 0)
    key = lax.broadcasted_iota(jnp.int32, scores.shape[2:], 1)
    scores = jnp.where(query >= key, scores.astype(jnp.float32), -1e9)
    attention_weights = on_chip(jax.nn.softmax(scores, axis=-1).astype(q.dtype))
    return jnp.einsum("bnst,btnd->bsnd", attention_weights, v)


def _layer(sizes: LlamaSizes, weights: Weights, x: Array) -> Array:
    """Return the activations, (B, S, M), after one layer: attention, then feed-forward.

    Each value that a rematerialisation policy may keep has its name in MaxText.
    """
    # Products run in bfloat16; the scales of the norms stay in their own type.
    cast = {name: weight.astype(jnp.bfloat16) for name, weight in weights.items()}
    x = checkpoint_name(x, "decoder_layer_input")
    normed = _norm(x, weights["norm_1"])
    q, k, v = (jnp.einsum("bsm,mnd->bsnd", normed, cast[name]) for name in ("w_q", "w_k", "w_v"))
    if sizes.rotary:
        q, k = _rotated(q), _rotated(k)
    q, k, v = map(checkpoint_name, (q, k, v), ("query_proj", "key_proj", "value_proj"))
    attend: Any = partial(_attended, sizes)
    # The backward pass of a flash kernel rebuilds the scores from queries and keys.
    heads = checkpoint_name((jax.checkpoint(attend) if sizes.flash else attend)(q, k, v), "context")
    x = x + checkpoint_name(jnp.einsum("bsnd,ndm->bsm", heads, cast["w_o"]), "out_proj")
    x = annotate(x, "residual")
    normed = _norm(x, weights["norm_2"])
    hidden = checkpoint_name(jnp.einsum("bsm,mh->bsh", normed, cast["w_in"]), "mlpwi")
    # SwiGLU (arXiv:2002.05202) multiplies by a gate; the plain form has one activation function.
    if sizes.gated:
        gate = checkpoint_name(jnp.einsum("bsm,mh->bsh", normed, cast["w_gate"]), "mlpwi")
        hidden = jax.nn.silu(gate) * hidden
    else:
        hidden = jax.nn.gelu(hidden)
    x = x + checkpoint_name(jnp.einsum("bsh,hm->bsm", hidden, cast["w_out"]), "mlpwo")
    return annotate(x, "residual")


def _policy(sizes: LlamaSizes) -> Callable[..., Any] | None:
    """Return the checkpoint policy of a layer; None keeps only the layer's input.

    A policy chooses the values that the backward pass finds in memory instead of computing them
    again.
    """
    policies = jax.checkpoint_policies
    # Names that the user gives come before the named forms.
    if sizes.saved or sizes.offloaded:
        return policies.save_and_offload_only_these_names(
            names_which_can_be_saved=list(sizes.saved),
            names_which_can_be_offloaded=list(sizes.offloaded),
            offload_src="device",
            offload_dst="pinned_host",
        )
    if sizes.remat == "minimal":
        return policies.dots_with_no_batch_dims_saveable
    if sizes.remat == "minimal_offloaded":
        return policies.offload_dot_with_no_batch_dims("device", "pinned_host")
    return None


def loss(sizes: LlamaSizes, params: Any, tokens: Array, targets: Array) -> Array:
    """Return the mean cross-entropy of the targets, in nats.

    Args:
      params: "embedding", "norm", "layers", and "output" unless `sizes.tied`.
      tokens, targets: (B, S), integers below the vocabulary.
    """
    x = annotate(params["embedding"].astype(jnp.bfloat16)[tokens], "residual")
    layer: Any = partial(_layer, sizes)
    if sizes.remat:
        layer = jax.checkpoint(layer, policy=_policy(sizes))
    if sizes.scan:
        x, _ = lax.scan(lambda x, weights: (layer(weights, x), None), x, params["layers"])
    else:
        # Without jit JAX would trace the layer once per call, and a deep model has many calls.
        layer = jax.jit(layer)
        for weights in params["layers"]:
            x = layer(weights, x)
    output = params["embedding" if sizes.tied else "output"].astype(jnp.bfloat16)
    logits = jnp.einsum("bsm,vm->bsv", _norm(x, params["norm"]), output).astype(jnp.float32)
    vocab_index = lax.broadcasted_iota(jnp.int32, logits.shape, 2)
    # Comparing with an iota instead of a gather: each device of a sharded vocabulary adds its part.
    target_logits = jnp.sum(jnp.where(targets[..., None] == vocab_index, logits, 0.0), axis=-1)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - target_logits)


def train_step(
    sizes: LlamaSizes, params: Any, state: Any, tokens: Array, targets: Array
) -> tuple[Any, Any, Array]:
    """Return (parameters, Adam's state, loss) after one step on one batch.

    `state` is (first moments, second moments, number of steps). Gradients of microbatches are
    summed.
    """
    loss_and_grads = jax.value_and_grad(partial(loss, sizes))
    # A single batch needs no sum of gradients.
    if sizes.microbatches == 1:
        value, grads = loss_and_grads(params, tokens, targets)
    else:
        # A device has a contiguous part of the batch. If a microbatch were contiguous too, its rows
        # would have to move to the other devices, so it takes every n-th row instead.
        microbatches = tuple(
            jnp.swapaxes(ids.reshape(-1, sizes.microbatches, sizes.seq), 0, 1)
            for ids in (tokens, targets)
        )
        zero_sums: Any = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
        (value, grads), _ = lax.scan(
            lambda total, part: (jax.tree.map(jnp.add, total, loss_and_grads(params, *part)), None),
            zero_sums,
            microbatches,
        )
    means, squares, step = state
    # Adam with decoupled weight decay (arXiv:1711.05101). The divisors 1 - beta^t below correct the
    # bias of moments that start at zero.
    means = jax.tree.map(lambda m, g: (0.9 * m + 0.1 * g).astype(m.dtype), means, grads)
    squares = jax.tree.map(lambda m, g: (0.95 * m + 0.05 * g * g).astype(m.dtype), squares, grads)
    time = (step + 1).astype(jnp.float32)

    def updated(w: Array, m: Array, v: Array) -> Array:
        size = jnp.sqrt(v / (1 - 0.95**time)) + 1e-8
        return (w - 1e-3 * (m / (1 - 0.9**time) / size + 0.1 * w)).astype(w.dtype)

    params = jax.tree.map(updated, params, means, squares)
    return params, (means, squares, step + 1), value


def arguments(sizes: LlamaSizes) -> tuple[Any, ...]:
    """Return the shapes and types of the arguments of `train_step`, in its order after `sizes`."""
    # A scan reads weights that are stacked on a leading dimension of layers.
    stack_dims = (sizes.layers,) if sizes.scan else ()
    layer = {
        name: jax.ShapeDtypeStruct((*stack_dims, *shape), sizes.param_dtype)
        for name, shape in sizes.layer_shapes().items()
    }
    outer = {
        name: jax.ShapeDtypeStruct(shape, sizes.param_dtype)
        for name, shape in sizes.outer_shapes().items()
    }
    layers: Any = layer if sizes.scan else tuple(dict(layer) for _ in range(sizes.layers))
    params = {**outer, "layers": layers}
    # Adam's two moments have the shapes and types of the parameters. Leaves hold no data here, so
    # the tree itself describes the first moment, and a copy of it the second one.
    second_moments = jax.tree.map(lambda leaf: leaf, params)
    tokens = jax.ShapeDtypeStruct((sizes.batch, sizes.seq), jnp.int32)
    return params, (params, second_moments, jax.ShapeDtypeStruct((), jnp.int32)), tokens, tokens


def strategy(sizes: LlamaSizes, mesh: Mesh) -> Strategy:
    """Return the shardings of `train_step`: fully sharded data parallelism on a mesh.

    An axis "tensor" of the mesh splits heads, hidden features and vocabulary of the weights.
    """
    sharded_names = [name for name, size in mesh.axes if size > 1]

    def entry(axes: tuple[str, ...]) -> Any:
        return None if not axes else axes[0] if len(axes) == 1 else axes

    # A PartitionSpec must not name an axis that the mesh lacks, and one strategy serves all meshes.
    batch = entry(tuple(axis for axis in BATCH_AXES if axis in sharded_names))
    shard = entry(tuple(axis for axis in WEIGHT_AXES if axis in sharded_names))
    tensor = entry(tuple(axis for axis in ("tensor",) if axis in sharded_names))
    # W_in is split along its columns and W_out along its rows, so that the hidden features stay
    # split between both products (Megatron-LM, arXiv:1909.08053).
    by_columns, by_rows = PartitionSpec(shard, tensor), PartitionSpec(tensor, shard)
    specs = {
        **dict.fromkeys(("norm", "norm_1", "norm_2"), PartitionSpec()),
        **dict.fromkeys(("w_q", "w_k", "w_v", "w_in", "w_gate"), by_columns),
        **dict.fromkeys(("w_out", "embedding", "output"), by_rows),
        "w_o": PartitionSpec(tensor, None, shard),
    }
    stack_dims = (None,) if sizes.scan else ()
    layer = {name: PartitionSpec(*stack_dims, *specs[name]) for name in sizes.layer_shapes()}
    outer = {name: specs[name] for name in sizes.outer_shapes()}
    layers: Any = layer if sizes.scan else tuple(dict(layer) for _ in range(sizes.layers))
    params = {**outer, "layers": layers}
    state = (params, params, PartitionSpec())
    tokens = PartitionSpec(batch)
    return Strategy(
        mesh,
        in_shardings=(params, state, tokens, tokens),
        out_shardings=(params, state, PartitionSpec()),
        sites={"residual": PartitionSpec(batch, None, tensor)},
    )


def plan_step(sizes: LlamaSizes, mesh: Mesh) -> Plan:
    """Return the plan of `train_step` on a mesh; parameters and Adam's state are donated.

    >>> small = LlamaSizes(2, 64, 128, 4, 2, 16, 256, 32, 8)
    >>> plan = plan_step(small, Mesh({"fsdp": 4}))
    >>> sorted(set(plan.collectives().query("role == 'weight'")["kind"]))
    ['all_gather']
    """
    return plan(
        partial(train_step, sizes),
        *arguments(sizes),
        strategy=strategy(sizes, mesh),
        roles=ROLES,
        donate_argnums=(0, 1),
    )
