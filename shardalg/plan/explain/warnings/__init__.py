"""What `plan.warnings()` says, a file per kind of row, each with its cost and a remedy.

A remedy that names an annotation was planned before it is said. Rows of operators that run in a
roundabout way and of what is left out (`roundabout`), of axes along which devices compute the same
(`idle`), of operators that every device runs whole (`whole`), of padding and of parameters that
every device holds (`held`).
"""
