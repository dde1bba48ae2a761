"""Named merges, refusals, refinements and equalities: one table of data, each proved for all sizes.

A line is `name: operand ; operand ... -> answer`. An operand has one word per dimension: `_`, or
axes joined by dots, major first; `x:1:2` is the sub-axis x:(1)2; `?` at the end leaves it open.
After a bar stand the unreduced, manual and replicated axes (`U=z M=m R=w`). The answer of a merge
is its sharding, or `!kind place ...`; of `<=` (refines) and `==` (equal) it is `yes` or the
refusal. A name that begins with `shardy` takes that policy. All operands are on `MESH`.
"""

from dataclasses import dataclass

from shardalg.algebra.mesh import AxisRef, Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.merge.compatible import equal, merge, refines

SIZES = {"x": 4, "y": 3, "z": 2, "w": 2, "v": 3}
MESH = Mesh(SIZES)
DIM = 288

TABLE = """
# GSPMD (arXiv:2105.04663), 3.5: merging data and model parallelism, and completing partial layouts
data and model parallelism on a matrix:     x _ ; _ y -> x y
the same from the other side:               _ y ; x _ -> x y
replicated merges with anything:            _ _ ; x y -> x y
a sharding with itself:                     x y ; x y -> x y
a partial tiling is refined:                x _ ; x y -> x y
a refinement absorbs what it refines:       x y ; _ y -> x y
three dimensions, two annotations:          x _ _ ; _ _ y -> x _ y
three dimensions, one shared:               x y _ ; _ y z -> x y z
four dimensions from two halves:            x _ z _ ; _ y _ w -> x y z w
the same axis on two dimensions:            x _ ; _ x -> !overlap 0 1
two axes on one dimension:                  x _ ; y _ -> !offset 0
a transposed annotation:                    x y ; y x -> !offset 0
two axes merged with a third:               x.y _ ; _ z -> x.y z
two axes against their reverse:             x.y _ ; y.x _ -> !offset 0
two axes against the major one:             x.y _ ; x _ -> !offset 0
two axes against the minor one:             x.y _ ; y _ -> !offset 0
the minor one of two axes taken elsewhere:  x.y _ ; _ y -> !overlap 0 1
the major one of two axes taken elsewhere:  x.y _ ; _ x -> !overlap 0 1
reversed order on purpose:                  y.x _ ; _ z -> y.x z
three axes on one dimension:                x.y.z _ ; _ w -> x.y.z w
three axes with the minor two swapped:      x.y.z _ ; x.z.y _ -> !offset 0
three axes with the major two swapped:      x.y.z _ ; y.x.z _ -> !offset 0
four axes agree:                            x.y.z.w ; x.y.z.w -> x.y.z.w
four axes, the last two swapped:            x.y.z.w ; x.y.w.z -> !offset 0
axes between two of the other:              x.z _ ; _ y.w -> x.z y.w
axes interleaved and one shared:            x.z _ ; _ y.z -> !overlap 0 1
a dimension that stays whole:               x _ y ; _ _ y -> x _ y
open dimensions are filled:                 x _? ; _ y -> x y?
an open dimension that stays open:          x _? ; x _ -> x _?
a closed dimension is not refined:          _ _? ; x _ -> !closed 0
two open annotations fill each other:       x _? ; _? y -> x y
# Table 1: the three 2D strategies of a Transformer layer (B S M, M H, B S H; X is x, Y is y)
attempt 1, activations meet weights' M:     _ _ y ; x _ _ -> x _ y
attempt 1, weights M H:                     _ y ; x _ -> x y
attempt 2, activations B S M:               x _ y ; x _ _ -> x _ y
attempt 2, hidden B S H:                    x _ _ ; _ _ y -> x _ y
attempt 2, batch and model on X:            x _ _ ; _ _ x -> !overlap 0 2
finalized, weights gathered on X:           x y ; _ y -> x y
finalized, weight and its gradient:         x y ; x y -> x y
finalized, activation and weight on M:      x _ y ; _ _ x -> !offset 2
attention, batch and heads:                 x _ y _ ; _ _ y _ -> x _ y _
attention, scores:                          x y _ _ ; x _ _ _ -> x y _ _
attention, sequence in place of heads:      x _ y _ ; _ y _ _ -> !overlap 2 1
bias along the hidden dimension:            _ _ y ; x _ y -> x _ y
# Tables 2 to 7: deeper dense models, mixtures of experts, convolutions, pipelines
narrow model, batch on both axes:           x.y _ _ ; _ _ _ -> x.y _ _
narrow model, batch and model dimension:    x.y _ _ ; _ _ y -> !overlap 0 2
experts, groups on all devices:             x.y _ _ _ ; _ _ _ _ -> x.y _ _ _
experts, tokens dispatched:                 _ x.y _ _ ; _ _ _ z -> _ x.y _ z
experts, group and expert on one axis:      x _ _ _ ; _ x _ _ -> !overlap 0 1
experts, 2D within an expert:               x _ y ; _ z _ -> x z y
hybrid expert, E H and E M:                 x _ y ; x z _ -> x z y
gating, group and expert dimensions:        x _ y ; _ _ y -> x _ y
convolution, batch and space:               x _ _ _ ; _ y _ _ -> x y _ _
convolution, space on two dimensions:       _ x y _ ; _ x _ _ -> _ x y _
convolution, space and features:            _ x _ _ ; _ _ _ x -> !overlap 1 3
conformer, batch and heads after gather:    x _ _ ; _ _ y -> x _ y
pipeline, stage and batch:                  z _ _ _ ; _ x _ _ -> z x _ _
pipeline, stage, batch and model:           z x _ _ ; _ _ _ y -> z x _ y
pipeline, stage and model on one axis:      z _ _ _ ; _ _ _ z -> !overlap 0 3
pipeline, circular layers:                  z _ _ ; z x _ -> z x _
optimizer state on the data axis:           x y ; x _ -> x y
optimizer state on another dimension:       y x ; _ x -> y x
# XLA's tile rule (hlo_sharding_util.cc): equal or one, manual subgroups, what tile counts allow
four-way against nested two-way:            x _ ; x:1:2 _ -> !offset 0
two halves of an axis on two dimensions:    x:1:2 _ ; _ x:2:2 -> x:1:2 x:2:2
the minor half against the whole axis:      x:2:2 _ ; _ x -> !overlap 0 1
the same half twice:                        x:1:2 _ ; _ x:1:2 -> !overlap 0 1
the two halves of one dimension:            x:1:2.x:2:2 _ ; x _ -> x _
the halves swapped:                         x:2:2.x:1:2 _ ; x _ -> !offset 0
a half with another axis:                   x:1:2.y _ ; _ x:2:2 -> x:1:2.y x:2:2
equal manual subgroups:                     x _ | M=z ; _ y | M=z -> x y | M=z
manual on one side only:                    x _ | M=z ; _ y -> !class manual
other manual subgroups:                     x _ | M=z ; _ y | M=w -> !class manual
a manual axis taken on the other side:      x _ | M=z ; _ z -> !class manual
equal partial sums:                         x _ | U=z ; _ y | U=z -> x y | U=z
partial sums on one side only:              x _ | U=z ; _ y -> !class unreduced
partial sums over other axes:               x _ | U=z ; x _ | U=w -> !class unreduced
partial sums and manual:                    x _ | U=z M=w ; _ y | U=z M=w -> x y | U=z M=w
an axis pinned replicated stays free:       _ _ | R=x ; _ y -> _ y | R=x
an axis pinned replicated is not used:      _ _ | R=x ; x _ -> !overlap replicated 0
half of a pinned axis:                      _ _ | R=x:2:2 ; x:1:2 _ -> x:1:2 _ | R=x:2:2
the pinned half itself:                     _ _ | R=x:1:2 ; x _ -> !overlap replicated 0
two pinned axes:                            _ y | R=x ; _ y | R=z -> _ y | R=x.z
# Shardy: prefixes nest, sub-axes, closed dimensions
shardy a prefix is refined:                 x _ ; x.y _ -> x.y _
shardy a prefix is absorbed:                x.y _ ; x _ -> x.y _
shardy a suffix is none:                    y _ ; x.y _ -> !offset 0
shardy the same axes swapped:               x.y _ ; y.x _ -> !offset 0
shardy a gap is no prefix:                  x.z _ ; x.y.z _ -> !offset 0
shardy a sub-axis is a prefix:              x:1:2 _ ; x _ -> x _
shardy the minor sub-axis is none:          x:2:2 _ ; x _ -> !offset 0
shardy a sub-axis and more:                 x:1:2 _ ; x.y _ -> x.y _
shardy the longer one takes the other's:    x.y _ ; x y -> !overlap 0 1
shardy prefixes on two dimensions:          x z ; x.y z.w -> x.y z.w
shardy each side longer once:               x.y z ; x z.w -> x.y z.w
shardy a closed prefix:                     x _? ; x.y _ -> !closed 0
shardy two branches of a prefix:            x.y _ ; x.z _ -> !offset 0
# more than two, jointly
three annotations of one value:             x _ _ ; _ y _ ; _ _ z -> x y z
three that share a dimension:               x y _ ; _ y z ; x _ z -> x y z
the third clashes with the first:           x _ _ ; _ y _ ; _ _ x -> !overlap 0 2
four annotations:                           x _ _ _ ; _ y _ _ ; _ _ z _ ; _ _ _ w -> x y z w
the third clashes with their merge:         x _ ; _ y ; y _ -> !offset 0
# refinement and equality
more axes refine:                           x y <= x _ -> yes
anything refines the replicated:            x y <= _ _ -> yes
minor axes refine:                          x.y _ <= x _ -> yes
a prefix does not refine:                   x _ <= x.y _ -> !contained
other axes do not refine:                   y _ <= x _ -> !contained
the order of axes matters:                  y.x _ <= x _ -> !contained
a gap does not refine:                      x.y.z _ <= x.z _ -> !contained
two axes refine both ways:                  x.z y.w <= x y -> yes
an axis equals its halves:                  x _ == x:1:2.x:2:2 _ -> yes
swapped axes differ:                        x.y _ == y.x _ -> !offset 0
a whole dimension differs:                  x _ == _ _ -> !offset 0
partial sums differ:                        x _ | U=z == x _ -> !class unreduced
"""


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    name: str
    relation: str
    policy: str
    operands: tuple[Sharding, ...]
    answer: str

    def verdict(self):
        more = {"policy": self.policy} if self.relation == "merge" else {}
        return {"merge": merge, "refines": refines, "equal": equal}[self.relation](
            *self.operands, **more
        )

    @property
    def sizes(self):
        """The sizes that the answer is about: all, except where a refusal has a condition.

        With 288 parts along x and 2 along y, 288 elements have one block each along (y, x), and
        along x: where most blocks are empty, the refinement holds.
        """
        verdict = self.verdict()
        return "all" if verdict or verdict.condition is None else "concrete"


def sharding(text):
    """Return the sharding in an operand's or an answer's notation."""
    body, _, tail = text.partition("|")
    words = body.split()
    classes = dict(word.split("=") for word in tail.split())
    held = {"U": "unreduced", "M": "manual", "R": "replicated"}
    return Sharding(
        MESH,
        (DIM,) * len(words),
        tuple(digits(word) for word in words),
        tuple(i for i, word in enumerate(words) if word.endswith("?")),
        **{held[key]: digits(word) for key, word in classes.items()},
    )


def digits(word):
    refs = [part.split(":") for part in word.rstrip("?").split(".") if part != "_"]
    return tuple(
        MESH.ref_digit(AxisRef(name, *map(int, numbers)) if numbers else AxisRef(name))
        for name, *numbers in refs
    )


def case(line):
    name, _, rest = line.partition(": ")
    policy = "shardy" if name.startswith("shardy ") else "gspmd"
    given, _, answer = rest.partition("->")
    signs = {"<=": "refines", "==": "equal", ";": "merge"}
    sign = next(s for s in signs if s in given)
    operands = tuple(sharding(text) for text in given.split(sign))
    return Case(name.strip(), signs[sign], policy, operands, answer.strip())


CASES = tuple(case(line) for line in TABLE.strip().splitlines() if line.strip() and line[0] != "#")
