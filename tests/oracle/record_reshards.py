"""Record how XLA reshards every pair of layouts: `python -m tests.oracle.record_reshards`.

Every assignment of the axes of a mesh to the dimensions of a tensor, from each to each, many pairs
to a program. What XLA does to a pair is read off the program right after its partitioner
(`*after_spmd-partitioning*`): all collectives between the pair's parameter and its result. Written
beside this file as reshards.json; the tests compare offline.
"""

import itertools
import json
import math
import os
import sys
import tempfile
from pathlib import Path

from shardalg.costs.collectives import step_wire_bytes
from shardalg.lower.xla_dump.hlo_text import parse, parse_groups

FACTS = Path(__file__).parent / "reshards.json"
COMMAND = (
    "XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.oracle.record_reshards"
)
MESHES = ({"x": 8}, {"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2})
RANKS, SIZE, PER_PROGRAM = (1, 2, 3), 64, 60
_KINDS = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
}


def layouts(names, rank):
    """Every assignment of some axes to dimensions, several on one in every order.

    >>> layouts(["x", "y"], 1)
    [((),), (('x',),), (('x', 'y'),), (('y',),), (('y', 'x'),)]
    """
    found = set()
    for count in range(len(names) + 1):
        for chosen in itertools.permutations(names, count):
            for cuts in itertools.combinations_with_replacement(range(count + 1), rank - 1):
                found.add(tuple(chosen[a:b] for a, b in itertools.pairwise((0, *cuts, count))))
    return sorted(found)


def groups():
    """(mesh, rank, layouts) of every group of pairs; the pairs are all with different ends."""
    for mesh, rank in itertools.product(MESHES, RANKS):
        yield mesh, rank, layouts(list(mesh), rank)


def answers(hlo, elements):
    """Per element of the result: elements received, and whether some collective gave all of them.

    Args:
      elements: of the tensor, which every parameter is a layout of.
    """
    module = parse(hlo)
    steps, root = module.computations[module.entry], module.roots[module.entry]
    return [_traced(steps, name, elements) for name in root.operands]


def _traced(steps, name, elements):
    """Return all values that a value depends on; an all-to-all may have a tuple of operands."""
    todo, seen, received, whole = [name], set(), 0, False
    while todo:
        step = steps[todo.pop()]
        if step.name in seen:
            continue
        seen.add(step.name)
        todo += [operand for operand in step.operands if operand in steps]
        kind = _KINDS.get(step.opcode)
        if kind:
            sent = sum(math.prod(dims) for o in step.operands for _, dims in steps[o].leaves)
            pairs = kind == "collective_permute"
            size = 2 if pairs else len(parse_groups(step.attributes["replica_groups"], 8)[0])
            received += step_wire_bytes(kind, group_size=size, local_bytes=sent)
            whole |= sum(math.prod(dims) for _, dims in step.leaves) == elements
    return int(received), whole


def partitioned(jax_mesh, shape, pairs):
    """HLO text of one program that reshards all pairs, right after XLA partitioned it."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    sides = [
        [NamedSharding(jax_mesh, PartitionSpec(*dims)) for dims in side]
        for side in zip(*pairs, strict=True)
    ]
    stage = jax.jit(
        lambda *xs: [x + 1 for x in xs], in_shardings=tuple(sides[0]), out_shardings=sides[1]
    )
    structs = [jax.ShapeDtypeStruct(shape, "float32") for _ in pairs]
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "xla_dump_to": folder,
            "xla_dump_hlo_pass_re": "spmd",
            "xla_backend_optimization_level": 0,
        }
        stage.lower(*structs).compile(compiler_options=options)
        (dump,) = Path(folder).glob("*after_spmd-partitioning*")
        return dump.read_text()


def _batches(pairs):
    return [pairs[at : at + PER_PROGRAM] for at in range(0, len(pairs), PER_PROGRAM)]


def record():
    import jax
    from jax.sharding import AxisType

    found = []
    for mesh, rank, every in groups():
        auto = (AxisType.Auto,) * len(mesh)
        jax_mesh = jax.make_mesh(tuple(mesh.values()), tuple(mesh), axis_types=auto)
        shape, rows = (SIZE,) * rank, []
        pairs = [pair for pair in itertools.product(every, repeat=2) if pair[0] != pair[1]]
        for batch in _batches(pairs):
            rows += answers(partitioned(jax_mesh, shape, batch), math.prod(shape))
            sys.stderr.write(f"{mesh}, rank {rank}: {len(rows)} of {len(pairs)} pairs\n")
        found.append({"mesh": mesh, "rank": rank, "elements": math.prod(shape)})
        found[-1]["received"] = [-n if whole else n for n, whole in rows]
    return {"command": COMMAND, "jax": jax.__version__, "groups": found}


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    FACTS.write_text(
        json.dumps(record(), separators=(",", ":")).replace('{"mesh"', '\n{"mesh"') + "\n"
    )
