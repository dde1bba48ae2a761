"""Meshes, shardings and halos as exact integer formulas, and the notations of shardings.

Digits: a device has a *position* in the mesh (row-major). A tensor dimension's partition id is
written in digits `floor(position / stride) mod size`, major first. A mesh axis is one digit, a
sub-axis is one digit, and several axes on one dimension are several digits. Two shardings are the
same layout if their canonical digits are equal. Only the `Mesh` has device ids: a permuted device
order changes the device at each position, but no program.

Offsets: `offset(S, d, i) = partition_id_i(d) * ceil(D_i / n_i)`. Everything about uneven sizes
(valid size, padding, masks) follows from it, as numbers and in sympy.

Drawings of halos, exchanges and shardings are made from their closed forms alone.
"""
