"""XLA's warnings that it replicates a whole tensor to lay it out anew, read from its log.

"Involuntary full rematerialization" (`spmd_partitioner.cc`): no step of XLA's leads from one layout
to the other, so every device gathers all of the tensor and keeps a block of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from shardalg.lower.xla_dump.hlo_text import parse_leaves

_WARNING = re.compile(
    r"Involuntary full rematerialization\. The compiler (?:cannot|was not able to) go from "
    r"sharding (?P<source>\{.*?\}) to (?:sharding )?(?P<target>\{.*?\}) (?:efficiently|without)"
    r".*? HLO operation:? %?(?P<name>\S+) = (?P<type>\S+) (?P<opcode>[\w-]+)\((?P<rest>.*)"
)
_NAME = re.compile(r'op_name="([^"]*)"')


@dataclass(frozen=True)
class Rematerialized:
    """One warning of XLA's.

    Attributes:
      instruction, opcode, op_name: what is laid out anew, as XLA calls it.
      shape: of a device's part of it. source, target: HLO text of the layouts.
    """

    instruction: str
    opcode: str
    op_name: str
    shape: tuple[int, ...]
    source: str
    target: str


def rematerialized(log: str) -> tuple[Rematerialized, ...]:
    """The warnings in what XLA wrote while it compiled, in order, each once.

    >>> (found,) = rematerialized(
    ...     "W1 spmd_partitioner.cc:656] [SPMD] Involuntary full rematerialization. The compiler "
    ...     "cannot go from sharding {devices=[2,1]<=[2]} to {devices=[1,2]<=[2]} efficiently for "
    ...     'HLO operation %add.2 = f32[8,4]{1,0} add(%a, %b), metadata={op_name="f/node3/add"}. '
    ...     "As the last resort, SPMD will replicate the tensor."
    ... )
    >>> found.shape, found.source, found.op_name
    ((8, 4), '{devices=[2,1]<=[2]}', 'f/node3/add')
    """
    return tuple(dict.fromkeys(_read(log)))


def _read(log: str) -> Iterator[Rematerialized]:
    for found in filter(None, map(_WARNING.search, log.splitlines())):
        named = _NAME.search(found["rest"])
        ((_, shape), *_) = parse_leaves(found["type"])
        op_name = named[1] if named else ""
        what = found["name"], found["opcode"], op_name, shape
        yield Rematerialized(*what, found["source"], found["target"])
