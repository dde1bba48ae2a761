"""One way to train a dense Transformer: mesh, strategy, batch, microbatches, rounds, remat.

`MODELS` has two models of Tables 2 to 4 of GSPMD (arXiv:2105.04663) by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
from jax.sharding import PartitionSpec

from shardalg.algebra.mesh import Mesh
from shardalg.costs.cost import Cost
from shardalg.costs.hardware import Hardware
from shardalg.costs.pipelines.schedules import Schedule
from shardalg.costs.topology import Topology
from shardalg.errors import StrategyError
from shardalg.models.deeper import cost_on, machine_for
from shardalg.models.dense import DenseTransformer
from shardalg.models.dense_strategies import SLICE, layout_on
from shardalg.models.model import Model
from shardalg.models.published.pipelined import ONCE_A_STEP, TABLE_4, Pipelined
from shardalg.models.transformer import Config
from shardalg.plan.plan import Plan
from shardalg.planner.propagate.strategy import Strategy

PIPELINED = "pipelined"
"""The strategy with the layers as stages along L, the data along X, in-layer sharding along Y.

See `models.published.pipelined`.
"""
_REMAT = {False: "none", "full": "layer"}


@dataclass(frozen=True)
class Candidate:
    """A way to train a model; its plan can be verified and lowered as any other.

    Attributes:
      model: sizes, batch, microbatches, remat and optimizer.
      mesh: the devices, by the axes of the strategy; axes of size 1 are left out.
      strategy: "finalized", "fsdp", "fsdp_tensor" or "pipelined".
      rounds: the rounds of a pipeline; the schedule is circular if they are more than one.

    >>> from shardalg.models.dense import DenseTransformer
    >>> model = DenseTransformer(4, 16, 32, 2, 8, 32, 8, 8, microbatches=4)
    >>> print(Candidate(model, Mesh({"L": 2, "X": 2}), "pipelined"))
    pipelined L=2,X=2 batch 8 in 4 microbatches
    """

    model: DenseTransformer
    mesh: Mesh
    strategy: str
    rounds: int = 1

    def __str__(self) -> str:
        """Return the strategy, mesh and batch, and each further choice that is not the default."""
        axes = ",".join(f"{name}={size}" for name, size in self.mesh.shape.items())
        model = self.model
        parts = [f"{self.strategy} {axes} batch {model.batch}"]
        parts += [f"in {model.microbatches} microbatches"] * (model.microbatches > 1)
        parts += [f"{self.rounds} rounds"] * (self.rounds > 1)
        parts += [f"remat {model.remat}"] * bool(model.remat)
        return " ".join([*parts, *[model.optimizer] * (model.optimizer != "adafactor")])

    @property
    def pipelined(self) -> Model:
        """The model with its layers in stages.

        Raises:
          StrategyError: a form of model that has no pipelined plan. PipelineError: the schedule
            does not divide the layers or the batch.
        """
        model = self.model
        unlike = {
            "gated": model.gated,
            "kv_heads": model.kv_heads is not None,
            f"remat {model.remat!r}": model.remat not in _REMAT,
            f"optimizer {model.optimizer!r}": model.optimizer != "adafactor",
            f"attention {model.attention!r}": model.attention != "plain",
            f"param_dtype {model.param_dtype!r}": model.param_dtype != "float32",
        }
        if any(unlike.values()):
            named = ", ".join(name for name, is_so in unlike.items() if is_so)
            raise StrategyError(f"no pipelined plan is made of a model with {named}.")
        given = model.config
        sizes = {letter: getattr(given, letter) for letter in "SMHNDVL"}
        config = Config(B=model.batch, dtype=given.dtype, **sizes)
        schedule = Schedule(self.mesh.shape.get("L", 1), model.microbatches, self.rounds)
        return Pipelined(config, schedule, _REMAT[model.remat]).model

    @property
    def step(self) -> tuple[DenseTransformer, int, int]:
        """The values that the traced train step depends on: the model, its stages and rounds."""
        stages = self.mesh.shape["L"] if self.strategy == PIPELINED else 1
        return self.model, stages, self.rounds

    @property
    def structure(self) -> tuple[Any, ...]:
        """A key, equal for candidates of one step whose programs differ only in axis names."""
        return _structure(self.strategy, self.mesh)

    def laid_out(self) -> Strategy:
        """Return the shardings of the train step and of its annotated sites."""
        if self.strategy != PIPELINED:
            return self.model.strategy(self.mesh, self.strategy)
        return self.pipelined.strategy(self.mesh, TABLE_4)

    def plan(self) -> Plan:
        """Return the plan of the train step with all layers."""
        if self.strategy != PIPELINED:
            return self.model.plan(self.mesh, self.strategy)
        return self.pipelined.plan(self.mesh, TABLE_4, ONCE_A_STEP)

    def cost(self, hardware: str | Hardware | Topology) -> Cost:
        """Return step time and memory, by the constants that were fitted for the chip.

        Raises:
          HardwareError: an unknown chip, no slice of so many chips, a mesh that does not tile it.
        """
        if self.strategy != PIPELINED:
            return self.model.cost(self.mesh, hardware, strategy=self.strategy)
        on = machine_for(self.mesh, hardware)
        return cost_on(self.model.layers, {self.model.layers: self.plan()}, on)

    def argument_bytes(self) -> int:
        """Return the bytes of a device's parameters, optimizer state and data.

        They are in memory during the whole step.

        Raises:
          StrategyError: axes that do not divide their dimension or the microbatch: such a program
            cannot be lowered; or an error of `pipelined`.
        """
        return self.data_bytes() + self.state_bytes()

    def data_bytes(self) -> int:
        """Return the bytes of one device's tokens and targets.

        Raises:
          StrategyError: axes that do not divide batch or microbatch. PipelineError: a schedule that
            does not divide the layers.
        """
        model = self.model
        if self.strategy == PIPELINED:
            stages = self.mesh.shape.get("L", 1)
            Schedule(stages, model.microbatches, self.rounds).layers_per_round(model.layers)
        (axes, count), (inside, parts) = _batch_axes(self.strategy, self.mesh)
        size = model.batch // model.microbatches
        if size % parts:
            raise StrategyError(
                f"a microbatch of {size} sequences is not divisible by the {parts} devices along "
                f"{','.join(inside)}."
            )
        if model.batch % count:
            raise _uneven(model.batch, (model.batch, model.seq), count, axes)
        # The factor 2 is for the tokens and their targets, arrays of equal shape and type.
        return 2 * model.batch * model.seq * _TOKEN_BYTES // count

    def state_bytes(self) -> int:
        """Return the bytes of one device's parameters and optimizer state.

        Raises:
          StrategyError: axes that do not divide a dimension; or an error of `pipelined`.
        """
        total = 0
        for value, spec in self._arguments():
            parts = 1
            # A spec may be shorter than the shape: without the padding, zip would drop dimensions.
            for size, axes in zip(value.shape, (*spec, *(None,) * value.ndim), strict=False):
                names = () if axes is None else (axes,) if isinstance(axes, str) else axes
                count = math.prod(self.mesh.shape[name] for name in names)
                if size % count:
                    raise _uneven(size, value.shape, count, axes)
                parts *= count
            total += math.prod(value.shape) * value.dtype.itemsize // parts
        return total

    def _arguments(self) -> Iterator[tuple[Any, PartitionSpec]]:
        """Return pairs of a parameter's or state array's type and its sharding."""
        given: Any = self.laid_out().in_shardings
        specs = jax.tree.leaves(given[:2], is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
        model, stages, _ = self.step
        state = _state(replace(model, batch=1, microbatches=1), stages, self.strategy == PIPELINED)
        return zip(state, specs, strict=True)


@lru_cache(maxsize=256)
def _structure(strategy: str, mesh: Mesh) -> tuple[Any, ...]:
    """Return a key that is equal for strategies and meshes that differ only in names of axes."""
    if strategy == PIPELINED:
        return strategy, mesh
    names, layout = mesh.axis_names, layout_on(strategy, mesh)
    # Positions instead of names, because {"data": 8} and {"fsdp": 8} may have one program.
    cut = [tuple(map(names.index, c)) for c in (layout.batch, layout.weights, layout.tensor)]
    return tuple(mesh.shape.values()), *cut, SLICE in names


@lru_cache(maxsize=256)
def _batch_axes(strategy: str, mesh: Mesh) -> tuple[tuple[tuple[str, ...], int], ...]:
    """Return the axes that shard the batch and a microbatch, with the devices along them.

    The result is ((axes, number of devices) of the batch, the same of a microbatch).
    """
    piped = strategy == PIPELINED
    # In a pipeline, the batch is also sharded over the stages (L), which hold different
    # microbatches. All devices along X work on one microbatch.
    axes = ("X", "L") if piped else layout_on(strategy, mesh).batch
    both = axes, axes[:1] if piped else axes
    return tuple((a, math.prod(mesh.shape.get(axis, 1) for axis in a)) for a in both)


@lru_cache(maxsize=256)
def _state(model: DenseTransformer, stages: int, piped: bool) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return the types of parameters and optimizer state, which do not depend on the batch.

    With `piped` the layers are in `stages` pipeline stages.
    """
    one = Candidate(model, Mesh({"L": stages}), PIPELINED) if piped else None
    of = one.pipelined if one is not None else model
    return tuple(jax.tree.leaves(of.arguments()[:2]))


_TOKEN_BYTES = 4
"""Bytes of an int32."""


def _uneven(size: int, shape: tuple[int, ...], count: int, axes: Any) -> StrategyError:
    return StrategyError(
        f"a dimension of {size} of an argument {shape} is not divisible by the {count} devices "
        f"along {axes}."
    )


WIDE = DenseTransformer(
    layers=32, model_dim=8192, hidden_dim=65536, heads=128, head_dim=256, vocab=32000,
    seq=1024, batch=64,
)  # fmt: skip
NARROW = DenseTransformer(
    layers=64, model_dim=4096, hidden_dim=16384, heads=64, head_dim=128, vocab=32000,
    seq=1024, batch=192,
)  # fmt: skip
MODELS: Mapping[str, DenseTransformer] = {"narrow-16b": NARROW, "wide-64b": WIDE}
SIZES = ("layers", "model_dim", "hidden_dim", "heads", "head_dim", "vocab", "seq", "kv_heads")
"""The sizes that a user may change in a named model."""


def model_of(name: str, sizes: Mapping[str, int]) -> DenseTransformer:
    """Return the model of `MODELS` with this name, with the sizes in `sizes` changed.

    Raises:
      StrategyError: no model of that name, an unknown size, or an error of `DenseTransformer`.

    >>> model_of("narrow-16b", {"layers": 32}).parameters
    8721006592
    """
    if name not in MODELS:
        raise StrategyError(f"model {name!r}: write one of {', '.join(MODELS)}.")
    unknown = [size for size in sizes if size not in SIZES]
    if unknown:
        raise StrategyError(f"size {unknown[0]!r}: write some of {', '.join(SIZES)}.")
    changed: dict[str, Any] = dict(sizes)
    return replace(MODELS[name], **changed)
