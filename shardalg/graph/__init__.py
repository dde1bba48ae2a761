"""A JAX function as a graph of values, nodes and regions: traced, annotated, evaluated, saved.

Regions. The graph is flat. The body of a loop or branch is a region of the graph. Region arguments
connect its values with the values outside that have the same sharding.
- A scan's body has the trip count of the loop.
- A rematerialised span is inlined behind an `optimization_barrier`, so that a compiler cannot undo
  the rematerialisation.
- The condition and the body of a `while` share one carry. The number of iterations is unknown, so
  one iteration is priced. A `while` under `vmap` is written out while tracing: it runs until all
  batch elements are finished, and finished elements keep their carry.
- The branches of a `cond` read the same operands and return results in the same shardings. Each
  branch is priced.
All devices compute equal conditions and branch numbers, so that they execute the same collectives.

Manual regions (`shard_map`, `graph/tracing/manual.py`) are calls too. Annotations at their border
give the operands and results the shardings of the specs. Inside, each device has its own values.
The user's collectives become instructions by one table (`spmd/manual.py`), so that they are
simulated, priced, listed and lowered like all others. `verify()` proves that blocks match the specs
and that the collectives are the user's. It does not check the user's code on blocks. Along
automatic axes every device repeats the body. Refused with an error: groups within an axis,
asynchronous collectives, annotations inside, named sizes, meshes other than the traced one.

Modules of nodes (`weights.py`, `modules.py`): the user's named scopes, else the path of the weights
that a node reads or updates.
"""
