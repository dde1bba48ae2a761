"""Five programs with named sizes, and four true and at least four false statements about each."""

from dataclasses import dataclass, replace
from fractions import Fraction

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import shardalg as sa


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


def i32(*shape):
    return jax.ShapeDtypeStruct(shape, "int32")


@dataclass(frozen=True)
class Program:
    """A function with named sizes, its layouts, and statements about it.

    `args` takes the sizes in the order of `sizes`. `where` are conditions on them.
    """

    fn: object
    args: object
    sizes: dict
    mesh: dict
    layouts: tuple
    roles: object
    where: list
    true: list
    false: list

    def named(self):
        """Return the plan for all sizes."""
        names = sa.dims(" ".join(self.sizes), hint=tuple(self.sizes.values()))
        names = names if isinstance(names, tuple) else (names,)
        return self._plan(self.args(*names), sa.Mesh(self.mesh, symbolic=True))

    def at(self, point):
        """Return a new plan in numbers."""
        sizes = [point.get(name, hint) for name, hint in self.sizes.items()]
        axes = {name: point.get(name, size) for name, size in self.mesh.items()}
        return self._plan(self.args(*sizes), sa.Mesh(axes))

    def number(self, statement, point):
        """Return the statement with its bound as a number at a point."""
        name = "above_bytes" if hasattr(statement, "above_bytes") else "bound"
        bound = getattr(statement, name, None)
        if not isinstance(bound, str):
            return statement
        exact = {n: Fraction(v) for n, v in {**self.sizes, **self.mesh, **point}.items()}
        return replace(statement, **{name: str(eval(bound, {}, exact))})

    def _plan(self, args, mesh):
        entering, leaving = self.layouts
        return sa.plan(
            self.fn, *args, mesh=mesh, in_shardings=entering, out_shardings=leaving,
            roles=self.roles,
        )  # fmt: skip


def momentum_step(weights, momentum, x):
    def loss(weights):
        hidden = jax.nn.relu(x @ weights["up"] + weights["bias"])
        return jnp.mean((hidden @ weights["down"]) ** 2)

    value, slopes = jax.value_and_grad(loss)(weights)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, slopes)
    return value, jax.tree.map(lambda w, m: w - 0.1 * m, weights, momentum), momentum


TWO_D = {"up": P("X", "Y"), "bias": P("Y"), "down": P("Y", "X")}
CUT_BOTH = ["X divides B", "X divides M", "Y divides M", "Y divides F", "X >= 2", "Y >= 2"]


def two_d_args(b, m, f):
    weights = {"up": f32(m, f), "bias": f32(f), "down": f32(f, m)}
    return weights, weights, f32(b, m)


MOMENTUM = Program(
    momentum_step, two_d_args, {"B": 1024, "M": 128, "F": 512}, {"X": 2, "Y": 4},
    ((TWO_D, TWO_D, P("X", "Y")), (P(), TWO_D, TWO_D)),
    ("parameters", "optimizer_state", "data"), CUT_BOTH,
    [
        sa.no("all_gather", axis="Y", role="weight"),
        sa.no(axis="Y", role="gradient", phase="backward"),
        sa.at_most(sent_bytes="8*M*F*(X-1)/(X*Y)", role="weight", axis="X", phase="forward"),
        sa.sharded("optimizer_state", "X", above_bytes="4*F"),
    ],
    [
        sa.no("all_gather", axis="Y", phase="forward"),
        sa.sharded("optimizer_state", "X"),
        sa.at_most("all_gather", executions=2, role="weight"),
        sa.at_most(peak_bytes=2**21),
    ],
)  # fmt: skip


def replicated_step(weights, x):
    def loss(weights):
        with jax.named_scope("block"):
            hidden = jnp.tanh(x @ weights["up"])
        return jnp.mean((hidden @ weights["down"]) ** 2)

    slopes = jax.grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, slopes)


DATA = Program(
    replicated_step, lambda b, m, f: ({"up": f32(m, f), "down": f32(f, m)}, f32(b, m)),
    {"B": 512, "M": 64, "F": 256}, {"X": 8},
    ((P(), P("X")), P()), ("parameters", "data"), ["X divides B", "X >= 2"],
    [
        sa.no("all_gather"),
        sa.no(phase="forward"),
        sa.at_most("all_reduce", sent_bytes="16*M*F*(X-1)/X"),
        sa.no_idle_devices(),
    ],
    [
        sa.no("all_reduce"),
        sa.sharded("parameters", "X"),
        sa.at_most(sent_bytes="8*M*F*(X-1)/X"),
        sa.at_most(step_time_s=1e-6, hardware="h100"),
    ],
)  # fmt: skip


def scanned(weights, x):
    def layer(x, w):
        return jnp.tanh(x @ w), None

    return jnp.mean(jax.lax.scan(layer, x, weights)[0] ** 2)


SCAN = Program(
    scanned, lambda b, m: (f32(8, m, m), f32(b, m)), {"B": 512, "M": 64}, {"X": 4},
    ((P(None, "X"), P("X")), P()), ("parameters", "data"),
    ["X divides B", "X divides M", "X >= 2"],
    [
        sa.some("all_gather", region="scan"),
        sa.no("reduce_scatter"),
        sa.at_most("all_gather", executions=8),
        sa.at_most("all_gather", largest_bytes="4*M*M*(X-1)/X"),
    ],
    [
        sa.no("all_gather", region="scan"),
        sa.at_most("all_gather", executions=7),
        sa.some("all_to_all"),
        sa.at_most("all_gather", largest_bytes="2*M*M*(X-1)/X"),
    ],
)  # fmt: skip


def looked_up(params, ids):
    rows = params["table"][ids]
    return jnp.mean((rows @ params["head"]) ** 2)


EMBEDDING = Program(
    looked_up, lambda b, v, m: ({"table": f32(v, m), "head": f32(m, v)}, i32(b, 16)),
    {"B": 64, "V": 1024, "M": 128}, {"X": 2, "Y": 4},
    (({"table": P("Y"), "head": P(None, "Y")}, P("X")), P()), ("parameters", "data"),
    ["X divides B", "Y divides V", "X >= 2", "Y >= 2"],
    [
        sa.at_most(held_bytes="8*V*M/Y", memory_class="parameters"),
        sa.no("all_to_all"),
        sa.no_idle_devices(),
        sa.sharded("parameters", "Y"),
    ],
    [
        sa.no("all_gather", role="weight"),
        sa.no("all_reduce", axis="Y"),
        sa.sharded("parameters", "X"),
        sa.at_most(held_bytes=1000, memory_class="parameters"),
        sa.at_most(peak_bytes=10**6),
    ],
)  # fmt: skip


def experts(weights, x):
    gates = jax.nn.softmax(x @ weights["router"])
    sent = jnp.einsum("bm,be->ebm", x, gates)
    hidden = jax.nn.relu(jnp.einsum("ebm,emf->ebf", sent, weights["up"]))
    return jnp.einsum("ebf,efm->bm", hidden, weights["down"])


EXPERTS = Program(
    experts,
    lambda b, m, f: (
        {"router": f32(m, 16), "up": f32(16, m, f), "down": f32(16, f, m)}, f32(b, m),
    ),
    {"B": 512, "M": 64, "F": 128}, {"E": 8},
    (({"router": P(), "up": P("E"), "down": P("E")}, P("E")), P("E")), ("parameters", "data"),
    ["E divides B", "E divides 16", "E >= 2"],
    [
        sa.at_most(executions=4),
        sa.no("all_reduce"),
        sa.at_most("all_gather", sent_bytes="128*M*F*(E-1)/E", axis="E"),
        sa.at_most(held_bytes="4*M*16+8*16*M*F/E", memory_class="parameters"),
    ],
    [
        sa.some("all_gather", role="weight"),
        sa.no("all_gather", role="weight"),
        sa.no(axis="E"),
        sa.sharded("parameters", "E"),
        sa.at_most("all_gather", sent_bytes="128*M*F/E", axis="E"),
    ],
)  # fmt: skip

PROGRAMS = {
    "momentum": MOMENTUM, "data": DATA, "scan": SCAN, "embedding": EMBEDDING, "experts": EXPERTS,
}  # fmt: skip
