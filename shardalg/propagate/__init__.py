"""Sharding completion: a graph and annotations in, a layout per value out, each with its reason."""

from __future__ import annotations

from shardalg.propagate.complete import propagate
from shardalg.propagate.sharded import Conflict, Reason, ShardedGraph
from shardalg.propagate.strategy import Annotations, Options, Strategy, resolve

__all__ = [
    "Annotations",
    "Conflict",
    "Options",
    "Reason",
    "ShardedGraph",
    "Strategy",
    "propagate",
    "resolve",
]
