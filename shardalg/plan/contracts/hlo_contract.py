"""Contracts about XLA's own program: statements that are checked on HLO text.

Only what the text says is decided. Kinds, mesh axes, executions and bytes of collectives are read
from it; phases and modules from JAX's names, as far as it has them. Statements about memory, time,
arguments and roles are not decided.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from shardalg.algebra.mesh import Mesh
from shardalg.errors import ContractError, NotationError
from shardalg.graph.ir import SHORT, ValueType
from shardalg.lower.xla_dump.hlo_collectives import HloCollective, collectives
from shardalg.lower.xla_dump.hlo_text import HloModule, Leaf, parse
from shardalg.plan.contracts.bound_formulas import formula_of
from shardalg.plan.contracts.inequalities import Claims, amounts_of, none_of, some_of
from shardalg.plan.contracts.sent_rows import KINDS, PHASES, ROLES, SentRow, check_word
from shardalg.plan.contracts.statements import (
    OF_COLLECTIVES,
    AtMost,
    NoCollective,
    SomeCollective,
    Statement,
)
from shardalg.sizes.formula import Formula

if TYPE_CHECKING:
    from shardalg.plan.plan import Plan

_DEVICES = re.compile(r"\b(num_partitions|replica_count)=(\d+)")
_MARKERS = ("Sharding", "SPMDFullToShardShape", "xla.sdy.FuncResultSharding")
"""Custom calls that partitioning removes."""
_KEEP_SHARDINGS = (
    "parameter", "copy", "copy-start", "copy-done", "bitcast", "transpose", "reshape", "fusion",
    "tuple", "get-tuple-element",
)  # fmt: skip
"""Operators that keep a sharding in a partitioned program: parameters, and their copies."""
_WRAPPED = re.compile(r"^(?:jit|jvp|transpose|vmap|checkpoint|remat|pjit|shard_map)\((.*)\)$")


def hlo_rows(text: str, mesh: Mesh) -> tuple[SentRow, ...]:
    """Return the collectives of a partitioned program in HLO.

    Args:
      text: of `compiled.as_text()`, or of a dump after partitioning, for CPU, GPU or TPU.
      mesh: the mesh, which names the axes of the groups.

    Raises:
      ContractError: text that is cut short, is not partitioned yet, or is for another number of
        devices.
    """
    if not isinstance(text, str):
        raise ContractError(f"HLO text is {text!r:.60}: give compiled.as_text(), or a dump.")
    if not text.strip() or "\0" in text:
        what = "no text" if text.strip() else "empty"
        raise ContractError(f"the HLO text is {what}: give compiled.as_text(), or a dump.")
    # The user gave the text for a contract, so a fault in it is an error of the contract.
    try:
        module = parse(text)
        _check_whole(text, module, mesh)
        hlo_collectives = collectives(text, mesh, is_final=True)
    except NotationError as error:
        raise ContractError(str(error)) from None
    return tuple(_row(one) for one in hlo_collectives)


def check_border(text: str, plan: Plan) -> None:
    """Check that a program in HLO has the arguments and results of a plan's function.

    A device has a block of each argument, whose sharding XLA may have chosen. Arguments that
    `jax.jit` leaves out, because nothing reads them, may be missing.

    Raises:
      ContractError: the program is of another function.
    """
    module = parse(text)
    entry = module.computations[module.entry]
    parameters = sorted(
        (one for one in entry.values() if one.opcode == "parameter"),
        key=lambda one: int(one.literal),
    )
    # A parameter that is a tuple has a leaf per array.
    blocks = [leaf for one in parameters for leaf in one.leaves]
    kinds = [plan.graph.values[value].type for value in plan.graph.arguments]
    rest = iter(kinds)
    # Parameters have the order of the arguments, so that each is looked for after the one before:
    # the iterator goes on where the last search ended.
    missing = [block for block in blocks if not any(_is_block(block, kind, plan) for kind in rest)]
    results = module.roots[module.entry].leaves
    result_kinds = [plan.graph.values[value].type for value in plan.graph.results]
    fits = len(results) == len(result_kinds) and all(
        _is_block(block, kind, plan) for block, kind in zip(results, result_kinds, strict=True)
    )
    if missing or not fits:
        what = f"parameter {missing[0]}" if missing else f"results {results}"
        raise ContractError(
            f"the HLO text is of another function: its {what} is no block of the contract's "
            f"function ({', '.join(map(repr, kinds))} -> {', '.join(map(repr, result_kinds))})."
        )


def _is_block(block: Leaf, kind: ValueType, plan: Plan) -> bool:
    """Return whether an array of HLO may be a device's block of a tensor.

    It has the tensor's type and number of dimensions. Each dimension has at least a block along
    all devices, and at most the whole. E.g. 10 elements on 4 devices -> 3 to 10.
    """
    name, shape = block
    return (
        name == SHORT.get(kind.dtype, kind.dtype)
        and len(shape) == len(kind.shape)
        and all(
            -(-whole // plan.mesh.size) <= size <= whole
            for size, whole in zip(shape, kind.shape, strict=True)
        )
    )


def _check_whole(text: str, module: HloModule, mesh: Mesh) -> None:
    """Check that a program in HLO is whole, partitioned, and for the devices of the mesh.

    A program without some of its collectives would fulfil every statement that there are none.

    Raises:
      ContractError: the text is cut short, is from before partitioning, or is for another number of
        devices.
    """
    # A computation without a root is not whole, and one that is called must be in the text.
    unfinished = [name for name in module.computations if name not in module.roots]
    called = {
        name
        for computation in module.computations.values()
        for instruction in computation.values()
        for key in ("calls", "to_apply", "body", "condition")
        if (name := instruction.attributes.get(key, "").lstrip("%"))
    }
    lost = [name for name in called if name not in module.computations]
    if unfinished or lost or not text.rstrip().endswith("}"):
        where = (unfinished or lost or [module.entry])[0]
        raise ContractError(
            f"the HLO text is cut short: computation {where!r} is not whole. Pass the whole of "
            "compiled.as_text(), or of a dump."
        )
    # Partitioning removes shardings, except those of parameters, of their copies, and of the root.
    for computation in module.computations.values():
        for instruction in computation.values():
            target = instruction.attributes.get("custom_call_target", "").strip('"')
            is_annotated = "sharding" in instruction.attributes and (
                instruction.opcode not in _KEEP_SHARDINGS
                or instruction is module.roots[module.entry]
            )
            if target in _MARKERS or is_annotated:
                raise ContractError(
                    f"the HLO text is not partitioned yet: {instruction.name} has a sharding. Pass "
                    "compiled.as_text(), or a dump after partitioning."
                )
    if not text.lstrip().startswith("HloModule"):
        raise ContractError("the HLO text is cut short: its first line, HloModule ..., is missing.")
    # The first line has the numbers of replicas and of partitions; devices are their product.
    devices = 1
    for _, number in _DEVICES.findall(text.partition("\n")[0]):
        devices *= int(number)
    if devices != mesh.size:
        raise ContractError(
            f"the HLO text is for {devices} devices, and {mesh!r} has {mesh.size}: give the mesh "
            "that the program was compiled for."
        )


def _row(one: HloCollective) -> SentRow:
    """Return a collective of HLO as a row that statements can be checked on.

    Properties that the text does not have, such as the role of a value, are None.
    """
    path = one.op_name
    # JAX's name of an operation says how it was differentiated.
    phase = "backward" if "transpose(" in path else "forward" if "jvp(" in path else None
    scopes = _scopes(path)
    return SentRow(
        one.kind,
        # "?" is a group that is no mesh axis. A sub-axis, such as "X:(1)2", counts as its axis.
        axes=None if "?" in one.axes else frozenset(a.partition(":")[0] for a in one.axes),
        executions=Formula.of(one.count),
        bytes=Formula.of(_whole(one.wire_bytes)),
        role=None,
        phase=phase,
        module="/".join(scopes) or None,
        region=None,
        number=None,
        at=path or "an operation without a name",
        is_exact=one.exact,
    )


def _whole(amount: int | float) -> int:
    """Return bytes rounded up, so that a bound is never met by rounding."""
    return -int(-amount // 1)


def _scopes(path: str) -> list[str]:
    """Return the named scopes in JAX's name of an operation.

    >>> _scopes("jit(step)/transpose(jvp(layers_0))/mlp/dot_general")
    ['layers_0', 'mlp']
    """
    found = []
    # The first step is the function, and the last one is the operator.
    for step in path.split("/")[1:-1]:
        while match := _WRAPPED.match(step):
            step = match[1]
        if step and not step.endswith(")"):
            found.append(step)
    return found


def hlo_claims(
    statement: Statement, rows: tuple[SentRow, ...], mesh: Mesh, sizes: Mapping[str, int]
) -> Claims:
    """Return the inequalities of a statement about XLA's program.

    Args:
      rows: the collectives of the program.
      sizes: the numbers of the names in bounds; mesh axes have their sizes.

    Raises:
      ContractError: the statement names an unknown kind, axis, phase or role.
    """
    if not isinstance(statement, NoCollective | SomeCollective | AtMost):
        return Claims((), f"HLO text does not decide this: {statement}")
    if isinstance(statement, AtMost) and statement.measure not in OF_COLLECTIVES:
        return Claims((), f"HLO text has no {statement.measure}")
    subject = statement.subject
    check_word("kind", subject.kind, KINDS)
    check_word("axis", subject.axis, mesh.axis_names)
    check_word("phase", subject.phase, PHASES)
    check_word("role", subject.role, ROLES)
    if isinstance(statement, NoCollective):
        return none_of(subject, rows)
    if isinstance(statement, SomeCollective):
        return some_of(subject, rows)
    point = {**mesh.shape, **sizes}
    claims = amounts_of(statement, rows, formula_of(statement.bound, point).subs(point))
    # Rows that belong to the subject, or may belong to it (None).
    loops = [row for row in rows if not row.is_exact and row.is_of(subject) is not False]
    if statement.measure != "executions" and any(
        row.kind == "all_reduce" and row.is_of(subject) is not False for row in rows
    ):
        more = "; an all-reduce counts whole, also where devices read only a block of it"
        claims = replace(claims, claims=tuple(replace(c, at=c.at + more) for c in claims.claims))
    # A loop of unknown length counts once, so that the amount is a lower bound.
    if loops and statement.measure != "largest_bytes":
        return replace(claims, unknown=f"a loop of unknown length has {loops[0].at}")
    return claims
