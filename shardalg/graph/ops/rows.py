"""The table of operators: the family that builds the rows of each primitive.

Primitives without a row are listed with the reason. Every device runs them on whole operands.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shardalg.graph.ir import Signature
from shardalg.graph.ops.families import (
    block,
    contraction,
    data_formatting,
    indexing,
    pointwise,
    window,
)
from shardalg.graph.ops.families.building import Builder, has_zero
from shardalg.graph.ops.loops import loops_without_own_dimension
from shardalg.graph.ops.rule import PICK, SUM, Rule

# Primitives that JAX removes before a program is complete are listed too, so that the rows, the
# calls and this table together name all primitives of JAX (tests/ops/test_census.py).
REASONS = {
    "JAX replaces it by a number where the program is lowered": "platform_index",
    "what it does outside the function has no place on a device": """
        after_all buffer_callback check create_token dce_sink debug_callback debug_print
        inspect_sharding io_callback pure_callback shape_assertion""",
    "it changes a reference in place, and a plan moves values": """
        accum_grad_in_ref addupdate box_get box_set broadcast_to core_map create_linear empty_ref
        free_ref freeze get log_extend log_read new_box new_log new_ref pin run_state swap unpin""",
    "its meaning is in code that is no jaxpr": """
        call_exported call_hi_primitive call_hi_primitive_linearized cudnn_fusion
        dot_product_attention_bwd dot_product_attention_fp8_bwd
        dot_product_attention_fp8_bwd_wrapper dot_product_attention_fp8_fwd
        dot_product_attention_fp8_fwd_wrapper dot_product_attention_fwd ffi_call relayout
        scaled_matmul scaled_matmul_wrapper""",
    "it computes or stores elsewhere than on the device": "compute_on with_memory_space_constraint",
    "it draws from a state of the device, and is refused": "rng_uniform",
    "two values are to be laid out alike, which completion decides": "shard_alike",
    "sizes that are known at run time only have no shards": "dim_as_value dimension_size",
    "JAX's own, gone when a function is traced": """
        custom_jvp_call_jaxpr custom_lin stage tie unreachable zeros_like""",
}
# By primitive, because messages to the user name the reason for one primitive.
EXCLUDED = {name: reason for reason, names in REASONS.items() for name in names.split()}


FAMILIES = (pointwise, contraction, data_formatting, indexing, window, block)
BUILDERS: dict[str, Builder] = {k: v for family in FAMILIES for k, v in family.ROWS.items()}


@lru_cache(maxsize=65536)
def rules(signature: Signature) -> tuple[Rule, ...] | None:
    """Return the rows (`Rule`) of an operator with these shapes, or None if the table has none.

    If there are several rows, row k computes result k, and loops of one name are one loop.

    >>> from shardalg.graph.ir import ValueType
    >>> x = ValueType((4, 8), "float32")
    >>> print(*rules(Signature("add", (), (x, ValueType((4, 1), "float32")), (x,))))
    add: [d0, d1], [d0, 0] -> [d0, d1]
    """
    builder = BUILDERS.get(signature.primitive)
    if builder is None:
        return None
    rows = builder(signature)
    results = tuple(value.shape for value in signature.results)
    shaped = tuple(
        replace(
            row,
            operand_shapes=tuple(value.shape for value in signature.operands),
            result_shapes=results[k : k + 1] if len(rows) > 1 else results,
        )
        for k, row in enumerate(rows)
    )
    have_zero = all(has_zero(t.dtype) for t in (*signature.operands, *signature.results))
    if have_zero:
        return shaped
    # Partitioning a sum or a pick writes zeros in place of padding, and of elements that another
    # device contributes. A type without zero has no such number, so the loops of the sum are local.
    local_rows = []
    for row in shaped:
        if row.combine in (SUM, PICK):
            carried = frozenset({row.prefix[0]} if row.prefix else ())
            windows = loops_without_own_dimension(row) if row.reduced else frozenset()
            row = replace(row, local=row.local | carried | windows | frozenset(row.reduced))
        local_rows.append(row)
    return tuple(local_rows)
