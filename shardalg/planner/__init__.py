"""From a function to its program in stages, each the input of the next; plan files and guards.

Guards: What ties a plan to its hints is not listed by hand. `planner/guards.py` makes the plan
once more on sizes that keep a record (`sizes/recorded.py`): each knows its formula, and every
question that planning puts to it, from a divisibility to a comparison of prices, is noted with its
answer as a `Fact`. Nothing escapes, since such a size is no `int`. Where all facts hold, planning
takes the same way: `plan.at` checks some thousands of them in a millisecond (`sizes/facts.py`),
and traces and plans only where one fails, or when the plan's program is asked for. Where one
fails, or the function makes sizes in Python, or a descent by cost compared more than is worth
keeping, `plan.holds` plans there and compares prices (`planner/guards.py`). A search
compares more than its outcome needs, so a function marked `decided` (`reshard_path`, `node_plan`)
is recorded call by call, behind caches of its own; where a fact of a call fails, the call is made
again in numbers, and stands if it gives the same (`sizes/decided.py`).

A fact knows who asked: the call, the node that was planned, and of a choice what was weighed
against what (`Recorder.about`). On recorded sizes a choice prices all candidates and notes just
what makes the best one the best (`first_least`): of a scanned train step 570 facts instead of 704,
each of them the condition under which a choice stays. `plan.conditions` (`plan/plan_conditions.py`)
shows them, the nearest first, each with its margin and the size at which it turns.

Saved plans hold the inputs of planning: the graph as data, the annotations and the options. Each
value is read as the type that a dataclass declares for it (`files.py`); the graph must be one
that tracing makes (`graph/loaded.py`), its operators ones that JAX takes and gives these types
(`graph/ops/rows.py`: one abstract trace of all kinds of nodes). No text is ever evaluated. Loading
completes and partitions again, and compares the result with the file's summary
(`plan/explain/plan_summary.py`). The same versions must give the same program; other versions may
decide
otherwise, and the loaded plan names the parts that differ.
"""
