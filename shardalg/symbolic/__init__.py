"""Named sizes of a traced function: formulas of all its sizes, and the function at other sizes."""
