"""Sharding completion: a graph and annotations in, a layout per value out, each with its reason.

Annotations are an identity primitive that carries names, and the mesh that a `mesh_split` or a
constraint brings. One trace serves every mesh and every strategy, but that a `shard_map` fixes the
sizes of its axes; `plan.replan` never traces. What brings the mesh on which the function was
planned first (`Traced.first_mesh`: sizes and device order) follows the plan to every mesh on which
it is planned again. Every other mesh is itself, whatever the names of its axes
(`planner/propagate/other_mesh.py`): over the same devices in any order, its axes become axes and
sub-axes
of the plan's; over others it is refused. An order of the devices that no digits of the mesh write
(a reversed ring, a snake) is the same axes on a mesh with other device ids (`restate.in_order`):
completion and operators see the plan's order, arguments and results that lie in another one are
permuted as they enter and leave (`planner/propagate/other_mesh.py`; an order goes on to what is
computed of a
value), and so does `sa.reshard`. Locals and borders of a program name their order by the mesh of
their layout; only a permute reads or makes one in another order, which `verify` decides by tables.
Arguments' own NamedShardings are read by the same rule.

Completion follows a table (role class of the row, direction) to a level, and a handful of rules
about merging (`planner/propagate/gspmd/image.py`, `planner/propagate/gspmd/step.py`). Each step is
a pure function of (row, layouts)
and is looked up by integers, so a deep model costs one dictionary lookup per visit; operators that
it cannot tell apart are one `OperatorClass` (`operator_classes.py`), found once per function.
Policy `shardy` has another step (`planner/propagate/shardy/factors.py`: loop by loop, all tensors
at once), another
table (`planner/propagate/shardy/factors.py`) and another order
(`planner/propagate/shardy/worklist.py`: what changed is followed
first) on another view of the graph: the operators of the module that XLA hands to Shardy
(`planner/propagate/shardy/shardy_module.py`, `planner/propagate/shardy/lowered.py`), where a
loop's carry is one edge and what it only
reads stands outside (`planner/propagate/shardy/edges.py`); products that Shardy makes in another
layout than their
readers want come last (`planner/propagate/shardy/lowered.py`). Policy `gspmd` has the paper's
table and step on
XLA's own view (`planner/propagate/gspmd/tuple_steps.py`: bodies before what is around them, the
tuples of loops and
branches with layouts of their own, equal constants one). All visit operators from the results down,
as XLA orders instructions (`planner/propagate/gspmd/instructions.py`): where layouts conflict, the
first wins. Under
gspmd an annotated argument is refined on the way like any value as soon as another argument is
open, and has its annotation again at the end (`border.settle`).
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
