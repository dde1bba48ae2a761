"""Claims about item types and shapes of operators.

The declared results must have the types that the operator computes from its operands.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardalg.errors import TraceError
from shardalg.graph.abstract import LEFT_TO_THE_COMPILER, result_types
from shardalg.graph.ir import Graph, Plain, Signature, ValueType
from shardalg.graph.ops.local_parameters import local_shape
from shardalg.graph.ops.rows import rules
from shardalg.spmd.bound import bound, node_of
from shardalg.spmd.instruction import Instruction
from shardalg.spmd.instructions import Apply, Fold
from shardalg.spmd.local import Local
from shardalg.verify.operators.local_rows import local_signature
from shardalg.verify.report import Decided

Types = tuple[ValueType, ...]


def node_type_claim(signature: Signature, read: list[Local], made: list[Local]) -> Decided:
    """Return the claim that locals have the item types and global shapes of the node's values.

    Args:
      signature: the node's operator and types.
      read, made: the locals that the instruction reads, and its results.
    """
    is_right = [t.dtype for t in signature.operands] == [local.dtype for local in read]
    node_types = [(t.dtype, t.shape) for t in signature.results]
    is_right = is_right and node_types == [(local.dtype, local.sharding.shape) for local in made]
    words = f"operands and results of {signature.primitive} are parts of the node's values"
    return Decided(words, is_right)


def literal_type_claims(signature: Signature, attributes: Apply | Fold) -> Iterator[Decided]:
    """Yield a failing claim per parameter that equals the node's but has another Python type.

    To Python, 1, 1.0 and True are equal. JAX accepts only integers for sizes, and its result types
    depend on the type of a number.

    >>> x = ValueType((4,), "float32")
    >>> node = Signature("reshape", (("new_sizes", (2, 2)), ("dimensions", None)), (x,), (x,))
    >>> own = [Apply("reshape", (("new_sizes", n),)) for n in ((1, 4), (1, 4.0), (True, 4))]
    >>> [[*literal_type_claims(node, apply)] == [] for apply in own]
    [True, False, False]
    """
    node_params = dict(signature.params)
    for name, value in attributes.params:
        if not _leaf_types(value) <= _leaf_types(node_params.get(name)):
            yield Decided(f"{name} has the Python types of the node's: {value}", holds=False)


def fill_type_claims(dtype: str, fill: complex | None) -> Iterator[Decided]:
    """Yield a failing claim if a fill cannot be represented in the item type.

    >>> [[*fill_type_claims("float32", fill)] == [] for fill in (1, 1.0, 1 + 0j)]
    [True, True, False]
    """
    if isinstance(fill, complex) and not dtype.startswith("complex"):
        yield Decided(f"the fill {fill} can be represented in {dtype}", holds=False)


def _leaf_types(value: Plain) -> set[type]:
    if isinstance(value, tuple):
        return set().union(*map(_leaf_types, value))
    return {type(value)}


def result_type_claim(
    graph: Graph, instruction: Instruction[Apply], read: list[Local], made: list[Local]
) -> Decided:
    """Return the claim that an instruction declares the result types that its primitive computes.

    Args:
      read, made: the locals that the instruction reads, and its results.
    """
    signature, apply = node_of(graph, instruction).signature, instruction.attributes
    operands, declared = _types(read), _types(made)
    try:
        # A device that runs the node's own operator makes the node's own types, so JAX need not
        # derive them.
        if operands == signature.operands and not apply.params:
            derived = signature.results
        else:
            binding, params = bound(graph, instruction)
            derived = result_types(apply.primitive, binding, params, operands)
    except TraceError:
        # A loaded plan lacks the user's code, so JAX cannot derive the types. The row gives the
        # shapes, and the node gives the item types.
        shapes = tuple(t.shape for t in (*operands, *declared))
        rows = rules(local_signature(signature, dict(apply.params), shapes)) or ()
        by_row = [local_shape(row, k, row.extents) for row in rows for k in range(len(row.results))]
        types = zip(by_row, signature.results, strict=True)
        derived = tuple(ValueType(shape, whole.dtype) for shape, whole in types)
    except (TypeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        words = f"{signature.primitive} accepts {list(operands)} (JAX: {reason})"
        return Decided(words, holds=False)
    words = f"{signature.primitive} of {list(operands)} gives {list(derived)}"
    # For some primitives JAX checks nothing when it traces, and leaves errors to the compiler.
    compiler_check = LEFT_TO_THE_COMPILER.get(signature.primitive)
    all_params = {**dict(signature.params), **dict(apply.params)}
    return Decided(
        words,
        derived == declared
        and (compiler_check is None or compiler_check(all_params, operands, derived)),
    )


def _types(locals_: list[Local]) -> Types:
    return tuple(ValueType(local.shape, local.dtype) for local in locals_)
