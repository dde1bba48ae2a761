"""Workarounds for faults of XLA, and barriers that keep its simplifier from merging operators.

**Two slices, two updates.** XLA makes one slice of two and one update of two, and adds their starts
without clamping each (openxla/xla issue 49121). In a partitioned program the second one is the
device's block. The operands of such operators are therefore changed before they run.

**Gathered copies.** XLA merges equal operators. A plan that frees a gathered value after the
forward pass and gathers it again (`keep_gathers` is off) would keep it alive until the backward
pass. As `jax.checkpoint` does, the operand of the second collective therefore goes through an
`optimization_barrier` together with
- the other operand of its consumer that is computed last before it, so that no compiler can gather
  earlier;
- values computed from gathered copies that are not read any more. A compiler that delays the
  gradients of weights until the optimizer reads them would hold the gathered activations until
  then. The last copy is left out, so that two copies are alive at a time: one can be gathered
  while the other one is used.

**Pallas kernels.** Interpreted kernels run on CPU devices; others do not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardalg.errors import LoweringError
from shardalg.graph.evaluate import Binding
from shardalg.graph.ir import Graph
from shardalg.graph.ops.families.indexing import numbers
from shardalg.graph.ops.rows import rules
from shardalg.graph.ops.rule import Access
from shardalg.spmd.bound import node_of
from shardalg.spmd.instruction import Block, Collective, Instruction, Operator
from shardalg.spmd.instructions import GATHERS, Apply
from shardalg.spmd.program import SpmdProgram

Array = Any
Operands = tuple[Array, ...]


def around_faults(
    program: SpmdProgram, graph: Graph, instruction: Instruction[Apply]
) -> Callable[..., Operands]:
    """Return a function that changes an operator's operands, to work around faults of XLA.

    It takes the operands and returns as many. For most operators it is the identity.

    Args:
      instruction: the instruction that runs the operator on a device's blocks.
    """
    # An update of the device's own block at run-time places. XLA would write another device's
    # element for an index that misses the block; a barrier before the block prevents it.
    if instruction.attributes.loops:
        rows = rules(node_of(graph, instruction).signature)
        if any(row.guards and isinstance(row.init, Access) for row in rows or ()):
            return lambda block, *rest: (lax.optimization_barrier(block), *rest)
    # Issue 49121: nested slices add their starts unclamped, so each start is clamped here.
    if instruction.attributes.primitive == "dynamic_slice":
        sizes = program.locals[instruction.results[0]].shape

        def clamped_starts(x: Array, *starts: Array) -> Operands:
            """Return the operands with each start in the range that keeps the slice inside."""
            highest = (size - length for size, length in zip(x.shape, sizes, strict=True))
            return x, *(_clip(start, h) for start, h in zip(starts, highest, strict=True))

        return clamped_starts
    if instruction.attributes.primitive == "gather" and instruction.node is not None:
        return lambda x, indices: _clamped_indices(graph, instruction, (x, indices))
    return lambda *operands: operands


def _clamped_indices(graph: Graph, instruction: Instruction[Apply], operands: Operands) -> Operands:
    """Return a gather's operands with clamped indices if its mode clips them, else unchanged.

    A start of a slice in the dimension `dim` is clamped to 0 ... size - slice size.

    Args:
      operands: the array and its indices, whose last dimension has one component per indexed
        dimension.
    """
    signature, (x, indices) = node_of(graph, instruction).signature, operands
    # On a device's block, some parameters (such as the slice sizes) differ from the graph's.
    param: dict[str, Any] = dict(signature.params) | dict(instruction.attributes.params)
    selected_dims = numbers(signature).selected if param.get("mode") == "CLIP" else ()
    for component, dim in enumerate(selected_dims):
        highest = x.shape[dim] - param["slice_sizes"][dim]
        starts = _clip(indices[..., component], highest)
        indices = indices.at[..., component].set(starts)
    return x, indices


def _clip(start: Array, highest: int) -> Array:
    return jnp.clip(start, 0, min(highest, int(jnp.iinfo(start.dtype).max)))


Made = Mapping[int, int]
"""The position of the instruction that computes each local."""
Readers = Mapping[int, Sequence[int]]
"""The positions of the instructions that read each local."""
AT_ONCE = 2
"""How many gathered copies may be alive at a time."""


def repeated_collectives(graph: Graph, block: Block) -> dict[int, tuple[int, ...]]:
    """Return the collectives of a block that repeat an earlier one, and the values they wait for.

    Returns:
      For the position of each repeated collective in the block, the local values that a barrier
      makes it wait for.
    """
    repeats = list(_equal_to_earlier(graph, block))
    if not repeats:
        return {}
    made = {result: at for at, one in enumerate(block.instructions) for result in one.results}
    readers = _readers(block)
    # All repeated gathers are in one phase, the backward pass. Only copies of this phase are freed
    # by barriers.
    phase = block.instructions[repeats[0]].phase
    # The positions of gathers whose copies later instructions may still read.
    open_copies = [
        at
        for at, one in enumerate(block.instructions)
        if isinstance(one.attributes, GATHERS) and one.phase == phase
    ]
    waits = {}
    for at in repeats:
        # AT_ONCE copies stay out of the barrier: one is gathered while the other one is used.
        before = open_copies[: max(0, bisect_left(open_copies, at) + 1 - AT_ONCE)]
        # A copy is done if all instructions that read it come before the repeated collective.
        last_reads = {
            copy: max(max(readers[v], default=-1) for v in block.instructions[copy].results)
            for copy in before
        }
        done = [copy for copy in before if last_reads[copy] < at]
        open_copies = [copy for copy in open_copies if copy not in done]
        # A copy is really done only when the values that are computed from it and are read later
        # exist. The compiler could run their instructions, and keep the copy, until then.
        made_from_copies = (
            local for copy in done for local in _values_made_from(block, copy, at, readers)
        )
        waits[at] = tuple(dict.fromkeys((*_value_to_wait_for(block, at, made), *made_from_copies)))
    return waits


def _readers(block: Block) -> Readers:
    """Return per local value the positions of the instructions that read it.

    A result of the block is read at the position after the last instruction.
    """
    positions: dict[int, list[int]] = defaultdict(list)
    for position, instruction in enumerate(block.instructions):
        # An instruction that reads a value twice is one reader.
        for operand in dict.fromkeys(instruction.operands):
            positions[operand].append(position)
    for result in block.results:
        positions[result].append(len(block.instructions))
    return positions


def _equal_to_earlier(graph: Graph, block: Block) -> Iterator[int]:
    """Yield the positions of the collectives that equal an earlier one, as XLA would merge them."""
    # XLA merges equal operators from the start of a chain on, so operands of equal chains are equal
    # too. `first` has, for each local, the first one that is equal to it.
    first: dict[int, int] = {}
    known: dict[object, tuple[int, ...]] = {}
    for position, instruction in enumerate(block.instructions):
        attributes, node = instruction.attributes, instruction.node
        # Collectives are equal if their attributes are; an operator's parameters are in its node.
        own = None
        if node is not None and isinstance(attributes, Operator):
            own = graph.nodes[node].signature
        key = attributes, own, tuple(first.get(local, local) for local in instruction.operands)
        earlier = known.setdefault(key, instruction.results)
        if earlier is instruction.results:
            continue
        if isinstance(attributes, Collective):
            yield position
        else:
            first.update(zip(instruction.results, earlier, strict=True))


def _value_to_wait_for(block: Block, position: int, made: Made) -> tuple[int, ...]:
    """Return (local,), the local for which a repeated collective should wait; () if there is none.

    A value may be gathered, freed and gathered again. A barrier makes the second gather wait for
    the returned local, so that no compiler runs it earlier. For example:

        w1 = all_gather(w)       the first gather
        g  = relu(y)             the last value that exists before the second gather
        w2 = all_gather(w)       the second gather: it waits for g
        h  = exp(g)
        r  = dot(h, w2)          its first consumer; the other operand h is computed from g

    Args:
      position: the position of the collective in the block.
      made: the position of the instruction that computes each local.
    """
    # The copy that the collective makes, and the values that are computed from it alone.
    copies = set(block.instructions[position].results)
    for instruction in block.instructions[position + 1 :]:
        if copies.isdisjoint(instruction.operands):
            continue
        candidates: set[int] = set()
        for other in set(instruction.operands) - copies:
            candidates.update(_nearest_existing_values(block, other, position, made))
        if candidates:
            # The one that is computed last.
            return (max(candidates, key=made.__getitem__),)
        # An operator without another operand, such as a transpose, has no operand to wait for. So
        # the consumers of its results are searched.
        copies |= set(instruction.results)
    return ()


def _nearest_existing_values(block: Block, local: int, position: int, made: Made) -> Iterator[int]:
    """Yield the nearest locals that a local is computed from and that exist before a position.

    If `local` itself is computed before the position, it is the only one. If it is computed later,
    its operands are searched. Arguments of the block are left out, and so is the result of the
    instruction at the position: it cannot wait for itself.

    Args:
      position: the number of an instruction in the block.
      made: the position of the instruction that computes each local.
    """
    at = made.get(local)
    if at is None or at == position:
        return
    # A value made after the gather cannot delay it; its own operands may.
    if at < position:
        yield local
        return
    for operand in block.instructions[at].operands:
        yield from _nearest_existing_values(block, operand, position, made)


def _values_made_from(block: Block, copy: int, end: int, readers: Readers) -> Iterator[int]:
    """Yield values that are computed from a gathered copy before `end` and read after `end`.

    When all of them exist, no instruction before `end` needs the copy any more. Values that are
    computed from a yielded value are not searched, because they are computed after it.

    Args:
      copy: the index of the gather in the block.
      end: the index of an instruction.
      readers: for each local value, the indices of the instructions that read it.
    """
    seen: set[int] = set()
    # The copy, and then the values before `end` that are computed from it.
    to_search = list(block.instructions[copy].results)
    while to_search:
        value = to_search.pop()
        if value in seen:
            continue
        seen.add(value)
        if any(at > end for at in readers[value]):
            yield value
        else:
            consumers = (block.instructions[at] for at in readers[value] if at < end)
            to_search += [result for consumer in consumers for result in consumer.results]


KERNEL = "pallas_call"
NO_MESH = jax.sharding.AbstractMesh((), (), axis_types=())
"""An empty mesh, under which JAX traces as if no mesh were set."""


def kernel_binding(
    graph: Graph, instruction: Instruction[Apply], binding: Binding, *, on_cpu: bool
) -> Binding:
    """Return the primitive of a kernel with the parameters that it has on a device.

    Each equation of a kernel keeps the mesh that was set where the function was traced. The lowered
    program runs on a mesh of its own, so that the copy here has none, as under `jax.jit`.

    Raises:
      LoweringError: a kernel that is not interpreted, on CPU devices.
    """
    primitive, params = binding
    if on_cpu and not params.get("interpret"):
        raise LoweringError(
            f"the pallas_call at {node_of(graph, instruction).source} cannot run on CPU devices: "
            "JAX compiles kernels for accelerators. Lower to accelerators, or write "
            "pl.pallas_call(..., interpret=True), which CPU devices run too."
        )
    return primitive, {name: _without_mesh(value, {}) for name, value in params.items()}


def _without_mesh(value: Any, known: dict[Any, Any]) -> Any:
    """Return a jaxpr whose equations and values name no mesh; anything else as it is.

    The function walks through lists, literals, variables, types and dataclasses, because a kernel's
    parameters have jaxprs inside of them. An unchanged value is returned itself.

    Args:
      known: the new variables of the jaxpr so far, by the variables that they replace.
    """
    core = jax.extend.core
    # A subclass, such as a named tuple, may have another constructor, so it is not rebuilt here.
    if type(value) in (tuple, list):
        items = [_without_mesh(inner, known) for inner in value]
        is_unchanged = all(new is old for new, old in zip(items, value, strict=True))
        return value if is_unchanged else type(value)(items)
    # jax 0.11 has one class for open and closed jaxprs, whose `jaxpr` is itself: avoid a loop.
    if isinstance(value, core.ClosedJaxpr) and value.jaxpr is not value:
        return value.replace(jaxpr=_without_mesh(value.jaxpr, known))
    if isinstance(value, core.Literal):
        return type(value)(np.asarray(value.val), _type_without_mesh(value.aval))
    # A variable occurs in several equations, which must all get the same new one.
    if isinstance(value, core.Var):
        if value not in known:
            known[value] = copy(value)
            known[value].aval = _type_without_mesh(value.aval)
        return known[value]
    if isinstance(value, jax.core.AbstractValue):
        return _type_without_mesh(value)
    if is_dataclass(value) and not isinstance(value, type):  # a kernel's block mapping has jaxprs
        old = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        new = {name: _without_mesh(inner, known) for name, inner in old.items()}
        return replace(value, **new) if any(new[name] is not old[name] for name in old) else value
    if not isinstance(value, core.Jaxpr):
        return value
    # A jaxpr: its variables are replaced first, then each equation loses its mesh (`ctx`).
    lists = ("constvars", "invars", "outvars")
    parts = {name: [_without_mesh(v, known) for v in getattr(value, name)] for name in lists}
    equations = [
        equation.replace(
            ctx=_no_context(),
            invars=[_without_mesh(v, known) for v in equation.invars],
            outvars=[_without_mesh(v, known) for v in equation.outvars],
            params={name: _without_mesh(v, known) for name, v in equation.params.items()},
        )
        for equation in value.eqns
    ]
    return value.replace(eqns=equations, **parts)


def _type_without_mesh(kind: Any) -> Any:
    """Return the type of a value, or of a reference's content, without a mesh in its sharding.

    Args:
      kind: an abstract value of JAX.
    """
    # A reference to memory has the type of its content inside.
    if hasattr(kind, "inner_aval"):
        return kind.update(inner_aval=_type_without_mesh(kind.inner_aval))
    if getattr(kind, "sharding", None) is None:
        return kind
    # JAX takes the mesh of a new type from its context, so the type is made without one.
    with jax.sharding.use_abstract_mesh(NO_MESH):
        return kind.update(sharding=jax.core.ShapedArray(kind.shape, kind.dtype).sharding)


@cache
def _no_context() -> Any:
    """Return the context that JAX stores in an equation traced while no mesh is set."""
    with jax.sharding.use_abstract_mesh(NO_MESH):
        return jax.make_jaxpr(lambda x: x + 1)(1.0).eqns[0].ctx
