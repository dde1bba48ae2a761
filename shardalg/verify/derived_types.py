"""Local shapes and item types of operators: what each makes follows from what it reads."""

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


def of_node(signature: Signature, read: list[Local], made: list[Local]) -> Decided:
    """Locals are parts of values of the node's types: of these item types and global shapes."""
    right = [t.dtype for t in signature.operands] == [local.dtype for local in read]
    wanted = [(t.dtype, t.shape) for t in signature.results]
    right = right and wanted == [(local.dtype, local.sharding.shape) for local in made]
    return Decided(f"{signature.primitive} reads and makes parts of what the node does", right)


def unlike(signature: Signature, attributes: Apply | Fold) -> Iterator[Decided]:
    """Of every parameter that equals a right one in another type: 1.0 and True are no 1 to JAX.

    >>> x = ValueType((4,), "float32")
    >>> node = Signature("reshape", (("new_sizes", (2, 2)), ("dimensions", None)), (x,), (x,))
    >>> said = (1, 4), (1, 4.0), (True, 4)
    >>> [[*unlike(node, Apply("reshape", (("new_sizes", sizes),)))] == [] for sizes in said]
    [True, False, False]
    """
    own = dict(signature.params)
    for name, value in attributes.params:
        if not _leaf_types(value) <= _leaf_types(own.get(name)):
            yield Decided(f"{name} is of the types that it has in the node: {value}", holds=False)


def unfit(dtype: str, fill: complex | None) -> Iterator[Decided]:
    """Of a number that is filled in, if no value of that type holds one of its kind.

    >>> [[*unfit("float32", fill)] == [] for fill in (1, 1.0, 1 + 0j)]
    [True, True, False]
    """
    if isinstance(fill, complex) and not dtype.startswith("complex"):
        yield Decided(f"{fill} is filled into {dtype}", holds=False)


def _leaf_types(value: Plain) -> set[type]:
    if isinstance(value, tuple):
        return set().union(*map(_leaf_types, value))
    return {type(value)}


def derived(
    graph: Graph, instruction: Instruction[Apply], read: list[Local], made: list[Local]
) -> Decided:
    """What an `Apply` makes is declared as what its primitive makes of what it reads."""
    signature = node_of(graph, instruction).signature
    operands, declared = _types(read), _types(made)
    try:
        found = _derived(graph, instruction, signature, operands)
    except TraceError:
        # of a loaded plan the code of the user is missing: the row says what it makes
        found = _by_row(instruction.attributes, signature, operands, declared)
    except (TypeError, ValueError) as error:
        words = f"{signature.primitive} runs on {list(operands)} (JAX: {_first_line(error)})"
        return Decided(words, holds=False)
    words = f"{signature.primitive} makes {list(found)} of {list(operands)}"
    left = LEFT_TO_THE_COMPILER.get(signature.primitive)
    params = {**dict(signature.params), **dict(instruction.attributes.params)}
    return Decided(words, found == declared and (left is None or left(params, operands, found)))


def _derived(
    graph: Graph, instruction: Instruction[Apply], signature: Signature, operands: Types
) -> Types:
    if operands == signature.operands and not instruction.attributes.params:
        return signature.results
    binding, params = bound(graph, instruction)
    return result_types(instruction.attributes.primitive, binding, params, operands)


def _by_row(apply: Apply, signature: Signature, operands: Types, declared: Types) -> Types:
    shapes = tuple(t.shape for t in (*operands, *declared))
    rows = rules(local_signature(signature, dict(apply.params), shapes)) or ()
    found = [local_shape(rule, k, rule.extents) for rule in rows for k in range(len(rule.results))]
    types = zip(found, signature.results, strict=True)
    return tuple(ValueType(shape, whole.dtype) for shape, whole in types)


def _types(locals_: list[Local]) -> Types:
    return tuple(ValueType(local.shape, local.dtype) for local in locals_)


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0]
