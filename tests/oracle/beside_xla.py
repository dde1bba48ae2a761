"""Our wire bytes and flops of products beside XLA's on programs that a seed draws, asked live.

    python -m tests.oracle.beside_xla 60 1000    # 60 programs from seed 1000 on, a row each
    python -m tests.oracle.beside_xla record     # what the suite reads: siblings.json

XLA (its GSPMD partitioner, CPU devices) completes what has no annotation, the results' layouts
among it; ours is planned with the results where XLA put them. A row says what a device sends and
computes in a step, ours over XLA's; the bytes with gathers kept from the forward pass for the
backward pass, as XLA keeps them, and by default, gathered again.
"""

import json
import math
import os
import sys
from dataclasses import dataclass

import jax
from jax.sharding import NamedSharding, PartitionSpec

import shardalg as sa
from benchmarks.oracle_bytes import our_product_flops, our_wire_bytes, ratio
from benchmarks.result import geometric_mean
from shardalg.beside.dump import using
from shardalg.lower.hlo import Dumping, collectives, total_wire_bytes
from tests.oracle import corpus, siblings
from tests.oracle.record_flops import product_flops

FACTS = corpus.HERE / "siblings.json"
COMMAND = "make xla-bytes BYTES=record"
RECORDED = (60, 0)
"""How many programs the suite knows, and their first seed."""


@dataclass(frozen=True)
class Told:
    """What XLA made of a program.

    Attributes:
      results: layout per result, as the text of a PartitionSpec; "" where none says it.
    """

    wire_bytes: int
    product_flops: int
    results: tuple[str, ...]

    @property
    def out_shardings(self):
        """Where XLA put the results."""
        names = {"PartitionSpec": PartitionSpec, "P": PartitionSpec}
        return [eval(text, names) for text in self.results]


def ask(program):
    """XLA's answer; None where JAX takes no program with such results."""
    mesh = sa.Mesh(program.mesh)
    devices = mesh.to_jax(jax.devices()[: mesh.size])
    given = tuple(s if s is None else NamedSharding(devices, s) for s in program.specs)
    with using("gspmd"), jax.set_mesh(devices), Dumping() as dumping:
        stage = jax.jit(program.function, in_shardings=given).lower(*program.types)
        try:
            compiled = stage.compile(compiler_options=dumping.options)
        except jax.errors.JaxRuntimeError:
            return None
        except ValueError:  # a result that its layout does not divide
            return None
        text = dumping.read().after
    results = tuple(map(_text, jax.tree.leaves(compiled.output_shardings)))
    if text is None:
        return Told(0, 0, results)
    return Told(total_wire_bytes(collectives(text, mesh)), product_flops(text), results)


def _text(sharding):
    if isinstance(sharding, NamedSharding):
        return repr(sharding.spec)
    return "PartitionSpec()" if sharding.is_fully_replicated else "None"


def plan(program, told, *, keep_gathers):
    """Ours, its results where XLA put them."""
    mesh = sa.Mesh(program.mesh)
    with jax.set_mesh(mesh.to_jax(jax.devices()[: mesh.size])):
        results = jax.tree.structure(jax.eval_shape(program.function, *program.types))
    return sa.plan(
        program.function,
        *program.types,
        mesh=mesh,
        in_shardings=program.specs,
        out_shardings=jax.tree.unflatten(results, told.out_shardings),
        options=sa.Options(keep_gathers=keep_gathers),
    )


def row(program, told):
    """Bytes and flops of products of a device and step, ours beside XLA's."""
    kept, again = (plan(program, told, keep_gathers=keep) for keep in (True, False))
    ours, default = (int(our_wire_bytes(p.program)) for p in (kept, again))
    flops = our_product_flops(kept.program, kept.graph)
    return {
        "program": program.name,
        "mesh": "x".join(map(str, program.mesh.values())),
        "wire_bytes": ours,
        "xla_wire_bytes": told.wire_bytes,
        "bytes_ratio": ratio(ours, told.wire_bytes),
        "default_bytes_ratio": ratio(default, told.wire_bytes),
        "product_flops": flops,
        "xla_product_flops": told.product_flops,
        "flops_ratio": ratio(flops, told.product_flops),
    }


def summary(table):
    """The figures of a table, in words."""
    more = [r for r in table if r["bytes_ratio"] > 1]
    both = [r for r in table if r["bytes_ratio"] <= 1 and r["flops_ratio"] <= 1]
    ratios = [r["bytes_ratio"] for r in table if 0 < r["bytes_ratio"] < math.inf]
    return (
        f"{len(table)} programs: {len(both)} send no more and compute no more than XLA's, "
        f"{len(more)} send more ({sum(r['flops_ratio'] < 1 for r in more)} of them at fewer "
        f"flops), {sum(r['flops_ratio'] > 1 for r in table)} compute more; geometric mean of the "
        f"bytes {geometric_mean(ratios):.3f}"
    )


def recorded():
    """The programs of the suite with what XLA made of them."""
    told = json.loads(FACTS.read_text())["programs"]
    programs = siblings.programs(*RECORDED)
    return [
        (p, Told(**(told[p.name] | {"results": tuple(told[p.name]["results"])})))
        for p in programs
        if told.get(p.name)
    ]


def record():
    answers = {program.name: ask(program) for program in siblings.programs(*RECORDED)}
    known = {name: vars(told) for name, told in answers.items() if told is not None}
    facts = {"command": COMMAND, "jax": jax.__version__, "programs": known}
    FACTS.write_text(json.dumps(facts, indent=1) + "\n")


def main(count, seed):
    rows = []
    for program in siblings.programs(count, seed):
        told = ask(program)
        if told is not None:
            rows.append(row(program, told))
    table = sa.Table.from_records(sorted(rows, key=lambda r: -r["bytes_ratio"]))
    print(table)
    print(summary(table))


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if sys.argv[1:] == ["record"]:
        record()
    else:
        main(*map(int, sys.argv[1:]))
