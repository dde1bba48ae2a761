"""Harder programs: recorded ones under annotations drawn at random, most constraints left out.

The recorded programs are annotated so well that hardly anything is left to complete. Here about a
third of the arguments has no sharding, the others a random one, 70 % of the inner constraints and
all of the results' are dropped, and XLA is asked live.

    python -m tests.propagate.harder 500 1    # 500 programs from seed 1, and every difference
"""

import math
import random
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import jax
from jax.sharding import NamedSharding, PartitionSpec

from shardalg.algebra.mesh import Mesh
from shardalg.graph.ops.canonicalize.normalise import normalise
from shardalg.graph.tracing.trace import trace
from shardalg.lower.xla_dump.hlo_collectives import total_wire_bytes
from shardalg.lower.xla_dump.hlo_text import HloInstruction, HloModule
from shardalg.planner.pipeline import partition
from shardalg.planner.propagate import CompletionOptions, Options, Strategy, propagate, resolve
from shardalg.show import tables
from shardalg.xla import align, dump
from tests.oracle import corpus
from tests.propagate.small import behind

# Manual regions are not planned; in the recorded loops everything is annotated.
LEFT_OUT = ("shard_map_subgraph", "scan_layers", "scan_layers_remat")
CASES = tuple(name for name in corpus.names() if name not in LEFT_OUT)
OPEN, PLACED, KEPT = 0.35, 0.7, 0.3


@dataclass(frozen=True)
class Harder:
    """A recorded program with annotations of this seed."""

    case: str
    seed: int

    @cached_property
    def drawn(self):
        """(specs of the arguments, which constraints are kept)."""
        return self.draw()

    def draw(self):
        """At random, at least one spec."""
        rng = random.Random(self.seed)
        _, arguments, _ = self.made
        shapes = [shape for shape, _, _ in arguments.values()]
        specs = [None]
        while all(spec is None for spec in specs):
            specs = [self._spec(rng, shape) for shape in shapes]
        return tuple(specs), [rng.random() < KEPT for _ in range(64)]

    def _spec(self, rng, shape):
        if rng.random() < OPEN:
            return None
        dims, left = [[] for _ in shape], list(shape)
        for axis, size in self.module.MESH.items():
            fits = [d for d, rest in enumerate(left) if rest > 1 and rest % size == 0]
            if fits and rng.random() < PLACED:
                dim = rng.choice(fits)
                dims[dim].append(axis)
                left[dim] //= size
        return PartitionSpec(*(tuple(axes) or None for axes in dims))

    @property
    def module(self):
        return corpus.program(self.case)

    @cached_property
    def made(self):
        return self.module.make(**self.module.SMALL)

    @property
    def mesh(self):
        return Mesh(self.module.MESH)

    @cached_property
    def types(self):
        return [jax.ShapeDtypeStruct(s, dtype) for s, dtype, _ in self.made[1].values()]

    @contextmanager
    def constrained(self):
        """Keep only the program's constraints."""
        module, keep, turn = self.module, self.drawn[1], iter(range(1 << 20))
        real = getattr(module, "wsc", None)
        module.wsc = lambda x, spec: real(x, spec) if keep[next(turn) % 64] else x
        try:
            yield
        finally:
            module.wsc = real

    @cached_property
    def problem(self):
        """(graph, annotations)."""
        with self.constrained():
            graph = trace(self.made[0], *self.types, mesh_shape=self.module.MESH)
        graph = normalise(graph)
        return graph, resolve(graph, Strategy(self.mesh, self.drawn[0]))

    def ask(self, partitioner):
        """XLA's completion of the function itself."""
        ours = self.mesh
        mesh = ours.to_jax(jax.devices()[: ours.size])
        given = tuple(s if s is None else NamedSharding(mesh, s) for s in self.drawn[0])
        with dump.using(partitioner), jax.set_mesh(mesh), self.constrained():
            stage = jax.jit(self.made[0], in_shardings=given).lower(*self.types)
            return dump.read(stage, ours, partitioner)

    def matches(self, policy, module, results):
        """Return the compared values, with our sharding and XLA's."""
        done = propagate(*self.problem, CompletionOptions.of(Options(policy=policy)))
        found = align.matches(done, module, results)
        return [match for match in found if match.kind in align.TARGETS]

    def planned(self, policy):
        """(completion, program)."""
        roles, options = ("unknown",) * len(self.problem[0].values), Options(policy=policy)
        done = propagate(*self.problem, CompletionOptions.of(options))
        return done, partition(done, roles, options)

    def wire_bytes(self, policy):
        """Return a device's wire bytes in our program."""
        rows = tables.collectives(self.planned(policy)[1], self.problem[0])
        return sum(row["wire_bytes"] * row["executions"] for row in rows)


KEPT_ATTRIBUTES = ("index", "body", "to_apply", "branch_computations", "custom_call_target")


def rows_of(module):
    """Return a completed module as the plain rows of `harder.json`, without scalar bodies."""
    return [
        [
            i.computation, i.name, i.opcode, i.leaves, i.operands,
            "sharding_constraint" if i.op_name.endswith("sharding_constraint") else "",
            {k: i.attributes[k] for k in KEPT_ATTRIBUTES if k in i.attributes},
            i.attributes.get("sharding"), i.literal if i.opcode == "parameter" else "",
        ]
        for name, computation in module.computations.items()
        if any(shape for i in computation.values() for _, shape in i.leaves)
        for i in computation.values()
    ]  # fmt: skip


def module_of(rows):
    """Return the module of rows: the inverse of `rows_of`; the last computation is the entry."""
    computations, roots = {}, {}
    for place, name, opcode, leaves, operands, op_name, attributes, sharding, literal in rows:
        known = dict(attributes, metadata=f'op_name="{op_name}"')
        known |= {} if sharding is None else {"sharding": sharding}
        kinds = tuple((kind, tuple(shape)) for kind, shape in leaves)
        made = HloInstruction(name, opcode, kinds, tuple(operands), known, place, literal)
        computations.setdefault(place, {})[name] = roots[place] = made
    return HloModule(computations, roots, rows[-1][0])


def programs(count, seed):
    """Yield that many programs, the recorded ones in turn, with seeds from `seed` on."""
    return [Harder(CASES[i % len(CASES)], seed + i) for i in range(count)]


@dataclass
class Tally:
    """The counts of comparisons under one policy."""

    policy: str
    programs: int = 0
    whole: int = 0
    compared: Counter = field(default_factory=Counter)
    differences: list = field(default_factory=list)

    def add(self, program):
        """Ask XLA for one program; its differences in words."""
        told = program.ask(self.policy)
        found = program.matches(self.policy, told.module, told.results)
        wrong = [match for match in found if not match.agrees]
        self.programs += 1
        self.whole += not wrong
        self.compared.update(match.kind for match in found)
        if not wrong:
            return []
        done, _ = program.planned(self.policy)
        sent = (program.wire_bytes(self.policy), total_wire_bytes(told.collectives))
        rows = [(cause(done, match), program, match, sent) for match in wrong]
        self.differences += rows
        return [told_apart(row) for row in rows]

    def summary(self):
        """Share of values alike, then the differences by cause, with bytes."""
        total = sum(self.compared.values())
        alike = total - len(self.differences)
        yield (
            f"{self.policy}: {alike} of {total} free values as XLA has them "
            f"({alike / max(total, 1):.2%}), {self.whole} of {self.programs} programs in whole; "
            f"compared {dict(self.compared)}"
        )
        for name, count in Counter(row[0] for row in self.differences).most_common():
            yield f"  {name}: {count} values"
            yield from (f"    {told_apart(row)}" for row in self.differences if row[0] == name)


def told_apart(row):
    """Return a difference in words, with the bytes that a device sends in either program."""
    _, program, match, (ours, theirs) = row
    sent = f"ours sends {ours} bytes, XLA {theirs}"
    return f"{program.case} {program.seed}: {described(match)}; {sent}"


def cause(done, match):
    """Why a value differs, as far as our own completion knows."""
    if not (match.ours.is_even and match.theirs.is_even):
        return "uneven"
    refused = [c for c in done.conflicts if c.value == match.value]
    if any(c.refused.canonical_dims == match.theirs.canonical_dims for c in refused):
        return "a conflict at the value, which XLA decides the other way"
    if refused:
        return "a conflict at the value"
    if behind(match.value, done) & {c.value for c in done.conflicts}:
        return "follows a conflict"
    return "no conflict"


def main(chosen, policies=()):
    """Compare, and print differences; an interruption prints those found so far."""
    tallies = [Tally(policy) for policy in policies or dump.partitioners()]
    start = time.monotonic()
    try:
        for number, program in enumerate(chosen, 1):
            for tally in tallies:
                for line in tally.add(program):
                    print(f"{tally.policy} {line}", flush=True)
            if number % 25 == 0:
                seconds = time.monotonic() - start
                done = f"{number} of {len(chosen)} programs, {seconds:.0f} s"
                print(done, file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    for tally in tallies:
        print(*tally.summary(), sep="\n")


def described(match):
    """Return a difference in words, with a device's bytes under either sharding."""
    held = [math.prod(s.shard_shape) for s in (match.ours, match.theirs)]
    return (
        f"{match.kind} {match.name} {match.ours.shape}: ours {match.ours.text()} ({held[0]} "
        f"elements), XLA {match.theirs.text()} ({held[1]} elements)"
    )


if __name__ == "__main__":
    main(programs(int(sys.argv[1]), int(sys.argv[2])), sys.argv[3:])
