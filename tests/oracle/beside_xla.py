"""Our wire bytes and flops of products beside XLA's on programs that a seed draws, asked live.

    python -m tests.oracle.beside_xla 60 1000         # 60 programs from seed 1000 on
    python -m tests.oracle.beside_xla 60 1000 told    # XLA asked once: its answers are in this file
    python -m tests.oracle.beside_xla record          # what the suite reads: siblings.json

Of XLA's two partitioners the better one counts: fewer bytes, then fewer flops. It (on CPU devices)
completes what has no annotation, the layouts of results and open arguments among it; ours is
planned with both where it put them. A row says what a device sends and computes in a step, ours
over XLA's. Rows above tell the cause, and what is sent otherwise, by kind and operator.
"""

import json
import math
import os
import sys
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
from jax.sharding import NamedSharding, PartitionSpec

import shardalg as sa
from benchmarks.oracle_bytes import our_product_flops, our_wire_bytes, ratio, sent_otherwise
from benchmarks.result import geometric_mean
from shardalg.lower.xla_dump.hlo_collectives import Dumping, collectives, total_wire_bytes
from shardalg.xla.dump import partitioners, using
from tests.oracle import corpus, farther, siblings
from tests.oracle.record_flops import product_flops

FACTS = corpus.HERE / "siblings.json"
COMMAND = "make xla-bytes BYTES=record"
RECORDED = (60, 0)
"""How many programs the suite knows, and their first seed."""
KEPT = 25
"""Programs after which compiled ones are forgotten."""


@dataclass(frozen=True)
class Told:
    """XLA's result for a program.

    Attributes:
      results: layout per result, as the text of a PartitionSpec; "None" where none says it.
      arguments: the same of the arguments that it reads; asked live only, as are
      sent: (kind, operator, bytes) of its collectives.
    """

    wire_bytes: int
    product_flops: int
    results: tuple[str, ...]
    sent: tuple[tuple[str, str, int], ...] = ()
    arguments: tuple[str, ...] = ()

    @property
    def out_shardings(self):
        """Return XLA's shardings of the results."""
        return [_spec(text) for text in self.results]

    def in_shardings(self, given):
        """Return the given shardings of arguments, and XLA's for open ones."""
        if len(self.arguments) != len(given):
            return given
        told = map(_spec, self.arguments)
        return tuple(t if s is None else s for s, t in zip(given, told, strict=True))


def _spec(text):
    return eval(text, {"PartitionSpec": PartitionSpec, "P": PartitionSpec})


def ask(program, partitioner="gspmd"):
    """Ask one of XLA's partitioners; return None if JAX takes no program with such results."""
    mesh = sa.Mesh(program.mesh)
    devices = mesh.to_jax(jax.devices()[: mesh.size])
    given = tuple(s if s is None else NamedSharding(devices, s) for s in program.specs)
    with using(partitioner), jax.set_mesh(devices), Dumping() as dumping:
        stage = jax.jit(program.function, in_shardings=given, keep_unused=True)
        stage = stage.lower(*program.types)
        try:
            compiled = stage.compile(compiler_options=dumping.options)
        except jax.errors.JaxRuntimeError:
            return None
        except ValueError:  # a result that its layout does not divide
            return None
        except NotImplementedError:  # or whose layout JAX has no words for
            return None
        text = dumping.read().after
    results = tuple(map(_text, jax.tree.leaves(compiled.output_shardings)))
    arguments = tuple(map(_text, compiled.input_shardings[0]))
    if text is None:
        return Told(0, 0, results, (), arguments)
    found = collectives(text, mesh)
    sent = tuple((_kind(c), c.op_name.rsplit("/", 1)[-1], c.wire_bytes * c.count) for c in found)
    return Told(total_wire_bytes(found), product_flops(text), results, sent, arguments)


def _kind(collective):
    return "reduce_scatter" if (collective.sliced_by or 1) > 1 else collective.kind


def _text(sharding):
    if sharding is None:
        return "None"
    if isinstance(sharding, NamedSharding):
        return repr(sharding.spec)
    return "PartitionSpec()" if sharding.is_fully_replicated else "None"


class Answers:
    """XLA's stored answers: a line per program and partitioner of a file, or none."""

    def __init__(self, path=None):
        self.path, self.known = path, {}
        if path and Path(path).exists():
            for line in Path(path).read_text().splitlines():
                name, partitioner, told = json.loads(line)
                self.known[name, partitioner] = told

    def ask(self, program, partitioner):
        """Return the answer, asked at most once; None if there is none."""
        key = f"{program.name} {jax.__version__}", partitioner
        if key not in self.known:
            told = ask(program, partitioner)
            self.known[key] = told and json.loads(json.dumps(asdict(told)))
            if self.path:
                with open(self.path, "a") as file:
                    file.write(json.dumps([*key, self.known[key]]) + "\n")
        found = self.known[key]
        return found and Told(**{k: tuple(v) if type(v) is list else v for k, v in found.items()})

    def better(self, program):
        """(XLA's better partitioner, answer of each); None where neither has one."""
        told = {name: self.ask(program, name) for name in partitioners()}
        found = [(t.wire_bytes, t.product_flops, name) for name, t in told.items() if t]
        return (min(found)[2], told) if found else None


def plan(program, told, **options):
    """Ours, its results and open arguments where XLA put them."""
    mesh = sa.Mesh(program.mesh)
    with jax.set_mesh(mesh.to_jax(jax.devices()[: mesh.size])):
        results = jax.tree.structure(jax.eval_shape(program.function, *program.types))
    return sa.plan(
        program.function,
        *program.types,
        mesh=mesh,
        in_shardings=told.in_shardings(program.specs),
        out_shardings=jax.tree.unflatten(results, told.out_shardings),
        options=sa.Options(**options),
    )


def row(program, answers, partitioner="gspmd"):
    """Bytes and flops of products of a device and step, ours beside XLA's.

    Args:
      answers: of XLA's partitioners; partitioner: the one to compare with.
    """
    told = answers[partitioner]
    made = plan(program, told)
    ours, flops = int(our_wire_bytes(made.program)), our_product_flops(made.program, made.graph)
    return {
        "program": program.name,
        "mesh": "x".join(map(str, program.mesh.values())),
        "beside": partitioner,
        "wire_bytes": ours,
        "xla_wire_bytes": told.wire_bytes,
        "by_partitioner": {name: t.wire_bytes for name, t in answers.items() if t},
        "bytes_ratio": ratio(ours, told.wire_bytes),
        "product_flops": flops,
        "xla_product_flops": told.product_flops,
        "flops_ratio": ratio(flops, told.product_flops),
        "why": sent_otherwise(made, _by_kind(told.sent)) if told.sent else "",
    }


def _by_kind(sent):
    """Bytes by kind and operator."""
    found = defaultdict(Counter)
    for kind, op, count in sent:
        found[kind][op or "border"] += count
    return found


def is_above(row):
    """Return True if our program sends or computes more."""
    return row["bytes_ratio"] > 1 or row["flops_ratio"] > 1


def summary(table):
    """Return the figures of a table in words."""
    more = [r for r in table if r["bytes_ratio"] > 1]
    ratios = [r["bytes_ratio"] for r in table if 0 < r["bytes_ratio"] < math.inf]
    return (
        f"{len(table)} programs: {sum(not is_above(r) for r in table)} send no more "
        f"and compute no more than XLA's, {len(more)} send more "
        f"({sum(r['flops_ratio'] < 1 for r in more)} of them at fewer flops), "
        f"{sum(r['flops_ratio'] > 1 for r in table)} compute more; geometric mean of the bytes "
        f"{geometric_mean(ratios):.3f}"
    )


def recorded():
    """Return the programs of the suite with XLA's results."""
    told = json.loads(FACTS.read_text())["programs"]
    programs = siblings.programs(*RECORDED)
    return [
        (p, {"gspmd": Told(**(told[p.name] | {"results": tuple(told[p.name]["results"])}))})
        for p in programs
        if told.get(p.name)
    ]


def record():
    answers = {program.name: ask(program) for program in siblings.programs(*RECORDED)}
    known = {name: _recorded(told) for name, told in answers.items() if told is not None}
    facts = {"command": COMMAND, "jax": jax.__version__, "programs": known}
    FACTS.write_text(json.dumps(facts, indent=1) + "\n")


def _recorded(told):
    return {k: v for k, v in asdict(told).items() if k not in ("sent", "arguments")}


def main(count, seed, path=None):
    """Compare; print each program above at once, and all of them at the end."""
    answers, rows = Answers(path), []
    programs = siblings.programs(count, seed, siblings.TEMPLATES | farther.TEMPLATES)
    for number, program in enumerate(programs):
        found = answers.better(program)
        if number % KEPT == KEPT - 1:
            jax.clear_caches()  # a system maps so many pieces of memory, and no more
        if found is not None:
            rows.append(row(program, found[1], found[0]))
            if is_above(rows[-1]):
                print(*_line(rows[-1]), flush=True)
    print(summary(rows))
    above = Counter(cause.split(":")[0] for r in rows if is_above(r) for cause in causes(r))
    print(*(f"{count} programs: {cause}" for cause, count in above.most_common()), sep="\n")


def _line(row):
    yield f"{row['program']} on {row['mesh']}, beside {row['beside']}:"
    yield f"bytes {row['bytes_ratio']:.3f},"
    yield f"flops {row['flops_ratio']:.3f}; {'; '.join(causes(row))}; {row['why']}"


def causes(row):
    """Why a program is above, as far as its figures say."""
    gspmd = row["by_partitioner"].get("gspmd", math.inf)
    if row["flops_ratio"] > 1:
        yield "fewer bytes at more flops" if row["bytes_ratio"] <= 1 else "more flops"
    elif row["beside"] == "shardy" and row["wire_bytes"] <= gspmd:
        yield f"Shardy completes it better: XLA's GSPMD sends {gspmd}"
    elif row["flops_ratio"] < 1:
        yield "fewer flops at more bytes"
    else:
        yield "no other cut was found"


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if sys.argv[1:] == ["record"]:
        record()
    else:
        main(*map(int, sys.argv[1:3]), *sys.argv[3:])
