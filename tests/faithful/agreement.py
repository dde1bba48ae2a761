"""Completion beside XLA's own, by either partitioner, on fresh programs that a seed draws.

Loops, caches and variants of attention: templates in `loops.py` and `caches.py`. XLA's answers are
kept by what was asked (the lowered text), so that asking again costs nothing.

    python -m tests.faithful.agreement 500 1 FOLDER             # from seed 1, both partitioners
    python -m tests.faithful.agreement 500 1 FOLDER gspmd       # one of them
"""

import hashlib
import json
import sys
from collections import Counter
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import jax
from jax.sharding import NamedSharding

from shardalg.algebra.sharding import Sharding
from shardalg.graph.serial import graph_hash
from shardalg.graph.tracing.trace import trace
from shardalg.lower.xla_dump.hlo_collectives import total_wire_bytes
from shardalg.xla import dump
from tests.faithful import caches, loops
from tests.oracle.siblings import Draw
from tests.propagate import harder

TEMPLATES = loops.TEMPLATES | caches.TEMPLATES


class Fresh(harder.Harder):
    """The program of a template and a seed."""

    folder = None

    @cached_property
    def made(self):
        draw = Draw(f"{self.case} {self.seed}")
        function = TEMPLATES[self.case](draw)
        self.__dict__["draw_made"] = draw
        return function, draw.arguments, None

    @property
    def module(self):
        self.made  # noqa: B018
        return SimpleNamespace(MESH=self.draw_made.mesh)

    @cached_property
    def drawn(self):
        return tuple(spec for _, _, spec in self.made[1].values()), ()

    def constrained(self):
        """Every constraint is kept."""
        return nullcontext()

    @cached_property
    def traced(self):
        """Return a key of the traced program, because other jax versions trace other operators."""
        graph = trace(self.made[0], *self.types, mesh_shape=self.module.MESH)
        return graph_hash(graph)[:16]

    def told(self, partitioner):
        """Return XLA's (module, results, wire bytes), asked at most once with a folder."""
        ours = self.mesh
        mesh = ours.to_jax(jax.devices()[: ours.size])
        given = tuple(s if s is None else NamedSharding(mesh, s) for s in self.drawn[0])
        with dump.using(partitioner), jax.set_mesh(mesh):
            stage = jax.jit(self.made[0], in_shardings=given, keep_unused=True).lower(*self.types)
            if self.folder is None:
                return _plain(dump.read(stage, ours, partitioner))
            asked = f"{jax.__version__} {partitioner} {stage.as_text()}"
            path = Path(self.folder) / f"{hashlib.sha256(asked.encode()).hexdigest()}.json"
            if not path.exists():
                record = _plain(dump.read(stage, ours, partitioner))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(record))
            return json.loads(path.read_text())

    def compared(self, policy, partitioner):
        """Return the compared values, with our sharding and XLA's."""
        told = self.told(partitioner)
        graph = self.problem[0]
        shapes = [graph.values[v].type.shape for v in graph.results]
        results = tuple(
            None if text is None else Sharding.from_hlo(text, shape, self.mesh)
            for text, shape in zip(told["results"], shapes, strict=True)
        )
        return self.matches(policy, harder.module_of(told["rows"]), results)


def _plain(completion):
    return {
        "rows": harder.rows_of(completion.module),
        "results": [None if s is None else s.to_hlo() for s in completion.results],
        "wire_bytes": total_wire_bytes(completion.collectives),
    }


def programs(count, seed):
    """Yield that many programs, the templates in turn, with seeds from `seed` on."""
    names = tuple(TEMPLATES)
    return [Fresh(names[i % len(names)], seed + i // len(names)) for i in range(count)]


def told_apart(program, policy, partitioner):
    """Return how many values are compared, and the differing ones."""
    found = program.compared(policy, partitioner)
    return len(found), [match for match in found if not match.agrees]


def main(chosen, folder, partitioners):
    """Compare, and tell what differs as it is found, then the figures."""
    Fresh.folder = folder
    for partitioner in partitioners:
        counts, of_case = [], Counter()
        for program in chosen:
            compared, differ = _told(program, partitioner)
            counts += [] if compared is None else [(compared, len(differ))]
            of_case[program.case] += len(differ)
        total, wrong = (sum(column) for column in zip(*counts, strict=True))
        print(
            f"{partitioner}: {total - wrong} of {total} free values as XLA has them "
            f"({1 - wrong / total:.2%}), {sum(not n for _, n in counts)} of {len(counts)} programs "
            f"in whole, {len(chosen) - len(counts)} left out; differ {dict(+of_case)}"
        )


def _told(program, partitioner):
    """Return the result of `told_apart` in words; None if JAX refuses XLA's result shardings."""
    name = f"{partitioner} {program.case} {program.seed}"
    try:
        compared, differ = told_apart(program, partitioner, partitioner)
    except ValueError as error:  # a result that its layout does not divide
        print(f"{name}: left out, {error}", flush=True)
        return None, []
    for match in differ:
        print(f"{name}: {harder.described(match)}", flush=True)
    return compared, differ


if __name__ == "__main__":
    number, first, where, *asked = sys.argv[1:]
    main(programs(int(number), int(first)), where, asked or dump.partitioners())
