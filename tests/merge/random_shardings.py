"""Random pairs of shardings: 2 to 16 devices, any order of devices, uneven sizes, all classes."""

import random
from dataclasses import replace

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding

MODES = ("iota", "transposed", "permuted", "independent", "swapped", "two meshes")


def pair(seed):
    """Two shardings of one tensor over the same devices, and the policy to merge them under."""
    rng = random.Random(seed)
    size = rng.choice((*range(2, 17), 4, 6, 8, 8, 12, 12, 16, 16))
    shape = tuple(rng.choice((1, 3, 7, 12, 16, 48, 50)) for _ in range(rng.choice((1, 2, 2, 3, 3))))
    first, second = _pair(size, shape, rng)
    for _ in range(5):  # one that is replicated merges with anything
        if first.split_places and second.split_places and first.dims != second.dims:
            break
        first, second = _pair(size, shape, rng)
    return first, second, rng.choice(("gspmd", "gspmd", "shardy"))


def _pair(size, shape, rng):
    classes = rng.random() < 0.2
    rows = [_sharding(mesh, shape, rng, classes=classes) for mesh in _meshes(size, rng)]
    return _halves(rows[0], rng) if rng.random() < 0.35 else rows


def _meshes(size, rng):
    mode = rng.choice(MODES)
    first = _mesh(size, rng, None)
    if mode == "iota":
        return first, first
    if mode == "two meshes":
        return first, _mesh(size, rng, None)
    natural = list(range(size))
    order = rng.sample(natural, size) if mode != "transposed" else _transposed(first, rng)
    other = natural if mode == "swapped" else rng.sample(natural, size)
    if mode == "swapped":
        i, j = rng.sample(natural, 2)
        order = list(natural)
        order[i], order[j] = order[j], order[i]
    if mode != "independent":
        other = order if mode == "permuted" else natural
    return Mesh(first.axes, order), Mesh(first.axes, other)


def _mesh(size, rng, order):
    axes, left = {}, size
    while left > 1:
        n = rng.choice([q for q in range(2, left + 1) if left % q == 0][:2])
        axes["xyzw"[len(axes)]] = n
        left //= n
    return Mesh(axes or {"x": 1}, order)


def _transposed(mesh, rng):
    """Return the devices in the order of the axes of a mesh, permuted."""
    digits = [mesh.digit(name) for name in mesh.axis_names]
    order = rng.sample(digits, len(digits))
    positions = range(mesh.size)
    return sorted(positions, key=lambda p: tuple(d.at(p) for d in order))


def _sharding(mesh, shape, rng, *, classes):
    names = rng.sample(mesh.axis_names, len(mesh.axis_names))
    rank = len(shape)
    entries = [[] for _ in range(rank)]
    held = {"unreduced": [], "replicated": [], "manual": []}
    for name in names:
        place = rng.choice((-1, *range(rank), *range(rank)))
        if place >= 0:
            entries[place].append(name)
        elif classes and rng.random() < 0.5:
            held[rng.choice(list(held))].append(name)
    opened = tuple(i for i in range(rank) if classes and rng.random() < 0.4)
    dims = tuple(mesh.digits(e) for e in entries)
    return Sharding(mesh, shape, dims, opened, **{k: mesh.digits(v) for k, v in held.items()})


def _halves(whole, rng):
    """Two shardings with some of the dimensions of one, which merge unless something is closed."""
    first = {i for i in range(len(whole.shape)) if rng.random() < 0.6}
    second = {i for i in range(len(whole.shape)) if i not in first or rng.random() < 0.3}
    return [
        replace(whole, dims=tuple(d if i in held else () for i, d in enumerate(whole.dims)))
        for held in (first, second)
    ]
