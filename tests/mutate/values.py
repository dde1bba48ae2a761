"""Replacement values, chosen by type and by values at similar places."""

from contextlib import suppress
from dataclasses import replace

from shardalg.algebra.digits import Digit
from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ShardingError
from shardalg.graph.ir import ITEM_SIZES
from shardalg.graph.ops.rule import COMBINES
from shardalg.spmd.instruction import Instruction

WORDS = (tuple(ITEM_SIZES), (*COMBINES, "argmax", "argmin"), ("CLIP", "FILL_OR_DROP"))
"""Vocabularies: a word is exchanged for another of its own."""
NOTHING = (0, 1, -1, True, 1.0, "sum", (), (0, 1), ((0, 1),))
"""What may stand where there was None."""
INDICES = {"Instruction.operands", "Instruction.results", "Block.arguments", "Block.results"}


class Other:
    """Draws values that differ from a given one.

    Attributes:
      program: whose values these are.
      pool: kind of place to all values that stand at such places in the program.
    """

    def __init__(self, rng, program, pool):
        self.rng, self.program, self.pool = rng, program, pool

    def value(self, place, old):
        """Another value for the place; None if none was found."""
        makers = [self.pooled, self.of_type] if place.direct else [self.of_type, self.pooled]
        if self.rng.random() < 0.5:
            makers.reverse()
        for make in makers:
            for _ in range(4):
                new = old
                with suppress(ShardingError):  # no such layout
                    new = make(place, old)
                if not _same(new, old):
                    return new
        return None

    def pooled(self, place, old):
        """Return the value at another similar place."""
        return self.rng.choice(self.pool.get(place.kind, [old]))

    def of_type(self, place, old):
        """Return a replacement by the value's type."""
        if place.kind in INDICES and isinstance(old, int):
            return self.local(old)
        for kind, make in _MAKERS:
            if isinstance(old, kind):
                return make(self, place, old)
        return old

    def local(self, old):
        """Another local: mostly one of the same shape and type."""
        locals_ = self.program.locals
        mine = locals_[old]
        alike = [x.index for x in locals_ if (x.shape, x.dtype) == (mine.shape, mine.dtype)]
        return self.rng.choice(alike if self.rng.random() < 0.8 else range(len(locals_)))

    def digits(self, place, old):
        """Other digits of the mesh: reversed, one less, one more, another axis, in two."""
        axes = [self.program.mesh.digit(name) for name in self.program.mesh.axis_names]
        return self.rng.choice(
            [old[::-1], old[1:], old[:-1], (), *((axis,) for axis in axes),
             *((*old, axis) for axis in axes), *((axis, *old) for axis in axes), tuple(axes),
             *((axis, *old[1:]) for axis in axes), _halved(old)]
        )  # fmt: skip

    def items(self, place, old):
        """Return a tuple with an item removed, doubled or exchanged, or reversed."""
        if place.hint == "Digits" or (old and all(isinstance(item, Digit) for item in old)):
            return self.digits(place, old)
        if not old:
            return self.pooled(place, old) or self.rng.choice(NOTHING[5:])
        first, second = self.rng.randrange(len(old)), self.rng.randrange(len(old))
        exchanged = list(old)
        exchanged[first], exchanged[second] = old[second], old[first]
        less, more = (*old[:first], *old[first + 1 :]), (*old[:first], old[first], *old[first:])
        return self.rng.choice([less, more, tuple(exchanged), tuple(exchanged), old[::-1]])

    def number(self, place, old):
        """One off, negated, twice as much, nothing."""
        return self.rng.choice([old + 1, old - 1, old + 1, old - 1, 0, -old, 2 * old, old // 2, 1])

    def word(self, place, old):
        """Another word of its vocabulary."""
        known = next((words for words in WORDS if old in words), None)
        return self.rng.choice(known) if known else f"{old}'"

    def sharding(self, place, old):
        """Another layout of the same shape, with other partial sums at times."""
        dims, k = list(old.dims), self.rng.randrange(2)
        if dims and k:
            self.rng.shuffle(dims)
        elif dims:
            where = self.rng.randrange(len(dims))
            dims[where] = self.digits(place, dims[where])
        unreduced = old.unreduced if self.rng.random() < 0.7 else self.digits(place, old.unreduced)
        return replace(old, dims=tuple(dims), unreduced=unreduced)

    def mesh(self, place, old):
        """Other sizes, other names, another order of devices."""
        names, sizes = old.axis_names, [size for _, size in old.axes]
        ids = list(old.device_ids or range(old.size))
        self.rng.shuffle(ids)
        return self.rng.choice(
            [Mesh(dict(zip(names, sizes[::-1], strict=True)), old.device_ids),
             Mesh(dict(zip(names[::-1], sizes, strict=True)), old.device_ids), Mesh(old.axes, ids)]
        )  # fmt: skip

    def instruction(self, place, old):
        """Return the attributes of another instruction, or of another node."""
        attributes, node = self.pool["Instruction.attributes"], self.pool["Instruction.node"]
        if self.rng.random() < 0.5:
            return replace(old, attributes=self.rng.choice(attributes))
        return replace(old, node=self.rng.choice(node))


def _halved(digits):
    """Return the minor half of the first digit that has one."""
    for k, digit in enumerate(digits):
        if digit.size > 2 and digit.size % 2 == 0:
            return (*digits[:k], Digit(digit.stride, digit.size // 2), *digits[k + 1 :])
    return ()


def _same(first, second):
    return type(first) is type(second) and first == second


_MAKERS = (
    (bool, lambda self, place, old: not old),
    (int, Other.number),
    (float, lambda self, place, old: self.rng.choice([0.0, -old, old + 1, float("inf")])),
    (str, Other.word),
    (type(None), lambda self, place, old: self.rng.choice(NOTHING)),
    (
        Digit,
        lambda self, place, old: (*self.digits(place, (old,)), old)[0],
    ),
    (tuple, Other.items),
    (Sharding, Other.sharding),
    (Mesh, Other.mesh),
    (Instruction, Other.instruction),
)
