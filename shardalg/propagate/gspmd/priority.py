"""When a step may act: a table (role class, direction) -> level. No operator is named here.

The levels are XLA's aggressiveness of sharding propagation (`xla/service/sharding_propagation.cc`):
each is run to its fixed point before the next. Pass-through operators first, then those that merge,
then broadcasts towards their operand, and last broadcasts forward, since a broadcast's own layout
says nothing about where its result should be.
"""

from __future__ import annotations

FORWARD, BACKWARD = "forward", "backward"
POINTWISE, LAYOUT, LOOP, STACK = "pointwise", "layout", "loop", "stack"
DYNAMIC_SLICE, GATHER, REDUCE, CONTRACTION = "dynamic_slice", "gather", "reduce", "contraction"
CONVOLUTION, WINDOW, BROADCAST = "convolution", "window", "broadcast"
MATRIX = (CONTRACTION, CONVOLUTION)
"""Products: of two operands that each improve the result the larger one goes first."""
ZEROS = "zeros"
"""Between stacks of equal type: they begin as the same zeros, which XLA makes once."""
TUPLE, WHILE, BRANCH, ELEMENT = "tuple", "while", "branch", "element"
"""Into a tuple, be it in several places; from the tuple that a loop or a branch is given to
its own; and out of one."""
EXIT = "exit"
"""From a result's value to its annotation, in Shardy's way of completing."""

LEVELS: dict[str, tuple[int, int]] = {
    POINTWISE: (0, 0),
    LAYOUT: (0, 0),
    LOOP: (0, 0),
    TUPLE: (0, 0),
    WHILE: (0, 0),
    BRANCH: (1, 1),
    ELEMENT: (0, 0),
    STACK: (0, 1),
    DYNAMIC_SLICE: (0, 1),
    GATHER: (1, 1),
    REDUCE: (1, 1),
    CONTRACTION: (1, 1),
    CONVOLUTION: (1, 1),
    WINDOW: (1, 1),
    BROADCAST: (3, 2),
    ZEROS: (2, 2),
}
MERGING_LEVEL = 1
"""From this level on two partial layouts of one value merge."""
LAST_LEVEL = 3


def level(role: str, direction: str) -> int:
    """First level at which a step of this role acts in this direction.

    >>> level("broadcast", "forward"), level("broadcast", "backward"), level("layout", "forward")
    (3, 2, 0)
    """
    return LEVELS[role][direction == BACKWARD]
