"""Our wire bytes and products per device beside XLA's, on the recorded programs.

Each program is planned on its own mesh with its own specs, its results where XLA put them. XLA's
bytes are those right after its partitioner ran, an all-reduce of which only a slice is read
counted as the reduce-scatter that TPU and GPU make of it; its flops are those of the matrix
products it then executes (tests/oracle/README.md, tests/oracle/record_flops.py).
"""

import functools
import json
import math
import types
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import shardalg as sa
from shardalg.costs.collectives import KINDS, wire_bytes
from shardalg.costs.compute import contracts, node_flops, signature_local_flops
from shardalg.costs.walk import sent_bytes, walk
from shardalg.spmd.program import Apply
from tests.oracle import corpus
from tests.oracle.record_flops import FACTS, TOPICS

NAMES = corpus.names(*TOPICS)


@dataclass(frozen=True)
class Case:
    """A recorded program: the function, its arguments, and all it needs to be planned."""

    name: str
    function: object
    arguments: dict
    mesh: sa.Mesh

    @property
    def types(self):
        return [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in self.arguments.values()]

    @property
    def in_shardings(self):
        return tuple(spec for _, _, spec in self.arguments.values())

    def out_shardings(self, compiler):
        """Where XLA put the results; the recording has them as text."""
        recorded = corpus.facts(self.name)[compiler]["output_shardings"]
        specs = [eval(text, {"P": PartitionSpec}) for text in recorded]
        return specs[0] if len(specs) == 1 else tuple(specs)


@functools.cache
def case(name, dtype="bfloat16"):
    """A program of the corpus; `dtype="float32"` replaces all of its bfloat16."""
    program = corpus.program(name)
    source = (corpus.HERE / "cases" / f"{name}.py").read_text()
    module = types.ModuleType(f"case_{name}_{dtype}")
    code = compile(source.replace("jnp.bfloat16", f"jnp.{dtype}"), program.__file__, "exec")
    exec(code, module.__dict__)
    function, arguments, _ = module.make(**module.SMALL)
    return Case(name, function, arguments, sa.Mesh(module.MESH))


@functools.cache
def plan(name, dtype="bfloat16", keep_gathers=False, compiler="cpu_gspmd"):
    """Our plan of a program, its results where that compiler put them."""
    chosen = case(name, dtype)
    return sa.plan(
        chosen.function,
        *chosen.types,
        mesh=chosen.mesh,
        in_shardings=chosen.in_shardings,
        out_shardings=chosen.out_shardings(compiler),
        options=sa.Options(keep_gathers=keep_gathers),
    )


def our_wire_bytes(program):
    """Bytes that a device sends in a step of a plan's program."""
    return sum(
        step.count
        * wire_bytes(step.instruction.attributes, sent_bytes(program, step.instruction))
        for step in walk(program)
        if type(step.instruction.attributes) in KINDS
    )


def our_dot_flops(program, graph):
    """Flops of the matrix products that a device executes in a step, padding included."""
    total = 0
    for step in walk(program):
        node, attributes = step.instruction.node, step.instruction.attributes
        if type(attributes) is Apply and node is not None:
            signature = graph.nodes[node].signature
            if attributes.primitive == signature.primitive and contracts(signature):
                total += step.count * signature_local_flops(signature, attributes.loops)
    return total


def global_dot_flops(graph):
    """Flops of the matrix products of a function on one device."""
    return sum(node_flops(graph, node) for node in graph.walk() if contracts(node.signature))


def compare(name, compiler="cpu_gspmd"):
    """One row: bytes and product flops of a device and step, ours beside XLA's.

    `kept_wire_bytes` are ours when an operand gathered in the forward pass is kept for the
    backward pass, as XLA keeps it (common subexpressions); the default gathers it again and frees
    it in between (the paper's section 5.1).
    """
    made, kept = (plan(name, keep_gathers=keep, compiler=compiler) for keep in (False, True))
    ours, least = (float(our_wire_bytes(p.program)) for p in (made, kept))
    flops, xla = our_dot_flops(made.program, made.graph), corpus.wire_bytes(name, compiler)
    xla_flops = json.loads(FACTS.read_text())[compiler][name]
    return {
        "program": name,
        "wire_bytes": ours,
        "kept_wire_bytes": least,
        "xla_wire_bytes": float(xla),
        "bytes_ratio": ratio(ours, xla),
        "kept_bytes_ratio": ratio(least, xla),
        "dot_flops": flops,
        "xla_dot_flops": xla_flops,
        "flops_ratio": ratio(flops, xla_flops),
    }


def ratio(ours, theirs):
    return ours / theirs if theirs else 1.0 if not ours else math.inf


def table(compiler="cpu_gspmd"):
    """All programs of the topics einsum, ffn, attention and stack."""
    return sa.Table.from_records(compare(name, compiler) for name in NAMES)


def arguments(name, dtype="float32", seed=0):
    """Random global arguments of a program."""
    rng = np.random.default_rng(seed)
    structs = case(name, dtype).types
    return [jnp.asarray(rng.standard_normal(t.shape) * 0.3, t.dtype) for t in structs]


def one_device(name, values, dtype="float32"):
    """What the program gives on one device."""
    chosen = case(name, dtype)
    sizes = (1,) * len(chosen.mesh.axis_names)
    auto = (jax.sharding.AxisType.Auto,) * len(sizes)
    mesh = jax.make_mesh(sizes, chosen.mesh.axis_names, axis_types=auto, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        return jax.tree.leaves(jax.jit(chosen.function)(*values))


def main():
    print(table())


if __name__ == "__main__":
    main()
