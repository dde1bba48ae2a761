"""Replacement of the numbers in a planned program by formulas, so that its prices are formulas.

A program is planned at hints, one example number per named size. `symbolise` replaces local shapes,
trip counts and sizes of mesh axes in it by formulas in the names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from shardalg.algebra.digits import Digit, Digits, parts
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.costs.compute import local_rule, windows
from shardalg.costs.walk import walk
from shardalg.graph.ir import Graph
from shardalg.graph.ops.rule import Rule
from shardalg.pause import collection_paused
from shardalg.sizes.amounts import is_whole, multiple
from shardalg.sizes.facts import Assumed, Divides, Exactly, Size
from shardalg.sizes.formula import Formula, FormulaError, ceiling, has_formula
from shardalg.sizes.read_sympy import from_sympy
from shardalg.sizes.recorded import are_numbers
from shardalg.spmd.instruction import Along, Attributes, Block, Collective, Instruction
from shardalg.spmd.instructions import (
    Apply,
    Choose,
    Concatenate,
    Control,
    Dilate,
    DynamicSlice,
    Extract,
    HaloExchange,
    Insert,
    Loop,
    MaskAt,
    OwnerSelect,
    Regroup,
    Resize,
    Slice,
    SliceAt,
)
from shardalg.spmd.local import Local
from shardalg.spmd.program import SpmdProgram

if TYPE_CHECKING:
    import sympy

    from shardalg.sizes.symbolic.lift import Lifted

Shape = tuple[Any, ...]
"""Sizes of the dimensions: formulas, or plain ints."""


@dataclass(frozen=True, eq=False)
class Sizes:
    """Sizes of a graph's values and of a mesh's axes, as formulas in the named sizes.

    Attributes:
      dims: for each graph value, its global shape in elements.
      axes: for each mesh axis name, its number of devices.
      trips: for each region of the graph, its executions per call of the function.
      symbols: for each named size, the user's sympy symbol, used in formulas that users read.
      hints: for each named size, the number at which the program was planned.
    """

    dims: tuple[Shape, ...]
    axes: Mapping[str, Size]
    trips: Shape
    symbols: Mapping[str, sympy.Symbol] = field(default_factory=dict)
    hints: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(lifted: Lifted, axes: Mapping[str, sympy.Expr | int]) -> Sizes:
        """Return the sizes of a graph in formulas, on a mesh with the given axis sizes.

        Args:
          lifted: the graph's shapes and trip counts as sympy expressions.
          axes: size of each mesh axis: an integer or a sympy expression.

        Raises:
          SymbolError: a name has two different hints (example numbers).
        """
        from shardalg.algebra.dims import sizes_of

        shapes, trips, symbols = _read(lifted)
        axis_sizes = {name: _plain(from_sympy(size)) for name, size in axes.items()}
        symbolic_axes = (size for size in axes.values() if not isinstance(size, int))
        named_sizes = sizes_of([*symbols, *symbolic_axes])
        hints = {name: symbol.hint for name, symbol in named_sizes.items()}
        return Sizes(shapes, axis_sizes, trips, dict(named_sizes), hints)

    @cached_property
    def _shown(self) -> dict[Formula, sympy.Expr]:
        """Cache of `sympy`: the sympy expression of each formula so far."""
        return {}

    def sympy(self, formula: Size) -> sympy.Expr | int:
        """Return a formula as a sympy expression in the user's symbols; a number is unchanged."""
        if not has_formula((formula,)):
            return formula
        # A conversion to sympy is slow, and many prices have the same formula.
        made = Formula.of(formula)
        if made not in self._shown:
            self._shown[made] = made.sympy(symbols=self.symbols)
        return self._shown[made]


@lru_cache(maxsize=16)
def _read(lifted: Lifted) -> tuple[tuple[Shape, ...], Shape, tuple[sympy.Symbol, ...]]:
    """Return (shapes of all values, trip counts of all regions, sympy symbols in them).

    Shapes and trip counts are formulas or integers.
    """
    # Each distinct formula is converted once, because sympy is slow and shapes share their sizes.
    sizes = {size for shape in (*lifted.shapes, lifted.trip_counts) for size in shape}
    converted = {size: _plain(from_sympy(size)) for size in sizes}
    symbols = {symbol for size in sizes for symbol in getattr(size, "free_symbols", ())}
    shapes = tuple(tuple([converted[size] for size in shape]) for shape in lifted.shapes)
    return shapes, tuple(converted[size] for size in lifted.trip_counts), tuple(symbols)


@dataclass(frozen=True, eq=False)
class Symbolised:
    """A program that was planned at hints (a number per named size), and a copy in formulas.

    Attributes:
      graph: the graph that the program computes.
      sizes: the formulas of the graph's sizes and of the mesh axes.
      hints: the program in numbers.
      program: the program with formulas for local shapes, lengths of loops and the digits of
        collectives. Layouts, masks and slices keep their numbers, because no price reads them.
        The margins that an exchange cuts from a block are assumed not to grow with the block.
      conditions: statements about the named sizes that `program` assumes, such as "X divides B".
    """

    graph: Graph
    sizes: Sizes
    hints: SpmdProgram
    program: SpmdProgram
    conditions: tuple[Assumed, ...]

    @cached_property
    def devices(self) -> Size:
        """Number of devices of the mesh, a number or a formula."""
        return math.prod(self.sizes.axes.values())

    @cached_property
    def rows(self) -> dict[int, Rule]:
        """For each operator with a sliding window, its row of RULES on the planned local shapes.

        A key is the number of the operator's first result. Strides, dilations and padding are
        numbers.
        """
        rows_by_result, planned_locals = {}, self.hints.locals
        for step in walk(self.hints):
            instruction = step.instruction
            if type(instruction.attributes) is Apply and instruction.node is not None:
                signature = self.graph.nodes[instruction.node].signature
                if windows(signature):
                    shapes = tuple(
                        planned_locals[v].shape
                        for v in (*instruction.operands, *instruction.results)
                    )
                    row = local_rule(signature, shapes, instruction.attributes.params)
                    rows_by_result[instruction.results[0]] = row
        return rows_by_result


@collection_paused()
def symbolise(
    program: SpmdProgram,
    graph: Graph,
    sizes: Sizes,
    recorded: Callable[[], Sequence[tuple[Shape, Shape]] | None] = lambda: None,
) -> Symbolised:
    """Return a program that was planned in numbers, together with a copy in formulas.

    The numbers are the hints, one per named size. A block has `ceil(D / n)` elements along
    a dimension of global size D. D is the formula of the graph value's size, and n the product of
    the sizes of the axes that shard it. If n divides D at the hints, the block is `D / n` and "n
    divides D" becomes a condition. Padding before and after a collective on uneven blocks follows
    from the sizes of the blocks.

    Args:
      sizes: the formulas of the graph's sizes and of the mesh axes.
      recorded: returns the global and local shape of every local value, or None. They are found by
        a second planning, in which each size records how it is computed. It is called only if a
        block does not follow from its sharding, for example a slice that an exchange cuts from a
        block.

    Raises:
      FormulaError: a block does not follow from its sharding, and nothing is recorded.
    """
    work = _Symboliser(program, graph, sizes, cache(recorded))
    # Shapes of results follow from shapes of operands, so the values at the start come first.
    for local in (*program.block.arguments, *(local for local, _ in program.constants)):
        work.enter(local)
    block = work.block(program.block)
    priced_locals = tuple(
        replace(v, shape=work.shapes[v.index]) if v.index in work.shapes else v
        for v in program.locals
    )
    priced = replace(program, locals=priced_locals, block=block)
    return Symbolised(graph, sizes, program, priced, tuple(work.facts))


class _Symboliser:
    """Single walk over a program that computes global and local shapes in formulas.

    Its tables have an entry per local value: `wholes` has global shapes, `shapes` local shapes.
    `facts` collects the conditions, in order, as keys. `known`, `tiles` and `blocks` are caches.
    """

    def __init__(
        self,
        program: SpmdProgram,
        graph: Graph,
        sizes: Sizes,
        recorded: Callable[[], Sequence[tuple[Shape, Shape]] | None],
    ) -> None:
        """Start with the global shape of each local value that is a block of a graph value.

        Args:
          sizes: the formulas of the graph's sizes and of the mesh axes.
          recorded: returns the shapes of all local values as a second planning finds them, in which
            each size records how it is computed.
        """
        self.program, self.graph, self.sizes = program, graph, sizes
        self.recorded = recorded
        self.wholes: list[Shape] = [
            () if local.origin is None else sizes.dims[local.origin] for local in program.locals
        ]
        self.shapes: dict[int, Shape] = {}
        self.facts: dict[Assumed, None] = {}
        self.known: dict[Digits, Digits] = {}
        self.tiles: dict[tuple[Size, int, Digits], Size] = {}
        self.blocks: dict[tuple[Shape, Sharding], Shape] = {}

    def digits(self, digits: Digits) -> Digits:
        """Return digits of device positions with formulas for the sizes of their axes.

        An axis of which only a part is used must keep its number; this becomes a condition.
        """
        # Many collectives have equal digits; the condition is recorded with the first one.
        if digits not in self.known:
            mesh, axes = self.program.mesh, self.sizes.axes
            self.known[digits] = formula_digits(mesh, axes, digits)
            for ref in (ref for digit in digits for ref in mesh.axis_refs(digit)):
                axis = axes[ref.name]
                # A part of an axis has a size in numbers, so the whole axis must keep its size too.
                if ref.size is not None and has_formula((axis,)):
                    self.facts[Exactly(Formula.of(axis), mesh.digit(ref.name).size)] = None
        return self.known[digits]

    def enter(self, index: int) -> None:
        """Compute the local shape of a value that exists before a block's first instruction."""
        self.shapes[index] = self.plain(self.program.locals[index])

    def block(self, block: Block) -> Block:
        """Return a block with formulas, and compute the shapes of its values on the way.

        The shapes of its arguments must be known.
        """
        rewritten = []
        next_instructions = (*block.instructions, None)[1:]
        for instruction, after in zip(block.instructions, next_instructions, strict=True):
            attributes = self.attributes(instruction)
            for position, result in enumerate(instruction.results):
                try:
                    # A block of a graph value has its global shape from the start; any other value
                    # gets it here.
                    if self.program.locals[result].origin is None:
                        self.wholes[result] = self.whole(instruction, position)
                    self.shapes[result] = self.shape(instruction, result, after)
                    if not self.is_right(result):
                        raise FormulaError(self.unknown(instruction, [*self.shapes[result]]))
                # The sharding alone does not give the size, or gives another one at the hints.
                # A second planning, which records how each size is computed, may give it.
                except FormulaError:
                    recorded_shapes = self.recorded()
                    if recorded_shapes is None:
                        raise
                    self.wholes[result], self.shapes[result] = recorded_shapes[result]
            # Unchanged instructions stay the same objects, so that nothing is copied for them.
            same = attributes is instruction.attributes
            rewritten.append(instruction if same else replace(instruction, attributes=attributes))
        return replace(block, instructions=tuple(rewritten))

    def is_right(self, result: int) -> bool:
        """Return whether the formulas of a result's local shape give its planned shape in numbers.

        They are evaluated at the hints, the sizes for which the program was planned.
        """
        # The program was planned at the hints, so its numbers are exact there.
        pairs = zip(self.shapes[result], self.program.locals[result].shape, strict=False)
        return all(Formula.of(size).at(self.sizes.hints) == planned for size, planned in pairs)

    def attributes(self, instruction: Instruction) -> Attributes:
        """Return an instruction's attributes with formulas in the fields that prices read.

        These are the trip counts of loops and the digits of collectives. Other attributes are
        unchanged.
        """
        attributes = instruction.attributes
        if isinstance(attributes, Control):
            # The bodies of a loop or a branch are rewritten first, with the same rules.
            inside = attributes.with_bodies([self.inside(b) for b in attributes.bodies])
            if isinstance(inside, Loop):
                return replace(inside, length=self.length(inside, instruction.node))
            return inside
        if isinstance(attributes, Collective):
            return attributes.with_digits(self.digits)
        return attributes

    def inside(self, block: Block) -> Block:
        """Return the body of a loop or branch with formulas."""
        for argument in block.arguments:
            self.enter(argument)
        return self.block(block)

    def length(self, loop: Loop, node: int | None) -> Any:
        """Return the trip count of a loop, as a formula or a number.

        Args:
          node: the loop's graph node; None for a loop that the planner added.
        """
        if node is None:
            return loop.length
        region = self.graph.regions[self.graph.nodes[node].bodies[0]]
        # Trips count executions per call of the function, so the outer ones are divided out.
        outer = self.sizes.trips[region.parent or 0]
        return _plain(share(self.sizes.trips[region.index], outer))

    def whole(self, instruction: Instruction, position: int) -> Shape:
        """Return the global shape of a local value that stands between steps of one operator.

        Such a value is a block of no graph value. The result of an operator has the shape of the
        node's result. Any other instruction keeps the global shape of its first operand; a
        `Regroup` reshapes it.

        Args:
          position: number of the value among the instruction's results.
        """
        if isinstance(instruction.attributes, OPERATORS) and instruction.node is not None:
            return self.sizes.dims[self.graph.nodes[instruction.node].results[position]]
        before, attributes = self.wholes[instruction.operands[0]], instruction.attributes
        if isinstance(attributes, Regroup):
            return self.shape_after_regroup(instruction, attributes, before, attributes.sizes)
        return before

    def shape_after_regroup(
        self, instruction: Instruction, regroup: Regroup, before: Shape, numbers: tuple[int, ...]
    ) -> Shape:
        """Return the shape after a reshape, in formulas.

        A dimension that the reshape does not change keeps its formula; all others must be numbers.

        Args:
          before: the shape before the reshape.
          numbers: the shape after the reshape, in numbers, as planned.

        Raises:
          FormulaError: a dimension that is split or merged has a formula.
        """
        found: list[Any] = []
        for count, sizes in regroup.groups:
            group, before = before[:count], before[count:]
            if not are_numbers(group) and (count, len(sizes)) != (1, 1):
                raise FormulaError(self.unknown(instruction, list(group)))
            # A group of one dimension before and after the reshape is that dimension, unchanged.
            stays = (count, len(sizes)) == (1, 1)
            found += group if stays else numbers[len(found) : len(found) + len(sizes)]
        return tuple(found)

    def shape(self, instruction: Instruction, result: int, after: Instruction | None) -> Shape:
        """Return the local shape of an instruction's result in formulas.

        Each dimension is the block that its sharding gives, or longer by padding. The padded length
        then follows from the operand's shape.

        Args:
          result: the number of the local value.
          after: the next instruction of the block. A `Resize` pads so that this instruction can
            divide.

        Raises:
          FormulaError: the shape does not follow from the sharding and the operand.
        """
        local, attributes = self.program.locals[result], instruction.attributes
        blocks = local.sharding.shard_shape
        operand_shape = self.shapes.get(instruction.operands[0], ()) if instruction.operands else ()
        # A `Resize` pads or cuts one dimension, and a `Regroup` reshapes: each has a rule of its
        # own.
        if isinstance(attributes, Resize):
            return self.shape_after_resize(local, attributes.dim, operand_shape, after)
        if isinstance(attributes, Regroup):
            return self.shape_after_regroup(instruction, attributes, operand_shape, local.shape)
        # Without padding the shape is the block that the sharding gives.
        if local.shape == blocks:
            return self.plain(local)
        if isinstance(attributes, EXCHANGED):
            return self.shape_after_exchange(instruction, attributes, local)
        # Padding has made some dimensions larger than the block. These are None here, and follow
        # from the operand's shape.
        known_sizes = self.tiled(local, [i for i, n in enumerate(local.shape) if n == blocks[i]])
        if isinstance(attributes, Collective):
            # An all-gather of an uneven dimension keeps the padding of every block.
            count = math.prod(d.size for d in self.digits(attributes.digits))
            return tuple(
                n if n is not None else operand_shape[i] * count for i, n in enumerate(known_sizes)
            )
        # An operator on a padded value has a result with the same padding.
        planned_operand = self.program.locals[instruction.operands[0]].shape
        if len(planned_operand) != len(known_sizes) or any(
            n is None and planned_operand[i] != local.shape[i] for i, n in enumerate(known_sizes)
        ):
            raise FormulaError(self.unknown(instruction, list(self.wholes[result])))
        return tuple(operand_shape[i] if n is None else n for i, n in enumerate(known_sizes))

    def shape_after_exchange(
        self, instruction: Instruction, attributes: Along, local: Local
    ) -> Shape:
        """Return the local shape of the result of one step of an exchange of blocks.

        The result has the shape of the first operand, except for the dimension `attributes.dim`.
        Its length is a sum for a concatenation. A cut (a slice or a padding) has a length that the
        planner chose as a number: `cut_length` turns it into a formula.

        Args:
          local: the result, with its planned shape.
        """
        # Only in a concatenation, further operands are blocks. Elsewhere they are fill values.
        given = instruction.operands[: None if type(attributes) is Concatenate else 1]
        shape = list(self.shapes[given[0]])
        sizes = [self.shapes[g][attributes.dim] for g in given]
        length = sum(sizes) if type(attributes) is Concatenate else sizes[0]
        # The planned length: a cut, or the one element that an owner selects.
        if isinstance(attributes, (*CUT, OwnerSelect)):
            length = local.shape[attributes.dim]
        # If the block has a named size, the cut may grow with it. So `cut_length` compares the
        # planned lengths before and after.
        if isinstance(attributes, CUT) and not are_numbers(sizes[:1]):
            before = self.program.locals[given[0]].shape[attributes.dim]
            is_sent = local.index in self.sent
            length = self.cut_length(instruction, (sizes[0], before), length, is_sent=is_sent)
        shape[attributes.dim] = _plain(Formula.of(length))
        return tuple(shape)

    @cached_property
    def sent(self) -> frozenset[int]:
        """The local values that some collective or exchange reads."""
        instructions = (step.instruction for step in walk(self.program))
        return frozenset(
            operand
            for instruction in instructions
            if isinstance(instruction.attributes, Collective | HaloExchange)
            for operand in instruction.operands
        )

    def cut_length(
        self, instruction: Instruction, size: tuple[Size, int], length: int, *, is_sent: bool
    ) -> Size:
        """Return the number of elements that are cut from a block, in formulas.

        It is a margin at the border of the block, or everything except a margin. A margin is
        assumed not to grow with the block. The planned numbers alone cannot show this, so
        `planner.guards` compares prices at other sizes.

        Args:
          size: the block's size, as a formula and as the planned number.
          length: the number of elements that are cut, as planned.
          is_sent: whether the cut is sent to other devices.

        Raises:
          FormulaError: the cut has steps between its elements (`Dilate`).
        """
        block, before = size
        if isinstance(instruction.attributes, Dilate):
            raise FormulaError(self.unknown(instruction, [block]))
        # A cut of less than half of the block is a margin of constant size; of a longer cut, the
        # rest of the block is the margin. Of two halves, the margin is the one that is sent.
        is_margin = is_sent if 2 * length == before else 2 * length < before
        return length if is_margin else block - (before - length)

    def unknown(self, instruction: Instruction, sizes: list[Size]) -> str:
        """Return the error text for an instruction whose result has no size in formulas.

        Args:
          sizes: the sizes of the result as far as they are known; the text has the first one.
        """
        node = None if instruction.node is None else self.graph.nodes[instruction.node]
        where = "a move" if node is None else f"{node.primitive} at {node.source}"
        return (
            f"{where} reads a sharded dimension of {sizes[0]} elements per device through a "
            "window: what a device fetches of it has no formula in named sizes. Give this "
            "dimension, and the axes that split it, as numbers; or ask plan.at(...) for numbers."
        )

    def shape_after_resize(
        self, local: Local, dim: int, before: Shape, after: Instruction | None
    ) -> Shape:
        """Return the shape, in formulas, of a value after a slice or a padding of one dimension.

        If the value has its block's size along `dim`, the dimension was cut to the block. Otherwise
        it was padded, so that the collective or slice `after` can divide it.

        Args:
          local: the value after the step.
          before: the shape before the step, of which the other dimensions stay.
        """
        shape = list(before)
        if local.shape[dim] == local.sharding.shard_shape[dim]:
            shape[dim] = self.tiled(local, [dim])[dim]
            return tuple(shape)
        assert after is not None and isinstance(after.attributes, Collective | DynamicSlice), (
            "what is padded is padded for the move after it"
        )
        # `after` divides the padded dimension into equal blocks. The padded size is therefore the
        # block of its result, times the number of devices along the digits of `after`.
        cut = self.program.locals[after.results[0]].sharding
        block = self.tile(self.wholes[local.index][dim], cut.shape[dim], cut.dims[dim])
        shape[dim] = block * math.prod(d.size for d in self.digits(after.attributes.digits))
        return tuple(shape)

    def plain(self, local: Local) -> Shape:
        """Return the shape of a local value's block in formulas, without padding beyond it."""
        key = self.wholes[local.index], local.sharding
        if key not in self.blocks:
            self.blocks[key] = self.tiled(local, range(len(local.shape)))
        return self.blocks[key]

    def tiled(self, local: Local, dims: Sequence[int]) -> Shape:
        """Return a local value's block size along some dimensions, and None along the others."""
        whole, sharding = self.wholes[local.index], local.sharding
        found: list[Size | None] = [None] * len(whole)
        for dim in dims:
            found[dim] = self.tile(whole[dim], sharding.shape[dim], sharding.dims[dim])
        return tuple(found)

    def tile(self, size: Size, hint: int, digits: Digits) -> Size:
        """Return the block size `ceil(size / n)`, where n is the number of shards along `digits`.

        If n divides the planned size, the block is `size / n`, and this becomes a condition.

        Args:
          hint: the size in numbers, for which the program was planned.
        """
        if not digits:
            return size
        key = (size, hint, digits)
        if key not in self.tiles:
            count = math.prod(d.size for d in self.digits(digits))
            divides = hint % parts(digits) == 0
            ratio = Formula.of(size) / count
            # A ratio that is whole by its form needs no condition.
            if not is_whole(ratio):
                self.facts[Divides(size, count, divides)] = None
            self.tiles[key] = _plain(ratio if divides else ceiling(ratio))
        return self.tiles[key]


OPERATORS = (Apply, Extract, Insert)
"""Instructions that compute a result of their graph node, so that both have one global shape."""
CUT = (Slice, SliceAt, Dilate)
"""Instructions that cut a part from a block; the size of the part is known only in numbers."""
EXCHANGED = (*CUT, OwnerSelect, HaloExchange, MaskAt, Choose, Concatenate)
"""Steps of an exchange of blocks, whose results need not have the shape of a block."""


def formula_digits(mesh: Mesh, axes: Mapping[str, Size], digits: Digits) -> Digits:
    """Return digits of device positions in which the size of each axis is its formula.

    A digit that spans several axes is split into one digit per axis. A part of an axis keeps its
    number.

    Args:
      axes: the size of each axis, a formula or a number.

    >>> from shardalg.sizes.formula import symbol
    >>> mesh = Mesh({"X": 2, "Y": 4})
    >>> formula_digits(mesh, {"X": symbol("X"), "Y": 4}, (Digit(1, 8),))
    (Digit(stride=4, size=X), Digit(stride=1, size=4))
    """
    split_digits = []
    for digit in digits:
        below = digit.size
        for ref in mesh.axis_refs(digit):
            axis = mesh.digit(ref.name)
            # `below` is the number of positions in the parts after this one, which is the stride of
            # the part.
            below //= ref.size or axis.size
            size: Any = axes[ref.name] if ref.size is None else ref.size
            split_digits.append(Digit(digit.stride * below, size))
    return tuple(split_digits)


def share(total: Size, count: Size) -> Size:
    """Return the exact quotient `total / count`; `count` may be a sum of terms.

    >>> from shardalg.sizes.formula import symbols
    >>> L, S = symbols("L S")
    >>> share(L * S + 2 * L, S + 2), share(6, 2)
    (L, 3)

    Raises:
      FormulaError: `total` is not a product times `count`.
    """
    if count == 1:
        return total
    total, count = Formula.of(total), Formula.of(count)
    found = multiple(total, count)
    return total / count if found is None else found


def _plain(formula: Size) -> Any:
    """Return the number of a constant formula, and any other formula unchanged."""
    number = Formula.of(formula).number
    return formula if number is None else number
