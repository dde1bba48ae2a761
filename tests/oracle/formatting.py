"""Data formatting as users write it, and what XLA sends: `python -m tests.oracle.formatting`.

Every argument is constrained to a layout on four devices, and every result; what does not divide
comes in or goes out whole. Recorded beside this file as formatting.json: wire bytes per device
right after partitioning, by XLA's own partitioner.
"""

import json
import math
import os
import sys

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from tests.oracle import corpus

FACTS = corpus.HERE / "formatting.json"
COMMAND = "XLA_FLAGS=--xla_force_host_platform_device_count=4 python -m tests.oracle.formatting"
MESH = sa.Mesh({"x": 4})
ROWS, COLUMNS, WHOLE = P("x"), P(None, "x"), P()
SQUARE = (16, 8)

# name: (function, shapes, layouts of the arguments, of the results)
PROGRAMS = {
    "roll": (lambda x: jnp.roll(x, 3, 0), [SQUARE], [ROWS], ROWS),
    "roll by blocks": (lambda x: jnp.roll(x, 9, 0), [SQUARE], [ROWS], ROWS),
    "roll uneven": (lambda x: jnp.roll(x, 3, 0), [(18, 8)], [ROWS], ROWS),
    "tile": (lambda x: jnp.tile(x, (2, 1)), [SQUARE], [ROWS], ROWS),
    "tile thrice": (lambda x: jnp.tile(x, (3, 1)), [SQUARE], [ROWS], ROWS),
    "repeat": (lambda x: jnp.repeat(x, 2, 0), [SQUARE], [ROWS], ROWS),
    "repeat uneven": (lambda x: jnp.repeat(x, 3, 0), [(10, 8)], [ROWS], ROWS),
    "blocks reversed": (
        lambda x: jnp.concatenate(jnp.split(x, 4, 0)[::-1], 0), [SQUARE], [ROWS], ROWS,
    ),
    "halves swapped": (lambda x: jnp.concatenate([x[8:], x[:8]], 0), [SQUARE], [ROWS], ROWS),
    "shift by pad and slice": (
        lambda x: jnp.pad(x, ((1, 0), (0, 0)))[:-1], [SQUARE], [ROWS], ROWS,
    ),
    "shift by slice and pad": (
        lambda x: jnp.pad(x[:-1], ((1, 0), (0, 0))), [SQUARE], [ROWS], ROWS,
    ),
    "shift of a stage": (
        lambda a, b: jnp.concatenate([a[None], b[:-1]], 0), [(8,), SQUARE], [WHOLE, ROWS], ROWS,
    ),
    "shift of two": (
        lambda a, b: jnp.concatenate([a[:1], b[:-1]], 0), [SQUARE, SQUARE], [ROWS, ROWS], ROWS,
    ),
    "concatenate": (
        lambda a, b: jnp.concatenate([a, b], 0), [SQUARE, SQUARE], [ROWS, ROWS], ROWS,
    ),
    "concatenate uneven": (
        lambda a, b: jnp.concatenate([a, b], 0), [(9, 8), (13, 8)], [ROWS, ROWS], ROWS,
    ),
    "insert": (
        lambda a, b: jnp.concatenate([a[:5], b, a[5:]], 0), [SQUARE, (3, 8)], [ROWS, WHOLE], ROWS,
    ),
    "cut out": (lambda a: jnp.concatenate([a[:5], a[7:]], 0), [SQUARE], [ROWS], ROWS),
    "rotary halves": (
        lambda a: jnp.concatenate([-a[..., 8:], a[..., :8]], -1), [(4, 16)], [COLUMNS], COLUMNS,
    ),
    "split": (lambda a: jnp.split(a, 2, 0), [SQUARE], [ROWS], ROWS),
    "slice": (lambda a: a[3:13], [SQUARE], [ROWS], ROWS),
    "every third": (lambda a: a[1::3], [SQUARE], [ROWS], ROWS),
    "a row": (lambda a: a[5], [SQUARE], [ROWS], WHOLE),
    "flip": (lambda a: jnp.flip(a, 0), [(14, 8)], [ROWS], ROWS),
    "pad": (lambda a: jnp.pad(a, ((2, 2), (0, 0))), [SQUARE], [ROWS], ROWS),
    "pad between": (lambda a: lax.pad(a, 0.0, ((0, 0, 1), (0, 0, 0))), [SQUARE], [ROWS], ROWS),
    "pad by wrapping": (
        lambda a: jnp.pad(a, ((1, 1), (0, 0)), mode="wrap"), [SQUARE], [ROWS], ROWS,
    ),
    "stencil": (lambda a: a[:-2] + a[2:] - 2 * a[1:-1], [(18, 8)], [ROWS], ROWS),
    "merge uneven": (lambda a: a.reshape(24), [(6, 4)], [ROWS], ROWS),
    "split uneven": (lambda a: a.reshape(6, 4), [(24,)], [ROWS], ROWS),
    "not nested": (lambda a: a.reshape(4, 6), [(6, 4)], [ROWS], ROWS),
    "mean of triples": (lambda a: a.reshape(6, 3, 4).mean(1), [(18, 4)], [ROWS], ROWS),
}  # fmt: skip


def divides(shape, spec):
    """Whether JAX takes the layout at a program's border."""
    return all(axis is None or size % 4 == 0 for size, axis in zip(shape, spec, strict=False))


def program(name):
    """The function with its layouts inside, its arguments, and the layouts at the border."""
    fn, shapes, specs, wanted = PROGRAMS[name]

    def constrained(*xs):
        xs = [lax.with_sharding_constraint(x, s) for x, s in zip(xs, specs, strict=True)]
        return jax.tree.map(lambda y: lax.with_sharding_constraint(y, wanted), fn(*xs))

    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    given = tuple(s if divides(shape, s) else WHOLE for shape, s in zip(shapes, specs, strict=True))
    results = jax.eval_shape(fn, *types)
    made = jax.tree.map(lambda y: wanted if divides(y.shape, wanted) else WHOLE, results)
    return constrained, types, {"in_shardings": given, "out_shardings": made}


def xla_wire_bytes(name):
    """What XLA's partitioner makes a device send."""
    from shardalg.lower.hlo import compile_with_collectives, total_wire_bytes

    function, types, layouts = program(name)
    auto = (jax.sharding.AxisType.Auto,)
    devices = jax.devices()[: math.prod(MESH.sizes.values())]
    mesh = jax.make_mesh((4,), ("x",), axis_types=auto, devices=devices)
    with jax.set_mesh(mesh):
        lowered = jax.jit(function, **layouts).trace(*types).lower()
        _, sent = compile_with_collectives(lowered, MESH)
    return total_wire_bytes(sent)


def main():
    jax.config.update("jax_use_shardy_partitioner", False)
    found = {name: xla_wire_bytes(name) for name in PROGRAMS}
    facts = {"command": COMMAND, "jax": jax.__version__, "wire_bytes": found}
    FACTS.write_text(json.dumps(facts, indent=1) + "\n")
    sys.stdout.write(FACTS.read_text())


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
