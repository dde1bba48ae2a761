"""Bytes of weights and of activations, in memory and sent, and how they grow with the sizes.

`reused_arguments` finds the results that are written into the memory of donated arguments. XLA
pairs a donated argument with a result of the same block shape and item type. The memory of all
other donated arguments is taken until the program ends. So is the memory of an argument that
nothing reads, because JAX does not pass it to the compiled program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from shardalg.costs.collectives import is_collective, wire_bytes
from shardalg.costs.saved_activations import saved_values
from shardalg.costs.walk import local_bytes, sent_bytes, walk
from shardalg.graph.ir import Graph
from shardalg.sizes.formula import Formula, FormulaError
from shardalg.sizes.growth import Order, Shardings, order
from shardalg.spmd.program import SpmdProgram


def reused_arguments(program: SpmdProgram, donated: Sequence[int]) -> Mapping[int, int]:
    """Return, for each result, the donated argument in whose memory it is written.

    Keys and values are numbers of local values. Results without such an argument are left out.

    Args:
      donated: positions of the flattened arguments whose buffers the program may take over.
    """
    planned_locals, argument_of_result = program.locals, {}
    # XLA pairs results with arguments in order, each argument once. An argument that nothing reads
    # is no argument of the compiled program.
    block = program.block
    read_values = {v for one in block.instructions for v in one.operands} | set(block.results)
    free_arguments = [
        v for v in (block.arguments[position] for position in donated) if v in read_values
    ]
    for result in dict.fromkeys(program.block.results):
        target = planned_locals[result]
        for argument in free_arguments:
            # Memory can be taken over only by an array of the same type and shape.
            if (
                planned_locals[argument].dtype == target.dtype
                and planned_locals[argument].shape == target.shape
            ):
                free_arguments.remove(argument)
                argument_of_result[result] = argument
                break
    return argument_of_result


Bytes = Any
"""An int or Fraction for a program in numbers, a `Formula` for one in formulas."""
ACTIVATIONS = ("activation", "data")


@dataclass(frozen=True)
class Scaling:
    """Bytes of one device in one call of a program, as in Table 1 of the GSPMD paper.

    Attributes:
      weight_memory: bytes of the parameters.
      activation_memory: bytes of the activations that are kept from the forward to the backward
        pass (`costs.saved_activations`).
      weight_communication: bytes that a device sends of weights and their gradients, in the forward
        and backward pass.
      activation_communication: bytes that a device sends of activations.
      update_communication: bytes that the optimizer update sends; not in the paper's table.

    Source: GSPMD, arXiv:2105.04663, Table 1.
    """

    weight_memory: Bytes
    activation_memory: Bytes
    weight_communication: Bytes
    activation_communication: Bytes
    update_communication: Bytes

    def __sub__(self, other: Scaling) -> Scaling:
        """Return the differences of all quantities from those of another plan."""
        pairs = zip(self.values(), other.values(), strict=True)
        return Scaling(*(ours - theirs for ours, theirs in pairs))

    def __add__(self, other: Scaling) -> Scaling:
        """Return the sums of all quantities with those of another program."""
        pairs = zip(self.values(), other.values(), strict=True)
        return Scaling(*(ours + theirs for ours, theirs in pairs))

    def at(self, sizes: Mapping[str, int]) -> Scaling:
        """Return the quantities as numbers, given a value of each named size."""
        return Scaling(*(Formula.of(value).at(sizes) for value in self.values()))

    def per(self, name: str) -> Scaling:
        """Return, for each quantity, its coefficient of a named size.

        For a number of layers L, the coefficients are the bytes per layer.

        Raises:
          FormulaError: a quantity is not linear in the size.
        """
        return Scaling(*(coefficient(Formula.of(value), name) for value in self.values()))

    def orders(self, growing: Iterable[str], shardings: Shardings = ()) -> tuple[Order, ...]:
        """Return how each quantity grows with some named sizes, in O notation.

        Args:
          growing: names of the sizes that grow.
          shardings: pairs of a size and a mesh axis that shards it (see `sizes.growth.order`).
        """
        pairs, names = tuple(shardings), tuple(growing)
        return tuple(order(value, growing=names, shardings=pairs) for value in self.values())

    def values(self) -> tuple[Bytes, ...]:
        """Return the quantities in the order of the fields."""
        return tuple(getattr(self, name) for name in QUANTITIES)


QUANTITIES = tuple(field.name for field in fields(Scaling))


def scaling(
    program: SpmdProgram, graph: Graph, roles: Sequence[str], *, saved: Iterable[int] | None = None
) -> Scaling:
    """Return the bytes of weights and activations that one device keeps and sends in a call.

    Args:
      program: a program in numbers, or with formulas for its sizes (`costs.symbolic`).
      roles: role of each graph value (`graph.ops.roles.roles`).
      saved: local values that are kept for the backward pass; None computes them, which needs
        a program in numbers.
    """
    saved_locals = saved_values(program, graph) if saved is None else saved
    parameters = [v for v in program.block.arguments if _role(program, roles, v) == "parameters"]
    activations = [v for v in saved_locals if _role(program, roles, v) in ACTIVATIONS]
    # Bytes that collectives send, by the group of the moved value.
    weights_sent: Bytes = 0
    activations_sent: Bytes = 0
    update_sent: Bytes = 0
    for step in walk(program):
        attributes, instruction = step.instruction.attributes, step.instruction
        if is_collective(attributes):
            sent = wire_bytes(attributes, sent_bytes(program, instruction)) * step.count
            if instruction.phase == "update":
                update_sent += sent
            elif instruction.role in ACTIVATIONS:
                activations_sent += sent
            else:
                weights_sent += sent
    return Scaling(
        weight_memory=local_bytes(program, tuple(parameters)),
        activation_memory=local_bytes(program, tuple(activations)),
        weight_communication=weights_sent,
        activation_communication=activations_sent,
        update_communication=update_sent,
    )


def _role(program: SpmdProgram, roles: Sequence[str], value: int) -> str | None:
    """Return the role of a local value, such as "parameters"; None for an intermediate."""
    origin = program.locals[value].origin
    return None if origin is None else roles[origin]


def coefficient(formula: Formula, name: str) -> Formula:
    """Return the coefficient of a size in a formula that is linear in it.

    >>> from shardalg.sizes.formula import symbols
    >>> B, L, M = symbols("B L M")
    >>> coefficient(3 * L * M + L + B, "L")
    3*M + 1

    Raises:
      FormulaError: the formula is not linear in the size.
    """
    # A monomial is a set of (size, power), so the linear terms are those with (name, 1).
    linear: dict[Any, Any] = {}
    others: dict[Any, Any] = {}
    for monomial, number in formula.terms.items():
        (linear if (name, 1) in monomial else others)[monomial] = number
    part = Formula({monomial - {(name, 1)}: number for monomial, number in linear.items()})
    if name in Formula(others).names | part.names:
        raise FormulaError(f"{formula} is not linear in {name}: it has no coefficient of it.")
    return part
