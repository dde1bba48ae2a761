"""Meshes, digits, offsets and shardings; their closed forms and their notations.

Digits: A device has a *position* in the mesh (row-major). A tensor dimension's partition id is
written in digits `floor(position / stride) mod size`, major first; a mesh axis is a digit, a
sub-axis is a digit, several axes on one dimension are several digits. Two shardings are the same
layout if their canonical digits are equal. Device numbers live in the `Mesh` alone: a permuted
device order changes no program, only which device stands where.

Offsets: `offset(S, d, i) = partition_id_i(d) * ceil(D_i / n_i)`: everything about uneven sizes
(valid size, padding, masks) follows from it, as numbers and in sympy.

Drawings of halos, exchanges and shardings, from their closed forms alone.
"""
