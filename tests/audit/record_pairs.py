"""Write `pairs.json.gz`: XLA's programs before and after partitioning, for the audit's tests.

    export XLA_FLAGS=--xla_force_host_platform_device_count=16 JAX_PLATFORMS=cpu
    python -m tests.audit.record_pairs

The programs are the recorded ones of `tests/oracle`, the ones that XLA partitions wrongly
(`tests/oracle/xla_failures.json`), and the steps of `steps.py`, with both partitioners.
"""

import gzip
import importlib.util
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import with_sharding_constraint as constrained
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import LoweringError
from shardalg.xla.audit.audit_calls import partitioned
from shardalg.xla.dump import using
from tests.audit.steps import MESH, STEPS

HERE = Path(__file__).parent
PAIRS = HERE / "pairs.json.gz"
ORACLE = HERE.parent / "oracle"


def recorded(path):
    """Return the function, arguments and layouts of a program of the oracle."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fn, args, out = module.make(**module.SMALL)
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in args.values()]
    return module.MESH, fn, types, tuple(spec for *_, spec in args.values()), out


def wrong(p):
    """Return the function and arguments of a program that XLA partitions wrongly."""

    def spec(axes):
        return P(*(tuple(a) if isinstance(a, list) else a for a in axes))

    x, w = (spec(p.get(f"{name}_spec", ())) for name in "xw")
    out = spec(p["out_spec"])

    def convolved(a, b):
        a, b = constrained(a, x), constrained(b, w)
        options = (p[k] for k in ("strides", "padding", "lhs_dilation", "rhs_dilation"))
        numbers = ("NHWC", "HWIO", "NHWC")
        return constrained(lax.conv_general_dilated(a, b, *options, dimension_numbers=numbers), out)

    def padded(a):
        config = (tuple(p["padding_config"]), (0, 0, 0))
        return constrained(lax.pad(constrained(a, x), jnp.float32(0), config), out)

    functions = {
        "pad": padded, "conv": convolved,
        "convgrad": jax.grad(lambda a, b: jnp.sin(convolved(a, b)).sum(), (0, 1)),
    }  # fmt: skip
    types = [jax.ShapeDtypeStruct(p[name], "float32") for name in "xw" if name in p]
    return p["mesh"], functions[p["kind"]], types, tuple(P() for _ in types), None


def programs():
    """Yield the name, the partitioners and the program of each pair."""
    for path in sorted((ORACLE / "cases").glob("*.py")):
        yield path.stem, ("shardy",), lambda path=path: recorded(path)
    for number, p in enumerate(json.loads((ORACLE / "xla_failures.json").read_text())["programs"]):
        if p["xla"] != "aborts the process":
            yield f"wrong_{number:02d}", ("shardy",), lambda p=p: wrong(p)
    for name, make in STEPS.items():
        yield f"step_{name}", ("shardy", "gspmd"), lambda make=make: (MESH, *make())


def short(text):
    """Return a text without the tables of source lines."""
    text = re.sub(r" stack_frame_id=\d+", "", text)
    return re.sub(r"\n\nFileNames\n.*?\n\n\n(?=[%E])", "\n\n", text, count=1, flags=re.S)


def main():
    """Compile all programs and write their texts."""
    found = {}
    for name, partitioners, make in programs():
        for partitioner in partitioners:
            mesh, fn, types, given, out = make()
            try:
                with using(partitioner):
                    dump = partitioned(fn, types, sa.Mesh(mesh), given, out)
            except (LoweringError, ValueError) as error:
                print(name, partitioner, str(error)[:100])
                continue
            if dump.before and dump.after:
                key = f"{name}.{partitioner}"
                found[key] = {"before": short(dump.before), "after": short(dump.after)}
    data = json.dumps(found, indent=0, sort_keys=True).encode()
    PAIRS.write_bytes(gzip.compress(data, 9, mtime=0))
    print(len(found), "pairs,", PAIRS.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
