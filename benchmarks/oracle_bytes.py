"""Our wire bytes and flops of products per device beside XLA's, on the recorded programs.

Each program is planned on its own mesh with its own specs, its results where XLA put them. XLA's
bytes are those right after its partitioner ran, an all-reduce of which only a slice is read
counted as the reduce-scatter that TPU and GPU make of it; its flops are those of the matrix
products and convolutions it then executes (tests/oracle/README.md, tests/oracle/record_flops.py).
"""

import functools
import json
import math
import types
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import shardalg as sa
from shardalg.costs.collectives import wire_bytes
from shardalg.costs.compute import node_flops, signature_local_flops
from shardalg.costs.walk import sent_bytes, walk
from shardalg.graph.ops.families.building import record
from shardalg.spmd.instruction import Collective
from shardalg.spmd.instructions import Apply
from tests.oracle import corpus
from tests.oracle.record_flops import FACTS

PRODUCTS = ("dot_general", "conv_general_dilated")
NAMES = corpus.names("einsum", "ffn", "attention", "stack")
"""Programs of matrix products, whose XLA twins are compared most closely."""


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
        """Return XLA's shardings of the results; the recording has them as text."""
        recorded = corpus.facts(self.name)[compiler]["output_shardings"]
        specs = [eval(text, {"P": PartitionSpec}) for text in recorded]
        return specs[0] if len(specs) == 1 else tuple(specs)


@functools.cache
def case(name, dtype="bfloat16", **sizes):
    """Return a program of the corpus; `dtype="float32"` replaces all of its bfloat16.

    Args:
      sizes: those that are not its small ones.
    """
    program = corpus.program(name)
    source = Path(program.__file__).read_text()
    module = types.ModuleType(f"case_{name}_{dtype}")
    code = compile(source.replace("jnp.bfloat16", f"jnp.{dtype}"), program.__file__, "exec")
    exec(code, module.__dict__)
    function, arguments, _ = module.make(**(module.SMALL | sizes))
    return Case(name, function, arguments, sa.Mesh(module.MESH))


@functools.cache
def plan(name, dtype="bfloat16", keep_gathers=False, compiler="cpu_gspmd"):
    """Our plan of a program, its results where that compiler put them."""
    return plan_of(case(name, dtype), sa.Options(keep_gathers=keep_gathers), compiler)


def plan_of(chosen, options, compiler="cpu_gspmd"):
    """Our plan of a case."""
    return sa.plan(
        chosen.function,
        *chosen.types,
        mesh=chosen.mesh,
        in_shardings=chosen.in_shardings,
        out_shardings=chosen.out_shardings(compiler),
        options=options,
    )


def our_wire_bytes(program):
    """Bytes that a device sends in a step of a plan's program."""
    return sum(
        step.count * wire_bytes(step.instruction.attributes, sent_bytes(program, step.instruction))
        for step in walk(program)
        if isinstance(step.instruction.attributes, Collective)
    )


def our_product_flops(program, graph):
    """Flops of the products that a device executes in a step, padding included."""
    total = 0
    for step in walk(program):
        node, attributes = step.instruction.node, step.instruction.attributes
        if type(attributes) is Apply and node is not None:
            signature = graph.nodes[node].signature
            if attributes.primitive == signature.primitive and signature.primitive in PRODUCTS:
                total += step.count * _executed(program, step.instruction, signature)
    return total


def _executed(program, instruction, signature):
    """Return the flops of a convolution over all taps, those in padding too, as XLA counts."""
    numbers = signature.param("dimension_numbers")
    if signature.primitive != "conv_general_dilated":
        return signature_local_flops(signature, instruction.attributes.loops)
    kernel = program.locals[instruction.operands[1]].shape
    _, (features, *_), _ = record(numbers, "lhs rhs out").values()
    made = program.locals[instruction.results[0]].shape
    return 2 * math.prod(made) * math.prod(kernel) // kernel[features]


def global_dot_flops(graph):
    """Flops of the matrix products of a function on one device."""
    return sum(node_flops(graph, node) for node in graph.walk() if node.primitive in PRODUCTS)


def compare(name, compiler="cpu_gspmd"):
    """One row: bytes and flops of products of a device and step, ours beside XLA's.

    `kept_wire_bytes` are ours when an operand gathered in the forward pass is kept for the
    backward pass, as XLA keeps it (common subexpressions); the default gathers it again and frees
    it in between (the paper's section 5.1).
    """
    made, kept = (plan(name, keep_gathers=keep, compiler=compiler) for keep in (False, True))
    ours, least = (float(our_wire_bytes(p.program)) for p in (made, kept))
    flops, xla = our_product_flops(made.program, made.graph), corpus.wire_bytes(name, compiler)
    xla_flops = json.loads(FACTS.read_text())[compiler][name]
    return {
        "program": name,
        "topic": corpus.topic(name),
        "wire_bytes": ours,
        "kept_wire_bytes": least,
        "xla_wire_bytes": float(xla),
        "bytes_ratio": ratio(ours, xla),
        "kept_bytes_ratio": ratio(least, xla),
        "product_flops": flops,
        "xla_product_flops": xla_flops,
        "flops_ratio": ratio(flops, xla_flops),
        "why": why(made, name, compiler),
    }


def why(plan, name, compiler):
    """Return the differences from XLA's traffic, by kind and operator.

    Said too where XLA warns that it replicates a tensor in order to reshard it, and where its
    result is not that of one device.
    """
    theirs, facts = defaultdict(Counter), corpus.facts(name)[compiler]
    for sent in facts.get("spmd", {"collectives": ()})["collectives"]:
        kind = "reduce_scatter" if sent.get("sliced_by", 1) > 1 else sent["kind"].replace("-", "_")
        op = sent["op_name"].rsplit("/", 1)[-1] or "border"
        theirs[kind][op] += corpus.ring_bytes(sent) * sent["mult"]
    said = [text for text in (sent_otherwise(plan, theirs),) if text]
    said += ["XLA replicates a tensor to reshard it"] * bool(facts.get("involuntary_remat"))
    wrong = corpus.facts(name)["numerics"].get("xla_correct") is False
    return "; ".join([*said, *["XLA's result is wrong"] * wrong])


def sent_otherwise(plan, theirs):
    """Return the differences in bytes, by kind and operator: ours, then the given ones."""
    ours = defaultdict(Counter)
    for row in plan.collectives_table:
        ours[row["kind"]][row["op"]] += row["wire_bytes"] * row["executions"]
    return "; ".join(
        f"{kind} {_sent(ours[kind])}, XLA {_sent(theirs[kind])}"
        for kind in sorted({*ours, *theirs})
        if ours[kind].total() != theirs[kind].total()
    )


def _sent(by_op):
    ops = [op for op, sent in by_op.most_common() if sent]
    return f"{float(by_op.total()):g} ({', '.join(ops)})" if ops else "0"


def ratio(ours, theirs):
    return ours / theirs if theirs else 1.0 if not ours else math.inf


def table(names=NAMES, compiler="cpu_gspmd"):
    """Return a row per program; without names, the programs of matrix products."""
    return sa.Table.from_records(compare(name, compiler) for name in names)


def arguments(name, dtype="float32", seed=0):
    """Random global arguments of a program."""
    return drawn(case(name, dtype), seed)


def drawn(chosen, seed=0):
    """Random global arguments of a case."""
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal(t.shape) * 0.3, t.dtype) for t in chosen.types]


def one_device(name, values, dtype="float32"):
    """Return the program's results on one device."""
    chosen = case(name, dtype)
    sizes = (1,) * len(chosen.mesh.axis_names)
    auto = (jax.sharding.AxisType.Auto,) * len(sizes)
    mesh = jax.make_mesh(sizes, chosen.mesh.axis_names, axis_types=auto, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        return jax.tree.leaves(jax.jit(chosen.function)(*values))


def main():
    print(table(corpus.names()))


if __name__ == "__main__":
    main()
