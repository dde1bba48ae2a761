"""Planning: from a function to its program, in stages; plan files and guards.

Guards. A plan with named sizes is valid at all sizes for which planning would decide the same.
These conditions are not listed by hand. `planner/guards.py` plans once more with sizes that record
comparisons (`sizes/recorded.py`). Each such size has a formula. Every question that planning has
about it, from a divisibility to a comparison of prices, is recorded with its answer as a `Fact`.
Such a size is not an `int`, so nothing is missed. If all facts hold, planning decides the same.
`plan.at` checks some thousands of facts in a millisecond (`sizes/facts.py`). It traces and plans
only if a fact fails, or if the plan's program is needed. `plan.holds` plans at a point and compares
prices (`planner/guards.py`) in three cases: a fact fails, the function makes sizes in Python, or a
plan was chosen by cost.

A search compares more than its outcome needs. A function marked `decided` (`reshard_path`,
`node_plan`) is therefore recorded call by call, with caches of its own. If a fact of a call fails,
the call is repeated in numbers, and the plan holds if it gives the same (`sizes/decided.py`).

A fact knows its origin: the call, the node that was planned, and for a choice the candidates that
were compared (`Recorder.about`). On recorded sizes, a choice prices all candidates and records only
the comparisons that make the best one the best (`first_least`). A scanned train step has 570 facts
instead of 704, each of them a condition of a choice. `plan.conditions` (`plan/plan_conditions.py`)
lists them, the nearest first, each with its margin and the size at which it changes.

Plan files. A saved plan holds the inputs of planning: the graph as data, the annotations and the
options. Each value is read as the type that a dataclass declares for it (`files.py`). The graph
must be one that tracing makes (`graph/loaded.py`), with operators and types that JAX accepts
(`graph/ops/rows.py`: one abstract trace of all kinds of nodes). No text is ever evaluated. Loading
completes and partitions again, and compares the result with the file's summary
(`plan/explain/plan_summary.py`). Equal versions must give the same program. Other versions may
decide differently, and the loaded plan names the parts that differ.
"""
