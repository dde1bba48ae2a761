"""cuDNN's fused attention in primitives that have rows, and its trace on machines without a GPU.

`jax.nn.dot_product_attention(..., implementation="cudnn")` is one primitive forward and another
one backward. A plan needs their loops, so that batch and heads can be sharded; prices need their
products. The expansions follow FlashAttention-2 (arXiv:2307.08691, algorithms 1 and 2). The forward
pass gives the result and the logarithm of each row's sum. From these sums the backward pass
computes the weights again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any
from unittest.mock import patch

import jax.numpy as jnp
from jax import lax

# The score of an invisible key. It is finite, so that the difference of two of them is no NaN.
_MASKED = -1e30
_BNTH = 1
_VERSION = 91100
"""cuDNN 9.10 is the first version with all patterns that JAX's checks know."""


@contextmanager
def cudnn_as_on_gpu() -> Iterator[None]:
    """Let JAX trace cuDNN's attention on a machine without cuDNN, as on a Hopper GPU.

    Inside this context, the functions by which JAX detects cuDNN give fixed answers. Where
    JAX detects cuDNN, its own checks of version and chip stay.
    """
    try:
        from jax._src.cudnn import fused_attention_stablehlo as cudnn
    except ImportError:  # a jax without this file has no such attention
        yield
        return
    with ExitStack() as patches:
        try:
            cudnn.check_cudnn_version()
        except Exception:  # jax raises RuntimeError; a plugin without a driver raises others
            # Each of these functions returns its answer for any arguments.
            answers = {
                "check_cudnn_version": _VERSION,
                "check_compute_capability": True,
                "is_cuda_compute_capability_equal": False,
            }
            for name, answer in answers.items():
                if hasattr(cudnn, name):
                    patches.enter_context(patch.object(cudnn, name, lambda *_, a=answer: a))
        yield


def has_expansion(equation: Any) -> bool:
    """Return whether an attention equation can be expanded to primitives with rows.

    This is not the case with dropout, packed sequences or paged keys.
    """
    # JAX passes small placeholders for operands that a call does not use. Only offsets of packed
    # sequences have more than two entries per batch element, and only page tables have rank 4.
    offsets, pages = equation.invars[6].aval, equation.invars[8].aval
    is_packed = len(offsets.shape) == 2 and offsets.shape[1] > 2
    return not equation.params["dropout_rate"] and not is_packed and len(pages.shape) != 4


def forward(q: Any, k: Any, v: Any, bias: Any, *rest: Any, **params: Any) -> tuple[Any, ...]:
    """Return the result of attention and, in training, the logarithm of each row's sum.

    Args:
      q, k, v: query, key, value.
      bias: an array that is added to the scores, if the parameters say that there is one.
      rest: the other operands of JAX's primitive; the first two are the lengths of the sequences.
      params: the parameters of JAX's primitive.
    """
    # The dimensions become batch, length, heads, size. `seen` is the mask of visible keys; None if
    # all keys are visible.
    q, k, v = (_by_length(x, params) for x in (q, k, v))
    scores, seen = _scores(q, k, bias, rest[:2], params)
    most = jnp.max(scores, -1, keepdims=True)
    weights = jnp.exp(scores - most)
    if seen is not None:
        weights = jnp.where(seen, weights, 0.0)
    # A row without any visible key has the sum 0. The lower bound gives the result 0, not 0/0.
    sums = jnp.maximum(jnp.sum(weights, -1, keepdims=True), 1e-37)
    # Grouped-query attention: the g query heads of a group k share one head of key and value. The
    # other letters are b batch, t query, s key, h element of a head.
    outputs = jnp.einsum("bkgts,bskh->btkgh", (weights / sums).astype(v.dtype), v)
    batch, length, groups, heads, size = outputs.shape
    result = _as_given(outputs.reshape(batch, length, groups * heads, size), params)
    if not params["is_training"]:
        return (result,)
    return result, (most + jnp.log(sums)).reshape(batch, groups * heads, length)


def backward(q: Any, k: Any, v: Any, bias: Any, *rest: Any, **params: Any) -> tuple[Any, ...]:
    """Return the gradients of query, key, value and, if it is an operand, of the bias.

    The last operands in `rest` are the logarithms of the row sums and the result of the forward
    pass, and the gradient of the result. The five products are those of FlashAttention-2: scores,
    and the gradients of value, weights, query and key.
    """
    given_bias = bias
    sums, result, gradient = rest[-3:]
    q, k, v, result, gradient = (_by_length(x, params) for x in (q, k, v, result, gradient))
    # The g query heads of a group k share one head of key and value, so these are two letters. The
    # others are b batch, t query, s key, h element of a head.
    scores, is_visible = _scores(q, k, bias, rest[:2], params)
    batch, length, heads, size = q.shape
    groups = k.shape[2]
    # `sums` has the logarithms from the forward pass, log(sum(exp(scores))) per row. The difference
    # therefore gives the normalised weights without a second reduction.
    row_sums = sums.reshape(batch, groups, heads // groups, length, 1)
    weights = jnp.exp(scores - row_sums)
    if is_visible is not None:
        weights = jnp.where(is_visible, weights, 0.0)

    def grouped(x: Any) -> Any:
        """Return x with its heads split into groups: batch, length, group, head, element."""
        return x.reshape(batch, length, groups, heads // groups, x.shape[-1])

    d_result = grouped(gradient)
    d_v = jnp.einsum("bkgts,btkgh->bskh", weights.astype(v.dtype), d_result)
    d_weights = jnp.einsum("btkgh,bskh->bkgts", d_result, v, preferred_element_type=jnp.float32)
    # The gradient of a softmax p is p * (dp - sum(p * dp)). FlashAttention-2 replaces the sum over
    # keys by the sum of `gradient * result` over the head size, which is equal and much shorter.
    product = gradient.astype(jnp.float32) * result.astype(jnp.float32)
    means = jnp.sum(grouped(product), -1).transpose(0, 2, 3, 1)[..., None]
    d_scores = weights * (d_weights - means)
    scaled = (d_scores * params["scale"]).astype(q.dtype)
    d_q = jnp.einsum("bkgts,bskh->btkgh", scaled, k).reshape(batch, length, heads, size)
    d_k = jnp.einsum("bkgts,btkgh->bskh", scaled, grouped(q))
    gradients = tuple(_as_given(x, params) for x in (d_q, d_k, d_v))
    if not params["variadic_args"][1]:
        return gradients
    # A bias dimension of size 1 is broadcast in the forward pass, so its gradient is a sum.
    bias_scores = d_scores.reshape(batch, heads, *d_scores.shape[-2:])
    broadcast_dims = [
        d for d, n in enumerate(given_bias.shape) if n == 1 and bias_scores.shape[d] != 1
    ]
    d_bias = jnp.sum(bias_scores, broadcast_dims, keepdims=True).astype(given_bias.dtype)
    return (*gradients, d_bias)


def _by_length(x: Any, params: dict[str, Any]) -> Any:
    """Return a tensor with its dimensions in the order batch, length, heads, size.

    In the layout BNTH of cuDNN, heads come before the length.
    """
    return x.transpose(0, 2, 1, 3) if params["layout"] == _BNTH else x


_as_given = _by_length  # the exchange of two dimensions is its own inverse


def _scores(
    q: Any, k: Any, bias: Any, lengths: tuple[Any, Any], params: dict[str, Any]
) -> tuple[Any, Any]:
    """Return the masked scores in float32, and the mask; None for the mask if all keys are visible.

    Both have the dimensions batch, group, head of the group, query, key. The mask is True for
    visible keys.

    Args:
      lengths: the number of valid queries, and of valid keys, of each batch element.
    """
    batch, length, heads, size = q.shape
    groups, keys = k.shape[2], k.shape[1]
    by_group = q.reshape(batch, length, groups, heads // groups, size)
    scores = jnp.einsum("btkgh,bskh->bkgts", by_group, k, preferred_element_type=jnp.float32)
    scores = scores * jnp.float32(params["scale"])
    # `variadic_args` are (has a bias, has a gradient of the bias): without a bias, JAX passes a
    # placeholder. A bias has one matrix per head, or one for all heads.
    if params["variadic_args"][0]:
        bias_heads = (groups, heads // groups) if bias.shape[1] == heads else (1, 1)
        wide_bias = bias.astype(jnp.float32)
        scores = scores + wide_bias.reshape(bias.shape[0], *bias_heads, *bias.shape[2:])
    kind = params["mask_type"].name
    rows = lax.broadcasted_iota(jnp.int32, (length, keys), 0)
    columns = lax.broadcasted_iota(jnp.int32, (length, keys), 1)
    masks = []
    if "CAUSAL" in kind:
        masks.append(rows >= columns)
    if params["sliding_window_length"] is not None:
        masks.append(columns > rows - params["sliding_window_length"])
    if "PADDING" in kind:
        num_queries, num_keys = (n.reshape(batch, 1, 1, 1, 1) for n in lengths)
        masks += [rows < num_queries, columns < num_keys]
    if not masks:
        return scores, None
    is_visible = jnp.broadcast_to(reduce(jnp.logical_and, masks), scores.shape)
    return jnp.where(is_visible, scores, _MASKED), is_visible
