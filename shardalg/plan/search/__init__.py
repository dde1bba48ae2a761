"""Search for the fastest shardings of a function, with a proved lower bound.

1. `equal_nodes`: nodes of equal layers share one decision.
2. `layout_moves`: the layouts of values on a mesh, and the prices of moves between them.
3. `cost_table`: all prices of a step as a `FactorGraph`, variables with costs between pairs.
4. `minimising`: its minimum and a lower bound.
5. `bound_certificate`: the proof of the bound as a file; `check_certificate` needs no solver.
6. `winner`: the minimum as a plan. `mesh_search`: one mesh, with prices of memory.
7. `search`: all meshes of a `family`, here or by workers, and `search_answer`.
"""
