"""Products, convolutions, gathers and scatters of StableHLO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jax import lax
from jax.extend.mlir.dialects import stablehlo

from shardalg.xla.stablehlo.text_step import TextStep


def _precision(step: TextStep) -> Any:
    """Return the precision of each operand; None if all have the default."""
    config = step.op.attributes["precision_config"] if step.has("precision_config") else ()
    words = [str(word).rstrip(">").rpartition(" ")[2] for word in config]
    return tuple(map(lax.Precision.__getitem__, words)) if {*words} - {"DEFAULT"} else None


def _dot(step: TextStep, x: Any, y: Any) -> Any:
    """Compute a `dot_general` by `lax`; one with an algorithm of its own is refused."""
    if step.has("algorithm"):
        raise step.refused(" of an algorithm of its own")
    # StableHLO lists contracting and batch dimensions per operand; `lax` takes them in pairs.
    dims = stablehlo.DotDimensionNumbers(step.op.attributes["dot_dimension_numbers"])
    numbers = (
        (tuple(dims.lhs_contracting_dimensions), tuple(dims.rhs_contracting_dimensions)),
        (tuple(dims.lhs_batching_dimensions), tuple(dims.rhs_batching_dimensions)),
    )
    return lax.dot_general(
        x, y, numbers, precision=_precision(step), preferred_element_type=step.dtype
    )


def _convolution(step: TextStep, x: Any, kernel: Any) -> Any:
    """Compute a convolution by `lax`, which has no reversed windows: the kernel is reversed."""
    # Two dimensions of each tensor are batch and features (or output and input features).
    dims = stablehlo.ConvDimensionNumbers(step.op.attributes["dimension_numbers"])
    rank = x.ndim - 2
    reversal = step.ints("window_reversal", (0,) * rank)
    turned = [d for d, on in zip(dims.kernel_spatial_dimensions, reversal, strict=True) if on]
    numbers = lax.ConvDimensionNumbers(
        (dims.input_batch_dimension, dims.input_feature_dimension, *dims.input_spatial_dimensions),
        (
            dims.kernel_output_feature_dimension,
            dims.kernel_input_feature_dimension,
            *dims.kernel_spatial_dimensions,
        ),
        (
            dims.output_batch_dimension,
            dims.output_feature_dimension,
            *dims.output_spatial_dimensions,
        ),
    )
    return lax.conv_general_dilated(
        x,
        lax.rev(kernel, turned) if turned else kernel,
        step.ints("window_strides", (1,) * rank),
        step.pairs("padding", rank),
        lhs_dilation=step.ints("lhs_dilation", (1,) * rank),
        rhs_dilation=step.ints("rhs_dilation", (1,) * rank),
        dimension_numbers=numbers,
        feature_group_count=step.number("feature_group_count"),
        batch_group_count=step.number("batch_group_count"),
        precision=_precision(step),
        preferred_element_type=step.dtype,
    )


def _index_vectors(indices: Any, dimension: int) -> Any:
    """Return indices with the index vector as the last dimension, as JAX requires.

    StableHLO leaves this dimension out if index vectors have one number; `dimension` is then the
    rank of the indices.
    """
    if dimension == indices.ndim:
        return lax.expand_dims(indices, (dimension,))
    order = [*(d for d in range(indices.ndim) if d != dimension), dimension]
    return indices if order == sorted(order) else lax.transpose(indices, order)


def _gather(step: TextStep, x: Any, indices: Any) -> Any:
    """Gather windows; StableHLO moves a window that reaches out of the operand back into it."""
    dims = stablehlo.GatherDimensionNumbers(step.op.attributes["dimension_numbers"])
    numbers = lax.GatherDimensionNumbers(
        tuple(dims.offset_dims),
        tuple(dims.collapsed_slice_dims),
        tuple(dims.start_index_map),
        tuple(dims.operand_batching_dims),
        tuple(dims.start_indices_batching_dims),
    )
    return lax.gather(
        x,
        _index_vectors(indices, dims.index_vector_dim),
        numbers,
        step.ints("slice_sizes"),
        indices_are_sorted=_said(step, "indices_are_sorted"),
        mode=lax.GatherScatterMode.CLIP,
    )


_SCATTERS = {
    "add": lax.scatter_add,
    "multiply": lax.scatter_mul,
    "minimum": lax.scatter_min,
    "maximum": lax.scatter_max,
    "": lax.scatter,
}


def _scatter(step: TextStep, *operands: Any) -> Any:
    """Scatter updates; StableHLO drops an update whose window reaches out of the operand."""
    if len(operands) != 3:
        raise step.refused(f" of {len(operands) // 2} operands")
    # A computation that returns its second argument replaces the element: the plain `lax.scatter`.
    block = step.op.regions[0].blocks[0]
    body = list(block.operations)
    replaces = len(body) == 1 and list(body[0].operands) == [block.arguments[1]]
    how = step.only() or ("" if replaces else "another")
    if how not in _SCATTERS:
        raise step.refused(f" with a computation other than {', '.join(filter(None, _SCATTERS))}")
    x, indices, updates = operands
    dims = stablehlo.ScatterDimensionNumbers(step.op.attributes["scatter_dimension_numbers"])
    numbers = lax.ScatterDimensionNumbers(
        tuple(dims.update_window_dims),
        tuple(dims.inserted_window_dims),
        tuple(dims.scattered_dims_to_operand_dims),
        tuple(dims.input_batching_dims),
        tuple(dims.scatter_indices_batching_dims),
    )
    return _SCATTERS[how](
        x,
        _index_vectors(indices, dims.index_vector_dim),
        updates,
        numbers,
        indices_are_sorted=_said(step, "indices_are_sorted"),
        unique_indices=_said(step, "unique_indices"),
        mode=lax.GatherScatterMode.FILL_OR_DROP,
    )


def _said(step: TextStep, name: str) -> bool:
    """Return the value of an attribute that is a boolean; False if it is absent."""
    return step.has(name) and bool(step.op.attributes[name].value)


def _cholesky(step: TextStep, x: Any) -> Any:
    """Return the lower Cholesky factor; `lax.linalg.cholesky` has no upper one."""
    if not _said(step, "lower"):
        raise step.refused(" of the upper triangle")
    return lax.linalg.cholesky(x, symmetrize_input=False)


def _triangular_solve(step: TextStep, a: Any, b: Any) -> Any:
    """Compute the operator `triangular_solve`, which solves with a triangular matrix `a`."""
    how = step.word("transpose_a")
    return lax.linalg.triangular_solve(
        a,
        b,
        left_side=_said(step, "left_side"),
        lower=_said(step, "lower"),
        transpose_a=how in ("TRANSPOSE", "ADJOINT"),
        conjugate_a=how == "ADJOINT",
        unit_diagonal=_said(step, "unit_diagonal"),
    )


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "stablehlo.dot_general": _dot,
    "stablehlo.dot": lambda s, x, y: lax.dot(x, y, preferred_element_type=s.dtype),
    "stablehlo.convolution": _convolution,
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
    "stablehlo.fft": lambda s, x: lax.fft(x, lax.FftType[s.word("fft_type")], s.ints("fft_length")),
    "stablehlo.cholesky": _cholesky,
    "stablehlo.triangular_solve": _triangular_solve,
}
