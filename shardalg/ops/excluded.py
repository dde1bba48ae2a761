"""Primitives without a row, each with the reason: every device runs them on whole operands."""

from __future__ import annotations

# Reason to primitives. What JAX removes before a program is complete stands here too, so that the
# table, the calls and this list together name all that jax has (tests/ops/test_census.py).
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
        dot_product_attention_bwd dot_product_attention_bwd_wrapper dot_product_attention_fp8_bwd
        dot_product_attention_fp8_bwd_wrapper dot_product_attention_fp8_fwd
        dot_product_attention_fp8_fwd_wrapper dot_product_attention_fwd
        dot_product_attention_fwd_wrapper ffi_call relayout scaled_matmul scaled_matmul_wrapper""",
    "it computes or stores elsewhere than on the device": "compute_on with_memory_space_constraint",
    "it draws from a state of the device, and is refused": "rng_uniform",
    "two values are to be laid out alike, which completion decides": "shard_alike",
    "sizes that are known at run time only have no shards": "dim_as_value dimension_size",
    "JAX's own, gone when a function is traced": """
        custom_jvp_call_jaxpr custom_lin stage tie unreachable zeros_like""",
}
EXCLUDED = {name: reason for reason, names in REASONS.items() for name in names.split()}
"""Primitive to the reason why it has no row."""
