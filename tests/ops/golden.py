"""The printed rows. To rewrite the file after a meant change: `python -m tests.ops.golden`."""

from pathlib import Path

from shardalg.graph.ir import Signature, ValueType
from shardalg.ops.emit import unsupported_loops
from shardalg.ops.loops import flops, loop_class, row_class
from shardalg.ops.table import rules

PATH = Path(__file__).with_name("golden.txt")
GATHER = (
    "offset_dims collapsed_slice_dims start_index_map operand_batching_dims "
    "start_indices_batching_dims"
)
SCATTER = (
    "update_window_dims inserted_window_dims scatter_dims_to_operand_dims operand_batching_dims "
    "scatter_indices_batching_dims"
)


def numbers(fields, *values):
    return tuple(zip(fields.split(), values, strict=True))


def window(count, dims=2):
    pads = ((0, 0),) * (dims - 1) + ((1, 1),)
    ones = (1,) * dims
    return {
        "window_dimensions": (1,) * (dims - 1) + (count,),
        "window_strides": (1,) * (dims - 1) + (2,),
        "padding": pads,
        "base_dilation": ones,
        "window_dilation": ones,
    }


def conv(strides=(1,), padding=((1, 1),), **kw):
    spec = (("lhs_spec", (0, 1, 2)), ("rhs_spec", (0, 1, 2)), ("out_spec", (0, 1, 2)))
    plain = {
        "lhs_dilation": (1,),
        "rhs_dilation": (1,),
        "feature_group_count": 1,
        "batch_group_count": 1,
    }
    return plain | {"dimension_numbers": spec, "window_strides": strides, "padding": padding} | kw


def ragged(at, *groups):
    dims = (((1,), (1,) if groups else (0,)), ((), ()))
    values = (dims, (at,), groups)
    names = "dot_dimension_numbers lhs_ragged_dimensions rhs_group_dimensions"
    return {"ragged_dot_dimension_numbers": numbers(names, *values)}


EMBED = numbers(GATHER, (2,), (0,), (0,), (), ())
ALONG = numbers(GATHER, (), (1,), (1,), (0,), (0,))
SLICES = numbers(GATHER, (1,), (), (0,), (), ())
ADD = numbers(SCATTER, (2,), (0,), (0,), (), ())

# (primitive, parameters, operand shapes, result shapes)
CASES = (
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
    ("ragged_dot_general", ragged(0, 0), ["8,4", "3,4,5", "3"], ["8,5"]),
    ("ragged_dot_general", ragged(1), ["4,8", "8,5", "3"], ["3,4,5"]),
    (
        "scaled_dot",
        {"dimension_numbers": (((1,), (0,)), ((), ()))},
        ["4,8", "8,2", "4,2", "1,2"],
        ["4,2"],
    ),
    ("reduce_sum", {"axes": (1,)}, ["4,8"], ["4"]),
    ("reduce_max", {"axes": (0, 1)}, ["4,8"], [""]),
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
    ("concatenate", {"dimension": 1}, ["4,10", "4,5"], ["4,15"]),
    ("split", {"axis": 1, "sizes": (3, 5)}, ["4,8"], ["4,3", "4,5"]),
    ("stack", {"axis": 1}, ["4", "4"], ["4,2"]),
    ("unstack", {"axis": 1}, ["4,2"], ["4", "4"]),
    ("reduce_window_max", window(3), ["4,8"], ["4,4"]),
    ("reduce_window_sum", window(1), ["4,8"], ["4,5"]),
    ("reduce_window", window(3), ["4,8", ""], ["4,4"]),
    ("select_and_gather_add", window(3), ["4,8", "4,8"], ["4,4"]),
    ("select_and_scatter_add", window(3), ["4,4", "4,8"], ["4,8"]),
    ("select_and_scatter", window(3), ["4,8", "4,4", ""], ["4,8"]),
    ("conv_general_dilated", conv(), ["2,3,8", "4,3,3"], ["2,4,8"]),
    (
        "conv_general_dilated",
        conv((2,), ((2, 2),), lhs_dilation=(3,), rhs_dilation=(2,)),
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
    ("fft", {"fft_lengths": (8,)}, ["4,8"], ["4,5"]),
    ("triangular_solve", {"left_side": True}, ["2,3,3", "2,3,4"], ["2,3,4"]),
    ("cholesky", {}, ["2,3,3"], ["2,3,3"]),
    ("random_bits", {}, ["2"], ["4,8"]),
)


def types(shapes):
    return tuple(ValueType(tuple(map(int, filter(None, s.split(",")))), "float32") for s in shapes)


def signature(primitive, params, operands, results):
    return Signature(primitive, tuple(sorted(params.items())), types(operands), types(results))


def lines():
    """A line per row: text, class of the row and of each loop, loops never split, flops."""
    for case in CASES:
        for rule in rules(signature(*case)):
            classes = " ".join(
                f"{name}={extent}:{loop_class(rule, name)}" for name, extent in rule.loops
            )
            barred = " ".join(sorted(unsupported_loops(rule))) or "-"
            yield f"{rule} | {row_class(rule)} | {classes} | {barred} | {flops(rule)}"


if __name__ == "__main__":
    PATH.write_text("\n".join(lines()) + "\n")
