"""Record the halos that XLA exchanges: `python -m tests.oracle.record_halos`.

Random convolutions over one sharded dimension, even and uneven, on 2, 4 and 8 devices, many to a
program. What the partitioner sends is read off the program right after it
(`*after_spmd-partitioning*`): a collective-permute to higher partitions carries left halos, one to
lower partitions right halos, and the batch size of a convolution tells whose they are. Written
beside this file as halos.json; the tests compare offline.
"""

import json
import os
import re
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from shardalg.algebra.halos.window import Window

FACTS = Path(__file__).parent / "halos.json"
COMMAND = "XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.oracle.record_halos"
SEED = 210504663
PROGRAMS, PER_PROGRAM = 54, 30
FIRST_BATCH = 1000  # batch sizes from here on are in no other dimension
COLUMNS = ("parts", "size", "window", "left", "right")

_COLLECTIVE = re.compile(r"f32\[([\d,]+)\]\S* (collective-permute|all-gather|all-to-all)\((.*)")
_PAIR = re.compile(r"\{(\d+),(\d+)\}")


def random_case(rng, parts):
    """Draw a window and a size such that every partition has elements and outputs."""
    while True:
        size = int(rng.integers(3 * parts, 10 * parts))
        size -= size % parts if rng.integers(2) else 0
        window = Window(
            size=int(rng.integers(1, 8)),
            stride=int(rng.choice([1, 1, 2, 3])),
            padding_low=int(rng.integers(-2, 6)),
            padding_high=int(rng.integers(-2, 6)),
            base_dilation=int(rng.choice([1, 1, 1, 2, 3])),
            window_dilation=int(rng.choice([1, 1, 2, 3])),
        )
        # XLA's partitioner aborts the process on a negative low padding of a dilated base.
        aborts = window.padding_low < 0 and window.base_dilation > 1
        full = -(-size // parts) * (parts - 1) < size and window.out_size(size) >= parts
        if full and not aborts:
            return size, window


def halos(hlo, count):
    """Per convolution of a program: summed widths to higher and to lower partitions.

    None where the partitioner gathered, or moved whole blocks otherwise.

    >>> halos('''%a = f32[1000,2,1]{2,1,0} collective-permute(%x), source_target_pairs={{0,1}}
    ... %b = f32[1000,3,1]{2,1,0} collective-permute(%x), source_target_pairs={{1,0}}
    ... %c = f32[1001,8,1]{2,1,0} all-gather(%y), dimensions={1}''', 3)
    [(2, 3), None, (0, 0)]
    """
    widths, gathered = defaultdict(Counter), set()
    for shape, kind, rest in _COLLECTIVE.findall(hlo):
        sizes = [int(n) for n in shape.split(",")]
        batch = next((n for n in sizes if n >= FIRST_BATCH), None)
        if batch is None:
            continue
        if kind != "collective-permute":
            gathered.add(batch)
            continue
        source, target = (int(n) for n in _PAIR.search(rest).groups())
        widths[batch][target > source] += int(np.prod(sizes)) // batch
    batches = range(FIRST_BATCH, FIRST_BATCH + count)
    return [None if b in gathered else (widths[b][True], widths[b][False]) for b in batches]


def partitioned(cases, parts):
    """HLO text of one program with all the convolutions, right after XLA partitioned it."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    devices = jax.devices()[:parts]
    mesh = jax.make_mesh((parts,), ("x",), axis_types=(AxisType.Auto,), devices=devices)
    split = NamedSharding(mesh, PartitionSpec(None, "x", None))

    def convolved(nth, image, kernel):
        size, w = cases[nth]
        # JAX constrains even arrays only: an uneven one is cut out of one with equal blocks.
        image = jnp.sin(jax.lax.with_sharding_constraint(image, split)[:, :size, :])
        found = jax.lax.conv_general_dilated(
            image,
            kernel,
            (w.stride,),
            [(w.padding_low, w.padding_high)],
            lhs_dilation=(w.base_dilation,),
            rhs_dilation=(w.window_dilation,),
            dimension_numbers=("NHC", "HIO", "NHC"),
        )
        return jnp.sum(jnp.sin(found))

    def program(images, kernels):
        pairs = zip(images, kernels, strict=True)
        return sum(convolved(nth, *pair) for nth, pair in enumerate(pairs))

    images = [
        jax.ShapeDtypeStruct((FIRST_BATCH + nth, -(-size // parts) * parts, 1), "float32")
        for nth, (size, _) in enumerate(cases)
    ]
    kernels = [jax.ShapeDtypeStruct((w.size, 1, 1), "float32") for _, w in cases]
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "xla_dump_to": folder,
            "xla_dump_hlo_pass_re": "spmd",
            "xla_backend_optimization_level": 0,
        }
        jax.jit(program).lower(images, kernels).compile(compiler_options=options)
        (dump,) = Path(folder).glob("*after_spmd-partitioning*")
        return dump.read_text()


def record(programs=PROGRAMS, count=PER_PROGRAM):
    import jax

    jax.config.update("jax_use_shardy_partitioner", False)
    rng, rows = np.random.default_rng(SEED), []
    for nth in range(programs):
        parts = (2, 4, 8)[nth % 3]
        cases = [random_case(rng, parts) for _ in range(count)]
        answers = halos(partitioned(cases, parts), count)
        for (size, w), answer in zip(cases, answers, strict=True):
            fields = (
                w.size, w.stride, w.padding_low, w.padding_high, w.base_dilation, w.window_dilation,
            )  # fmt: skip
            rows.append((parts, size, fields, *(answer or (None, None))))
        sys.stderr.write(f"{nth + 1} of {programs} programs\n")
    return {"command": COMMAND, "jax": jax.__version__, "columns": COLUMNS, "rows": rows}


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    found = record(*map(int, sys.argv[1:]))
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in found.pop("rows"))
    head = json.dumps(found, indent=1).removesuffix("\n}")
    FACTS.write_text(f'{head},\n "rows": [\n{lines}\n]}}\n')
