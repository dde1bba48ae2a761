"""Small example nodes of every family, whose rows are printed by the operator page and by tests."""

from __future__ import annotations

from shardalg.graph.ir import Plain, Signature, ValueType
from shardalg.graph.ops.families.contraction import RAGGED
from shardalg.graph.ops.families.indexing import GATHER, SCATTER


def numbers(fields: str, *values: Plain) -> Plain:
    """Return dimension numbers as plain data: pairs of a field's name and its value.

    Args:
      fields: the names of the fields, separated by spaces.
      values: the values of the fields, in the same order.
    """
    return tuple(zip(fields.split(), values, strict=True))


def window(count: int) -> dict[str, Plain]:
    """Return parameters of a `reduce_window` of matrices.

    The window has `count` taps and stride 2 along dimension 1, and covers one row.
    """
    return {
        "window_dimensions": (1, count),
        "window_strides": (1, 2),
        "padding": ((0, 0), (1, 1)),
        "base_dilation": (1, 1),
        "window_dilation": (1, 1),
    }


def selection(count: int) -> dict[str, Plain]:
    """Return the parameters of `select_and_scatter_add` with the window of `window(count)`."""
    names = ("window_dimensions", "window_strides", "padding")
    params = {name: window(count)[name] for name in names}
    return params | {"select_prim": ("opaque", "primitive:ge")}


def conv(**changed: Plain) -> dict[str, Plain]:
    """Return the parameters of a convolution along one dimension, padded by one on both sides.

    Args:
      changed: parameters with another value than the default.
    """
    spec = (("lhs_spec", (0, 1, 2)), ("rhs_spec", (0, 1, 2)), ("out_spec", (0, 1, 2)))
    plain: dict[str, Plain] = {
        "dimension_numbers": spec,
        "window_strides": (1,),
        "padding": ((1, 1),),
        "lhs_dilation": (1,),
        "rhs_dilation": (1,),
        "feature_group_count": 1,
        "batch_group_count": 1,
    }
    return plain | changed


def ragged_params(at: int, *groups: int) -> dict[str, Plain]:
    """Return the parameters of a `ragged_dot_general`.

    Args:
      at: the ragged dimension of the left operand.
      groups: the group dimensions of the right operand.
    """
    dims = (((1,), (1,) if groups else (0,)), ((), ()))
    return {"ragged_dot_dimension_numbers": numbers(RAGGED, dims, (at,), groups)}


EMBED = numbers(GATHER, (2,), (0,), (0,), (), ())
ALONG = numbers(GATHER, (), (1,), (1,), (0,), (0,))
SLICES = numbers(GATHER, (1,), (), (0,), (), ())
ADD = numbers(SCATTER, (2,), (0,), (0,), (), ())

Case = tuple[str, dict[str, Plain], list[str], list[str]]
"""(primitive, parameters, operand shapes, result shapes); a shape is text such as "4,8"."""
CASES: tuple[Case, ...] = (
    ("add", {}, ["4,8", "4,8"], ["4,8"]),
    ("mul", {}, ["4,8", "4,1"], ["4,8"]),
    ("select_n", {}, ["", "4,8", "4,8"], ["4,8"]),
    ("clamp", {}, ["", "4", ""], ["4"]),
    ("threefry2x32", {}, ["4", "4", "4", "4"], ["4", "4"]),
    ("convert_element_type", {}, ["4,8"], ["4,8"]),
    ("optimization_barrier", {}, ["4,8", "3"], ["4,8", "3"]),
    ("annotate", {}, ["4,8"], ["4,8"]),
    ("bitcast_convert_type", {}, ["4"], ["4,2"]),
    ("broadcast_in_dim", {"broadcast_dimensions": (1,), "shape": (4, 8)}, ["8"], ["4,8"]),
    ("broadcast_in_dim", {"broadcast_dimensions": (0, 1), "shape": (4, 8)}, ["4,1"], ["4,8"]),
    ("broadcast_in_dim", {"broadcast_dimensions": (0,), "shape": (4, 1)}, ["4"], ["4,1"]),
    ("transpose", {"permutation": (2, 0, 1)}, ["2,3,4"], ["4,2,3"]),
    ("squeeze", {"dimensions": (1,)}, ["4,1,8"], ["4,8"]),
    ("tile", {"reps": (1, 3)}, ["4,8"], ["4,24"]),
    ("empty", {"shape": (4, 8)}, [], ["4,8"]),
    ("iota", {"dimension": 1, "shape": (4, 8)}, [], ["4,8"]),
    ("positions", {"shape": (4, 8), "strides": (8, 1)}, ["", ""], ["4,8", "4,8"]),
    ("reshape", {"new_sizes": (6, 5), "dimensions": None}, ["2,3,5"], ["6,5"]),
    ("reshape", {"new_sizes": (2, 3, 5), "dimensions": None}, ["6,5"], ["2,3,5"]),
    ("reshape", {"new_sizes": (4, 6), "dimensions": None}, ["6,4"], ["4,6"]),
    ("reshape", {"new_sizes": (6, 4), "dimensions": None}, ["2,3,4"], ["6,4"]),
    ("reshape", {"new_sizes": (12, 2), "dimensions": (1, 0, 2)}, ["3,4,2"], ["12,2"]),
    ("reshape", {"new_sizes": (3, 0), "dimensions": None}, ["0,3"], ["3,0"]),
    ("dot_general", {"dimension_numbers": (((1,), (0,)), ((), ()))}, ["4,8", "8,2"], ["4,2"]),
    (
        "dot_general",
        {"dimension_numbers": (((3,), (3,)), ((0, 2), (0, 2)))},
        ["2,8,4,3", "2,8,4,3"],
        ["2,4,8,8"],
    ),
    ("ragged_dot_general", ragged_params(0, 0), ["8,4", "3,4,5", "3"], ["8,5"]),
    ("ragged_dot_general", ragged_params(1), ["4,8", "8,5", "3"], ["3,4,5"]),
    ("row_groups", {"shape": (8,)}, ["", "3"], ["8"]),
    ("grouped_dot", ragged_params(0, 0) | {"count": 3}, ["8,4", "3,4,5", "8"], ["8,5"]),
    ("grouped_dot", ragged_params(1) | {"count": 3}, ["4,8", "8,5", "8"], ["3,4,5"]),
    (
        "scaled_dot",
        {"dimension_numbers": (((1,), (0,)), ((), ()))},
        ["4,8", "8,2", "4,2", "1,2"],
        ["4,2"],
    ),
    ("reduce_sum", {"axes": (1,)}, ["4,8"], ["4"]),
    ("reduce_max", {"axes": (0, 1)}, ["4,8"], [""]),
    ("reduce_prod", {"axes": (1,)}, ["4,8"], ["4"]),
    ("argmax", {"axes": (1,)}, ["4,8"], ["4"]),
    ("reduce", {"dimensions": (1,)}, ["4,8", "4,8", "", ""], ["4", "4"]),
    ("cumsum", {"axis": 1, "reverse": False}, ["4,8"], ["4,8"]),
    ("cummax", {"axis": 0, "reverse": True}, ["4,8"], ["4,8"]),
    (
        "slice",
        {"start_indices": (0, 1), "limit_indices": (4, 8), "strides": (1, 2)},
        ["4,8"],
        ["4,4"],
    ),
    (
        "slice",
        {"start_indices": (0, 0), "limit_indices": (2, 8), "strides": None},
        ["4,8"],
        ["2,8"],
    ),
    ("rev", {"dimensions": (1,)}, ["4,8"], ["4,8"]),
    ("pad", {"padding_config": ((0, 0, 0), (2, 1, 2))}, ["4,3", ""], ["4,10"]),
    ("join_ends", {"dimension": 0, "sizes": (3, 7)}, ["10,4", "10,4"], ["10,4"]),
    ("concatenate", {"dimension": 1}, ["4,10", "4,5"], ["4,15"]),
    ("reduce_window_max", window(3), ["4,8"], ["4,4"]),
    ("reduce_window_sum", window(1), ["4,8"], ["4,5"]),
    ("reduce_window", window(3), ["4,8", ""], ["4,4"]),
    ("select_and_gather_add", window(3) | selection(3), ["4,8", "4,8"], ["4,4"]),
    ("select_and_scatter_add", selection(3), ["4,4", "4,8"], ["4,8"]),
    ("select_and_scatter", window(3), ["4,8", "4,4", ""], ["4,8"]),
    ("conv_general_dilated", conv(), ["2,3,8", "4,3,3"], ["2,4,8"]),
    (
        "conv_general_dilated",
        conv(window_strides=(2,), padding=((2, 2),), lhs_dilation=(3,), rhs_dilation=(2,)),
        ["2,3,8", "4,3,3"],
        ["2,4,11"],
    ),
    ("conv_general_dilated", conv(feature_group_count=2), ["2,4,8", "6,2,3"], ["2,6,8"]),
    ("conv_general_dilated", conv(feature_group_count=4), ["2,4,8", "4,1,3"], ["2,4,8"]),
    ("conv_general_dilated", conv(batch_group_count=2), ["4,3,8", "4,3,3"], ["2,4,8"]),
    ("conv_general_dilated", conv(padding=((0, 0),)), ["2,3,8", "4,3,1"], ["2,4,8"]),
    (
        "gather",
        {"dimension_numbers": EMBED, "slice_sizes": (1, 4), "mode": "CLIP"},
        ["9,4", "2,3,1"],
        ["2,3,4"],
    ),
    (
        "gather",
        {
            "dimension_numbers": EMBED,
            "slice_sizes": (1, 4),
            "mode": "FILL_OR_DROP",
            "fill_value": None,
        },
        ["9,4", "2,3,1"],
        ["2,3,4"],
    ),
    (
        "gather",
        {"dimension_numbers": ALONG, "slice_sizes": (1, 1), "mode": "CLIP"},
        ["2,9", "2,3,1"],
        ["2,3"],
    ),
    (
        "gather",
        {"dimension_numbers": SLICES, "slice_sizes": (2,), "mode": "CLIP"},
        ["9", "3,1"],
        ["3,2"],
    ),
    (
        "scatter-add",
        {"dimension_numbers": ADD, "mode": "FILL_OR_DROP"},
        ["9,4", "2,3,1", "2,3,4"],
        ["9,4"],
    ),
    ("scatter", {"dimension_numbers": ADD, "mode": "CLIP"}, ["9,4", "2,3,1", "2,3,4"], ["9,4"]),
    ("dynamic_slice", {"slice_sizes": (4, 3)}, ["4,8", "", ""], ["4,3"]),
    ("dynamic_update_slice", {}, ["4,8", "4,3", "", ""], ["4,8"]),
    ("sort", {"dimension": 1, "num_keys": 1}, ["4,8", "4,8"], ["4,8", "4,8"]),
    ("top_k", {"axis": 1, "k": 2}, ["4,8"], ["4,2", "4,2"]),
    ("approx_top_k", {"reduction_dimension": 0, "k": 2}, ["8,4"], ["2,4", "2,4"]),
    ("fft", {"fft_lengths": (8,)}, ["4,8"], ["4,5"]),
    ("triangular_solve", {"left_side": True}, ["2,3,3", "2,3,4"], ["2,3,4"]),
    ("cholesky", {}, ["2,3,3"], ["2,3,3"]),
    ("random_bits", {}, ["2"], ["4,8"]),
    ("random_wrap", {}, ["4,2"], ["4"]),
    ("random_unwrap", {}, ["4"], ["4,2"]),
)


def signature(case: Case) -> Signature:
    """Return the signature of an example, in which all types are float32.

    >>> signature(("add", {}, ["4,8", "4,1"], ["4,8"])).operands
    (f32[4,8], f32[4,1])
    """
    primitive, params, operands, results = case
    return Signature(primitive, tuple(sorted(params.items())), _types(operands), _types(results))


def _types(shapes: list[str]) -> tuple[ValueType, ...]:
    """Return float32 types of shapes that are given as text, such as "4,8"."""
    sizes = (tuple(map(int, filter(None, text.split(",")))) for text in shapes)
    return tuple(ValueType(shape, "float32") for shape in sizes)
