"""Parts of the Transformer planned for the report's tests."""

from functools import cache

import jax

from shardalg.algebra.mesh import Mesh
from shardalg.graph.ops.canonicalize.normalise import normalise
from shardalg.graph.ops.roles import roles
from shardalg.graph.tracing.trace import flatten_prefix, trace
from shardalg.lab import table1_strategies as table1
from shardalg.models.training import part
from shardalg.models.transformer import Config
from shardalg.planner.pipeline import partition
from shardalg.planner.propagate import Options, Strategy, propagate, resolve

MESH = Mesh({"X": 2, "Y": 4})
CONFIG = Config(B=16, S=64, M=128, H=512, N=8, D=32, dtype="float32")
DIM_NAMES = {16: "B", 64: "S", 128: "M", 512: "H"}
STRATEGIES = {
    "2D attempt 1": table1.attempt_1,
    "2D attempt 2": table1.attempt_2,
    "2D finalized": table1.finalized,
}


@cache
def planned(name, strategy):
    """(program, graph, sharded graph) of a part of the model under a strategy of Table 1."""
    chosen = part(name)
    args = chosen.arguments(CONFIG)
    given = STRATEGIES[strategy](MESH, CONFIG, name)
    leaf_roles = tuple(flatten_prefix(chosen.roles(), args, "roles"))
    return plan_function(chosen.function(CONFIG), args, given, leaf_roles)


def plan_function(fn, args, strategy, leaf_roles=None):
    graph = normalise(trace(fn, *args))
    sharded = propagate(graph, resolve(graph, strategy))
    leaf_roles = leaf_roles or ("data",) * len(jax.tree.leaves(args))
    return partition(sharded, roles(graph, leaf_roles), Options()), graph, sharded


def plan_on(fn, shape, spec):
    """One float32 argument of that shape and spec."""
    x = jax.ShapeDtypeStruct(shape, "float32")
    return plan_function(fn, (x,), Strategy(MESH, in_shardings=(spec,)))
