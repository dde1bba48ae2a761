"""Record the flops of XLA's products per device: `python -m tests.oracle.record_flops`.

XLA's own `cost` counts a loop body once and every operator; what two partitioners may be compared
by is the matrix products and convolutions that a device executes in a step. They are read off the
program right after partitioning (`*after_spmd-partitioning*`), a loop body counting its trips, a
convolution all taps of its kernel, those in padding too.
Written beside this file as product_flops.json; the tests read that, so that they need no compile
and no GSPMD in XLA.
"""

import json
import math
import os
import sys
import tempfile
from pathlib import Path

from shardalg.lower.xla_dump.hlo_text import parse, walk
from tests.oracle import corpus

FACTS = corpus.HERE / "product_flops.json"
COMMAND = "XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.oracle.record_flops"


def numbers(text):
    return [int(n) for n in text.strip("{}").split(",") if n]


def product_flops(hlo):
    """2 * (elements of the result) * (elements summed into each), over all products of a step.

    >>> product_flops('''ENTRY %f () -> f32[] {
    ...   %a = f32[4,3] parameter(0)
    ...   %b = f32[3,2] parameter(1)
    ...   ROOT %c = f32[4,2]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    ... }''')
    48
    >>> product_flops('''ENTRY %f () -> f32[] {
    ...   %a = f32[1,8,3] parameter(0)
    ...   %k = f32[5,3,2] parameter(1)
    ...   ROOT %c = f32[1,4,2] convolution(%a, %k), window={size=5}, dim_labels=b0f_0io->b0f
    ... }''')
    240
    """
    module, total = parse(hlo), 0
    for instruction, count, _ in walk(module):
        summed = _SUMMED.get(instruction.opcode)
        if summed is not None:
            here = module.computations[instruction.computation]
            shapes = [here[name].leaves[0][1] for name in instruction.operands]
            made = math.prod(instruction.leaves[0][1])
            total += 2 * made * summed(instruction.attributes, *shapes) * count
    return total


def _contracted(attributes, lhs, rhs):
    return math.prod(lhs[d] for d in numbers(attributes.get("lhs_contracting_dims", "")))


def _taps(attributes, lhs, kernel):
    labels = attributes["dim_labels"].partition("_")[2].partition("->")[0]
    return math.prod(n for n, label in zip(kernel, labels, strict=True) if label != "o")


# Of an operator, how many products are summed into an element of its result.
_SUMMED = {"dot": _contracted, "convolution": _taps}


def partitioned(name):
    """HLO text of a program right after XLA partitioned it."""
    import jax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    program = corpus.program(name)
    function, arguments, results = program.make(**program.SMALL)
    sizes, names = tuple(program.MESH.values()), tuple(program.MESH)
    devices = jax.devices()[: math.prod(sizes)]
    types = (AxisType.Auto,) * len(sizes)
    mesh = jax.make_mesh(sizes, names, axis_types=types, devices=devices)

    def place(spec):
        return None if spec is None else NamedSharding(mesh, spec)

    given = {"in_shardings": tuple(place(spec) for _, _, spec in arguments.values())}
    if results is not None:
        is_spec = {"is_leaf": lambda leaf: isinstance(leaf, PartitionSpec)}
        given["out_shardings"] = jax.tree.map(place, results, **is_spec)
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in arguments.values()]
    with jax.set_mesh(mesh):
        lowered = jax.jit(function, **given).trace(*types).lower()
    with tempfile.TemporaryDirectory() as folder:
        options = {"xla_dump_to": folder, "xla_dump_hlo_pass_re": "spmd"}
        lowered.compile(compiler_options=options)
        (dump,) = Path(folder).glob("*after_spmd-partitioning*")
        return dump.read_text()


def record():
    import jax

    flops = {}
    for partitioner in ("gspmd", "shardy"):
        jax.config.update("jax_use_shardy_partitioner", partitioner == "shardy")
        flops[f"cpu_{partitioner}"] = {
            name: product_flops(partitioned(name))
            for name in (*corpus.names(), *corpus.gradients())
        }
    return {"command": COMMAND, "jax": jax.__version__, **flops}


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    FACTS.write_text(json.dumps(record(), indent=1) + "\n")
    sys.stdout.write(FACTS.read_text())
