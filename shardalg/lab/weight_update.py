"""Weight-update sharding as annotations: the levels of ZeRO on a data-parallel train step.

The batch is split along the one axis of the mesh, and the model is the unchanged Transformer. Each
level annotates more arrays, always along their leading dimension, which the axis should divide.
Level 0 annotates nothing: weights, gradients and optimizer state are whole on every device. Level 1
annotates the optimizer state, level 2 also the gradients (site "gradients"), level 3 also the
weights. Completion and the partitioner derive the rest: gradients are reduce-scattered, each device
updates one block, and the new weights are gathered (arXiv:2004.13336). From level 3 on the weights
stay split and are gathered before each use (arXiv:1910.02054, sections 5 and 6).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from shardalg.algebra.mesh import Mesh
from shardalg.errors import StrategyError
from shardalg.graph.annotate import annotate
from shardalg.models import training, transformer
from shardalg.models.training import Optimizer
from shardalg.models.transformer import Config
from shardalg.planner.propagate.sharded import ShardedGraph
from shardalg.planner.propagate.strategy import Strategy
from shardalg.tables import Table, bytes_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardalg.plan.plan import Plan

Array = jax.Array
LEVELS: Mapping[int, str] = {
    0: "nothing",
    1: "the optimizer state",
    2: "and the gradients",
    3: "and the weights",
}
OPTIMIZERS = {name: training.OPTIMIZERS[name] for name in ("adam", "adafactor")}
ROLES = ("parameters", "optimizer_state", "data", "data")
DONATED = (0, 1)


class Setting(NamedTuple):
    """The sizes of the trained model, and its optimizer."""

    config: Config
    optimizer: Optimizer


def train_step(
    setting: Setting, params: Any, state: Any, tokens: Array, targets: Array
) -> tuple[Any, Any, Array]:
    """Run one training step; return parameters, optimizer state and the loss before the step."""
    config, optimizer = setting
    loss, grads = jax.value_and_grad(partial(transformer.loss, config))(params, tokens, targets)
    # From level 2 on this site turns the all-reduce over the batch into a reduce-scatter: each
    # device needs only the block that it updates.
    grads = jax.tree.map(lambda gradient: annotate(gradient, "gradients"), grads)
    return *optimizer.apply(config, params, grads, state), loss


def function(config: Config, optimizer: str = "adam") -> Callable[..., Any]:
    """Return the train step, a function of `(params, state, tokens, targets)`.

    Raises:
      StrategyError: no optimizer of that name, or scanned layers. Levels of ZeRO split the leading
        dimension of a weight, and that of stacked weights is the number of layers.
    """
    return partial(train_step, Setting(config, _chosen(config, optimizer)))


def arguments(config: Config, optimizer: str = "adam") -> tuple[Any, ...]:
    """Return shapes and types of the arguments of `function`: params, state, tokens, targets."""
    init = partial(_chosen(config, optimizer).init, config)
    params = transformer.param_types(config)
    tokens = jax.ShapeDtypeStruct((config.B, config.S), jnp.int32)
    return params, jax.eval_shape(init, params), tokens, tokens


def random_arguments(config: Config, optimizer: str = "adam", seed: int = 0) -> tuple[Any, ...]:
    """Return random arguments of `function`; equal seeds give equal numbers."""
    params = transformer.init_params(config, seed)
    ids = np.random.default_rng((seed, 1)).integers(0, config.V, (2, config.B, config.S), np.int32)
    return params, _chosen(config, optimizer).init(config, params), *map(jnp.asarray, ids)


def strategy(level: int, mesh: Mesh, config: Config, optimizer: str = "adam") -> Strategy:
    """Return the annotations of one level of weight-update sharding (ZeRO, arXiv:1910.02054).

    The batch is sharded along the only axis of the mesh. Level 1 also shards the optimizer state,
    level 2 the gradients, and level 3 the weights.

    >>> strategy(2, Mesh({"X": 8}), Config()).sites["gradients"] == PartitionSpec("X")
    True

    Raises:
      StrategyError: no such level, or a mesh of several axes.
    """
    if level not in LEVELS or len(mesh.axis_names) != 1:
        raise StrategyError(
            f"weight-update sharding has the levels {list(LEVELS)} on a mesh of one axis, got "
            f"level {level!r} on {mesh!r}. The axis splits the batch; give the mesh that one alone."
        )
    split, whole = PartitionSpec(mesh.axis_names[0]), PartitionSpec()

    def laid(tree: Any, is_split: bool) -> Any:
        # A scalar, such as the number of the step, has no dimension: JAX refuses an axis for it.
        return jax.tree.map(lambda leaf: split if is_split and leaf.shape else whole, tree)

    params, state, *_ = arguments(config, optimizer)
    # The comparisons are >= because each level of ZeRO contains the previous ones.
    params, state = laid(params, level >= 3), laid(state, level >= 1)
    sites = {"gradients": split} if level >= 2 else {}
    return Strategy(mesh, (params, state, split, split), (params, state, whole), sites)


def _chosen(config: Config, optimizer: str) -> Optimizer:
    """Return the optimizer with this name; raise a `StrategyError` if `function` cannot use it."""
    if optimizer not in OPTIMIZERS or config.scan:
        raise StrategyError(
            f"no train step with optimizer {optimizer!r} and scan={config.scan}: the optimizers "
            f"are {list(OPTIMIZERS)}, and layers stand one after the other (scan=False)."
        )
    return OPTIMIZERS[optimizer]


SENT = ("all_reduce", "reduce_scatter", "all_gather")
HELD = ("parameters", "optimizer_state", "gradients")
COLUMNS = (
    "level", *(f"{kind}_wire_bytes" for kind in SENT), "wire_bytes",
    *(f"{name}_bytes" for name in HELD), "peak_memory_bytes",
)  # fmt: skip


def levels(plans: Mapping[Any, Plan]) -> Table:
    """Return a row per plan: wire bytes per step by kind of collective, and memory by class.

    The first two columns of memory are alive at the peak. The column "gradients_bytes" has all
    gradients together, in the shardings in which the update reads them (site "gradients").

    Args:
      plans: the plan of each row, by the entry of the row's first column.
    """
    return Table(COLUMNS, tuple((name, *_row(plan)) for name, plan in plans.items()))


def _row(plan: Plan) -> tuple[float, ...]:
    """Return a plan's entries of `COLUMNS`, in bytes, without the first column."""
    moved: Counter[str] = Counter()
    memory = plan.memory
    for row in plan._collectives_table:
        moved[row["kind"]] += row["wire_bytes_per_step"]
    sent = [moved[kind] for kind in SENT]
    state_bytes = [memory.by_class.get(name, 0) for name in HELD[:2]]
    return (*sent, sum(moved.values()), *state_bytes, _gradients(plan._sharded), memory.peak_bytes)


def _gradients(sharded: ShardedGraph) -> int:
    """Return the bytes on a device of all gradients, in the shardings of their annotations."""
    graph = sharded.graph
    sites = [graph.nodes[site.node] for site in graph.sites if site.name == "gradients"]
    values = [node.results[0] for node in sites]
    return sum(
        math.prod(sharded.shardings[v].shard_shape) * graph.values[v].type.itemsize for v in values
    )


def level_bars(table: Table) -> Figure:
    """Draw two panels with a bar per level of ZeRO, from the table of `levels`.

    The left panel has the bytes of training state on a device, the right panel the bytes that a
    device sends in a step.
    """
    from shardalg.drawing import Drawing
    from shardalg.palette import COLLECTIVES, MEMORY

    figure = Drawing(figsize=(9.0, 3.2), layout="constrained")
    memory_panel, sent_panel = figure.subplots(1, 2)
    names = ["\n".join(wrap(str(level), 14)) for level in table["level"]]
    memory = {f"{name}_bytes": MEMORY[name] for name in HELD}
    wires = {f"{kind}_wire_bytes": COLLECTIVES[kind] for kind in SENT}
    for axes, columns, title in (
        (memory_panel, memory, "training state on a device"),
        (sent_panel, wires, "sent by a device in a step"),
    ):
        bottom = [0.0] * len(table)
        for column, color in columns.items():
            label = column.removesuffix("_wire_bytes").removesuffix("_bytes").replace("_", " ")
            axes.bar(names, table[column], bottom=bottom, color=color, label=label)
            # matplotlib does not stack bars, so each column starts where the previous one ends.
            bottom = [b + n for b, n in zip(bottom, table[column], strict=True)]
        axes.set_title(title, fontsize=9)
        axes.tick_params(labelsize=8)
        axes.yaxis.set_major_formatter(lambda value, _: bytes_text(value))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7, frameon=False)
    return figure
