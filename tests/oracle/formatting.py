"""Data formatting in users' programs, and XLA's traffic: `python -m tests.oracle.formatting`.

Every argument is constrained to a layout on four devices, and every result; what does not divide
comes in or goes out whole. Recorded beside this file as formatting.json: wire bytes per device
right after partitioning, by XLA's own partitioner, and how many instructions its program then has
that cut, pad, join or select, the function's own among them.
"""

import json
import math
import os
import sys
from collections import Counter

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs.walk import walk as steps
from shardalg.lower.xla_dump.hlo_collectives import Dumping, collectives, total_wire_bytes
from shardalg.lower.xla_dump.hlo_text import parse, walk
from shardalg.spmd import instructions as p
from tests.oracle import corpus

FACTS = corpus.HERE / "formatting.json"
COMMAND = "XLA_FLAGS=--xla_force_host_platform_device_count=4 python -m tests.oracle.formatting"
MESH = sa.Mesh({"x": 4})
ROWS, COLUMNS, WHOLE = P("x"), P(None, "x"), P()
SQUARE = (16, 8)
XLA_KINDS = ("concatenate", "dynamic-slice", "dynamic-update-slice", "pad", "select", "slice")
OUR_KINDS = (
    p.Concatenate,
    p.Dilate,
    p.DynamicSlice,
    p.Mask,
    p.MaskAt,
    p.Resize,
    p.Slice,
    p.SliceAt,
)
NOTHING = {
    "slice": lambda a: True,
    "pad": lambda a: not any(map(any, dict(a.params).get("padding_config", ((1,),)))),
}
PRIMITIVES = ("concatenate", "dynamic_slice", "dynamic_update_slice", "pad", "select_n", "slice")


def conv(x, w):
    return lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC"))


def convolved(x, w1, b, w2):
    return jax.nn.relu(conv(jax.nn.relu(conv(x, w1) + b), w2))


def attention(q, k, v):
    return jax.nn.softmax(q @ k.T, -1) @ v


def normalised(x, w):
    h = x @ w
    centred = h - h.mean(1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(1, keepdims=True) + 1e-5)


def feed_forward(x, w1, b, w2):
    return jax.nn.gelu(x @ w1 + b) @ w2


def pipelined(x, w):
    def stage(state, x):
        state = jnp.concatenate([x[None], state[:-1]], 0)
        state = jnp.tanh(jnp.einsum("lm,lmn->ln", state, w))
        return state, state[-1]

    return lax.scan(stage, jnp.zeros(w.shape[:2]), x)[1]


def gradient(fn, *argnums):
    """Return the gradient of the sum of squares of `fn`'s results."""
    return jax.grad(lambda *xs: (fn(*xs) ** 2).sum(), argnums)


UNEVEN_CONV = [(2, 30, 4), (3, 4, 8), (8,), (3, 8, 8)], [P(None, "x"), WHOLE, WHOLE, WHOLE]
UNEVEN_ATTENTION = [(12, 8), (30, 8), (30, 8)], [WHOLE, ROWS, ROWS]
UNEVEN_NORMALISATION = [(12, 30), (30, 30)], [COLUMNS, ROWS]
UNEVEN_FEED_FORWARD = [(12, 8), (8, 30), (30,), (30, 8)], [WHOLE, COLUMNS, ROWS, ROWS]

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
    "shift of what is made of it": (
        lambda x: jnp.pad(jnp.tanh(x[1:]), ((0, 1), (0, 0))), [SQUARE], [ROWS], ROWS,
    ),
    "convolutions": (convolved, *UNEVEN_CONV, P(None, "x")),
    "convolutions, gradient": (gradient(convolved, 1, 2, 3), *UNEVEN_CONV, WHOLE),
    "attention": (attention, *UNEVEN_ATTENTION, WHOLE),
    "attention, gradient": (gradient(attention, 1, 2), *UNEVEN_ATTENTION, ROWS),
    "normalisation": (normalised, *UNEVEN_NORMALISATION, COLUMNS),
    "normalisation, gradient": (gradient(normalised, 1), *UNEVEN_NORMALISATION, ROWS),
    "feed-forward": (feed_forward, *UNEVEN_FEED_FORWARD, WHOLE),
    "feed-forward, gradient": (gradient(feed_forward, 1, 3), *UNEVEN_FEED_FORWARD, WHOLE),
    "running sum": (lambda x: jnp.cumsum(jnp.tanh(x), 0), [(30, 8)], [ROWS], ROWS),
    "running sum from the end": (
        lambda x: lax.cumsum(jnp.tanh(x), 0, reverse=True), [(30, 8)], [ROWS], ROWS,
    ),
    "pipeline": (pipelined, [(6, 8), (4, 8, 8)], [WHOLE, ROWS], WHOLE),
}  # fmt: skip


def divides(shape, spec):
    """Return True if JAX accepts the sharding at a program's border."""
    return all(axis is None or size % 4 == 0 for size, axis in zip(shape, spec, strict=False))


def program(name):
    """Return the function with shardings inside, its arguments, and the border's shardings."""
    fn, shapes, specs, wanted = PROGRAMS[name]

    def constrained(*xs):
        xs = [lax.with_sharding_constraint(x, s) for x, s in zip(xs, specs, strict=True)]
        return jax.tree.map(lambda y: lax.with_sharding_constraint(y, wanted), fn(*xs))

    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    given = tuple(s if divides(shape, s) else WHOLE for shape, s in zip(shapes, specs, strict=True))
    results = jax.eval_shape(fn, *types)
    made = jax.tree.map(lambda y: wanted if divides(y.shape, wanted) else WHOLE, results)
    return constrained, types, {"in_shardings": given, "out_shardings": made}


def recorded():
    """Return XLA's results for the programs."""
    return json.loads(FACTS.read_text())


def xla_program(name):
    """Return the program of XLA's partitioner as text."""
    function, types, layouts = program(name)
    auto = (jax.sharding.AxisType.Auto,)
    devices = jax.devices()[: math.prod(MESH.sizes.values())]
    mesh = jax.make_mesh((4,), ("x",), axis_types=auto, devices=devices)
    with jax.set_mesh(mesh), Dumping() as dumping:
        stage = jax.jit(function, **layouts).trace(*types).lower()
        stage.compile(compiler_options=dumping.options)
        return dumping.read().after


def xla_instructions(text):
    """Return how many instructions of each kind XLA's program executes."""
    found = Counter()
    for instruction, count, _ in walk(parse(text)):
        if instruction.opcode in XLA_KINDS:
            found[instruction.opcode] += count
    return dict(sorted(found.items()))


def our_instructions(plan):
    """Return how many of these ours executes; a choice among n pieces counts n - 1 selects.

    What is left of a slice or a pad whose window is brought to the device is none.
    """
    total = 0
    for step in steps(plan.program):
        a = step.instruction.attributes
        own = isinstance(a, OUR_KINDS)
        if isinstance(a, p.Apply) and a.primitive in PRIMITIVES:
            ends = step.instruction.operands[0], step.instruction.results[0]
            before, after = (plan.program.locals[local].shape for local in ends)
            own = before != after or not NOTHING.get(a.primitive, lambda a: False)(a)
        total += step.count * (len(a.sizes) - 1 if isinstance(a, p.Choose) else own)
    return total


def main():
    jax.config.update("jax_use_shardy_partitioner", False)
    texts = {name: xla_program(name) for name in PROGRAMS}
    sent = {name: total_wire_bytes(collectives(text, MESH)) for name, text in texts.items()}
    made = {name: xla_instructions(text) for name, text in texts.items()}
    facts = {"command": COMMAND, "jax": jax.__version__, "wire_bytes": sent, "instructions": made}
    FACTS.write_text(json.dumps(facts, indent=1) + "\n")
    sys.stdout.write(FACTS.read_text())


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
