"""Sharding completion: a graph and annotations in, a sharding per value out, each with its reason.

Annotations. An annotation is an identity primitive with a name, or with the mesh of a `mesh_split`
or a constraint. One trace serves every mesh and every strategy, except that a `shard_map` fixes the
sizes of its axes; `plan.replan` never traces. Annotations on the mesh on which the function was
planned first (`Traced.first_mesh`: sizes and device order) follow the plan to every mesh on which
it is planned again. Every other mesh means itself, whatever the names of its axes
(`planner/propagate/other_mesh.py`). If it has the same devices in any order, its axes become axes
and sub-axes of the plan's mesh; otherwise it is refused. The same rule applies to arguments' own
NamedShardings.

Device orders. Some orders of the devices are no digits of the mesh (a reversed ring, a snake). Such
a sharding has the same axes, on a mesh with other device ids (`other_mesh.split_orders`).
Completion and operators use the plan's order. Arguments and results in another order are permuted
as they enter and leave; an order passes to the values computed from a value. `sa.reshard` does the
same. Locals and borders of a program name their order by the mesh of their sharding. Only a permute
reads or makes another order, which `verify` decides by tables.

Steps. Completion follows a table from (role class of the row, direction) to a level, and a few
rules about merging (`planner/propagate/gspmd/image.py`, `planner/propagate/gspmd/step.py`). Each
step is a pure function of (operator class, shardings) and is looked up by integers, so that a deep
model costs one dictionary lookup per visit. Operators that completion cannot tell apart have one
`OperatorClass` (`operator_classes.py`), found once per function.

Policies. "shardy" has its own step and table (`planner/propagate/shardy/factors.py`: loop by loop,
all tensors at once) and its own order (`planner/propagate/shardy/worklist.py`: each change is
followed first). It visits the operators of the module that XLA hands to Shardy
(`planner/propagate/shardy/shardy_module.py`, `planner/propagate/shardy/lowered.py`). There, a
loop's carry is one edge, and values that a loop only reads are outside of it
(`planner/propagate/shardy/edges.py`). Products that Shardy computes in another sharding come last
(`planner/propagate/shardy/lowered.py`). "gspmd" has the paper's table and step on XLA's own view
(`planner/propagate/gspmd/tuple_steps.py`): bodies before the computation around them, tuples of
loops and branches with shardings of their own, equal constants as one. All policies visit operators
from the results down, as XLA orders instructions (`planner/propagate/gspmd/instructions.py`); where
shardings conflict, the first one wins. Under "gspmd", an annotated argument is refined during the
sweeps like any value if another argument is open, and is restored at the end
(`border.apply_border_rules`).
"""

from __future__ import annotations

from shardalg.planner.propagate.complete import propagate
from shardalg.planner.propagate.options import CompletionOptions, Options, Switches
from shardalg.planner.propagate.sharded import Conflict, Reason, ShardedGraph
from shardalg.planner.propagate.strategy import Annotations, Strategy, resolve

__all__ = [
    "Annotations",
    "Conflict",
    "CompletionOptions",
    "Options",
    "Reason",
    "ShardedGraph",
    "Strategy",
    "Switches",
    "propagate",
    "resolve",
]
