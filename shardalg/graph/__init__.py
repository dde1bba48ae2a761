"""A JAX function as a graph of values, nodes and regions: traced, annotated, evaluated, saved.

Regions: The graph is flat; scan bodies are regions of it whose nodes carry the trip count, joined
to the outside by region arguments (values that share a sharding). A rematerialised span is inlined
behind an `optimization_barrier`, so that a compiler cannot undo it. The condition and the body of
a `while` share one carry; the branches of a `cond` read the same operands and hand on their
results in one layout. What a condition says, and the number of a branch, are the same on all
devices, so that these meet in the same collectives (`bodies` are the blocks inside `Loop`, `While`
and `Branches`). How often a `while` runs nobody knows: it is priced for one execution, and of
branches each is. One whose elements end by themselves (`vmap`) is written out while tracing: it
runs while any goes on, which is carried, and the others keep their carry.

Manual regions (`shard_map`) are calls, too (`graph/tracing/manual.py`): sites lay their operands
and results out as the specs say, and inside every device has values of its own, whole to it. What
the user sends there becomes instructions of the language by one table (`spmd/manual.py`), so that
it is simulated, priced, listed and lowered as everything else. `verify()` proves that blocks go in
and out as the specs say and that the collectives are the written ones; what the code computes from
its blocks is the user's. Along axes that stay automatic every device computes the body alike;
groups within an axis, asynchronous and ragged collectives, annotations inside, named sizes and
other meshes than the traced one are refused by name.

Modules of nodes: the user's scopes, else the path of the weights that a node reads or updates.

`module_paths` splits an argument's path into words. `weights` decides which arguments are weights,
and names their modules. `gradients` finds the values that become a weight's gradient. `of_nodes`
gives every node its module. No jax here.
"""
