"""The settings of an exploration: model sizes, mesh, strategies, and the extent of the runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.algebra.notation.read import assignments
from shardalg.errors import MeshError, StrategyError
from shardalg.lab.table1_strategies import STRATEGIES
from shardalg.models.transformer import WIDE_64B, Config

# B, S, M and H differ, so that a drawing can name each dimension by its size.
SMALL = Config(B=8, S=32, M=128, H=512, N=16, D=16, V=1024, L=2, dtype="float32")
TINY = Config(B=4, S=12, M=16, H=32, N=8, D=6, V=40, L=2, dtype="float32")
# With rematerialisation every strategy fits the paper's chip, so the report can compare all of
# them on it.
WIDE = replace(WIDE_64B, remat=True)
MODELS: Mapping[str, Config] = {"tiny": TINY, "small": SMALL, "wide-64b": WIDE}
MESH = Mesh({"X": 2, "Y": 4})
SIZES = tuple(field.name for field in fields(Config) if len(field.name) == 1)


@dataclass(frozen=True)
class Settings:
    """The settings of one exploration.

    Attributes:
      config: the Transformer's sizes.
      mesh: a mesh of two axes, which are the paper's X and Y in this order, with any names.
      strategies: names of rows of Table 1.
      devices: the largest number of CPU devices that plans run on; 0 runs nothing.
      quick: True for fewer timed runs, and no whole train steps.
      steps: the number of training steps of the third-party model.
      seed: the seed of the random arguments of the runs.
      out: the folder of the report.

    Raises:
      MeshError: the mesh does not have two axes. StrategyError: an unknown strategy, or none.
    """

    config: Config = SMALL
    mesh: Mesh = MESH
    strategies: tuple[str, ...] = tuple(STRATEGIES)
    devices: int = 8
    quick: bool = False
    steps: int = 20
    seed: int = 0
    out: Path = Path("out/explore")

    def __post_init__(self) -> None:
        """Check the mesh, the names of the strategies and the number of devices."""
        if len(self.mesh.axis_names) != 2:
            raise MeshError(
                f"the strategies of Table 1 need a mesh of two axes, got {self.mesh!r}. "
                "Give one such as X=2,Y=4."
            )
        unknown = [name for name in self.strategies if name not in STRATEGIES]
        if unknown or not self.strategies:
            raise StrategyError(
                f"no strategy {', '.join(map(repr, unknown)) or 'was named'}; "
                f"Table 1 has {', '.join(map(repr, STRATEGIES))}."
            )
        if self.devices < 0:
            raise StrategyError(f"a number of devices is at least 0, got {self.devices}.")

    @property
    def can_run(self) -> bool:
        """True if there are enough devices for the mesh."""
        return self.mesh.size <= self.devices

    @property
    def repeats(self) -> int:
        """The number of timed runs of each executable."""
        return 5 if self.quick else 15

    @property
    def dim_names(self) -> dict[int, str]:
        """The letter of each dimension of the feed-forward layer by its size.

        Sizes that two dimensions have are left out.

        >>> Settings(replace(SMALL, B=32)).dim_names
        {128: 'M', 512: 'H'}
        """
        sizes = [(getattr(self.config, letter), letter) for letter in "BSMH"]
        counts = [size for size, _ in sizes]
        return {size: letter for size, letter in sizes if counts.count(size) == 1}


PAPER = Settings(replace(WIDE, scan=True), Mesh({"X": 8, "Y": 16}))
"""The first column of the paper's Table 2, with layers scanned and rematerialised."""


def config_of(model: str, sizes: str = "") -> Config:
    """Return the model with this name, with some of its sizes changed.

    >>> config_of("small", "B=3,H=9").H
    9

    Raises:
      StrategyError: no such model, or no such size.
    """
    if model not in MODELS:
        raise StrategyError(f"no model {model!r}; the models are {', '.join(MODELS)}.")
    found: dict[str, Any] = {**assignments(sizes, "sizes", "B=8,S=64")}
    unknown = [name for name in found if name not in SIZES]
    if unknown:
        raise StrategyError(
            f"the model has no size {', '.join(unknown)}; its sizes are {', '.join(SIZES)}."
        )
    return replace(MODELS[model], **found)
