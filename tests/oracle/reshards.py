"""Every pair of layouts of three meshes, and running each: `python -m tests.oracle.reshards`.

Lowers our path of every pair, many pairs to a program, and compares what comes out with what went
in. Needs eight devices: `XLA_FLAGS=--xla_force_host_platform_device_count=8`.
"""

import itertools
import json
import math
import os
import sys
import time

import jax
import numpy as np

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.sharding import Sharding
from shardalg.lower.shard_map import lower
from shardalg.planner.reshard.path_instructions import moves
from shardalg.spmd.check import check
from tests.oracle.record_reshards import FACTS, SIZE, groups
from tests.spmd.handmade import Builder

PER_PROGRAM = 50


def every_pair():
    """Yield (mesh, layouts as axes, as shardings, XLA's received bytes, whether of all)."""
    for (sizes, rank, every), facts in zip(
        groups(), json.loads(FACTS.read_text())["groups"], strict=True
    ):
        mesh = Mesh(sizes)
        known = {axes: Sharding(mesh, (SIZE,) * rank, _digits(mesh, axes)) for axes in every}
        pairs = [pair for pair in itertools.product(every, repeat=2) if pair[0] != pair[1]]
        for axes, received in zip(pairs, facts["received"], strict=True):
            yield mesh, axes, tuple(map(known.get, axes)), abs(received), received < 0


def _digits(mesh, axes):
    return tuple(mesh.digits(names) if names else () for names in axes)


def moved(pairs):
    """(program, graph) that takes one array per pair and hands it out in the other layout."""
    b = Builder(pairs[0][0].mesh)
    b.arguments += [b.local(source) for source, _ in pairs]
    results = []
    for local, (source, target) in zip(tuple(b.arguments), pairs, strict=True):
        for move in moves(source, target):
            local = b.add(move.attributes, [local], move.layout, shape=move.shape)
        results.append(local)
    return b.program(*results)


def run(pairs):
    """Run every pair of one mesh in one program; arrays stay unchanged."""
    program, graph = moved(pairs)
    shape = pairs[0][0].shape
    arrays = [np.arange(math.prod(shape), dtype=np.float32).reshape(shape) + i for i in range(8)]
    arguments = [arrays[i % 8] for i in range(len(pairs))]
    for result, argument in zip(lower(check(program), graph)(*arguments), arguments, strict=True):
        np.testing.assert_array_equal(result, argument)


def main():
    start, done = time.monotonic(), 0
    every = [(f"{mesh!r}, rank {len(ends[0].shape)}", ends) for mesh, _, ends, *_ in every_pair()]
    for name, group in itertools.groupby(every, key=lambda pair: pair[0]):
        pairs = [ends for _, ends in group]
        for at in range(0, len(pairs), PER_PROGRAM):
            run(pairs[at : at + PER_PROGRAM])
            jax.clear_caches()
            so_far = min(at + PER_PROGRAM, len(pairs))
            sys.stderr.write(f"\r{name}: {so_far} of {len(pairs)} pairs arrived ")
        done += len(pairs)
        seconds = f"{time.monotonic() - start:.0f} s, of processor time {time.process_time():.0f} s"
        sys.stderr.write(f"\n{done} of {len(every)} pairs, {seconds}\n")


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
