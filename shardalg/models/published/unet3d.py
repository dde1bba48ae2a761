"""The 3D U-Net (arXiv:1606.06650), partitioned in space: section 5.6 of GSPMD (arXiv:2105.04663).

Each level on the way down halves the image and doubles the channels. Each level on the way up
joins the output that the same level made on the way down. Only the inputs are annotated: batch
along X, depth along Y. Completion propagates this sharding to every convolution (halo exchange),
pooling and norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardalg.errors import StrategyError
from shardalg.models import transformer
from shardalg.models.model import Data, DimensionAxes, Model, Parameter

Array = jax.Array

SPATIAL = DimensionAxes(None, {"B": "X", "d": "Y"}, ())
_NAMES = ("NDHWC", "DHWIO", "NDHWC")
MOST_LEVELS = 8


@dataclass(frozen=True)
class UNet3D:
    """A U-Net on images of `size` voxels in each direction.

    Attributes:
      batch, channels, classes: numbers of images, of input channels, of classes of a voxel.
      width: channels of the first level; levels: the number of levels.

    Raises:
      StrategyError: a number below 1, or a size that the levels do not halve evenly.

    >>> UNet3D(width=32, levels=4, channels=1, classes=3).model.parameters
    5598144
    """

    batch: int = 2
    size: int = 8
    channels: int = 1
    classes: int = 3
    width: int = 4
    levels: int = 2
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        """Raise StrategyError for an impossible size, or one that the levels do not halve."""
        names = ("batch", "size", "channels", "classes", "width", "levels")
        bad = {n: getattr(self, n) for n in names if type(getattr(self, n)) is not int}
        bad |= {n: getattr(self, n) for n in names if n not in bad and getattr(self, n) < 1}
        if bad or self.levels > MOST_LEVELS:
            raise StrategyError(
                f"sizes of a U-Net are integers of at least 1, at most {MOST_LEVELS} levels, "
                f"got {bad or self.levels}."
            )
        if self.size % 2 ** (self.levels - 1):
            raise StrategyError(
                f"{self.levels} levels halve an image {self.levels - 1} times, and {self.size} is "
                f"not divisible by {2 ** (self.levels - 1)}."
            )

    @property
    def model(self) -> Model:
        """The model with these sizes, with weights, data and loss, to be planned and trained."""
        # Level i has width * 2^i channels, and twice as many after it has joined the output of the
        # way down.
        sizes = {_channel(i): self.width * 2**i for i in range(self.levels)}
        sizes |= {_joined(i): 2 * self.width * 2**i for i in range(self.levels - 1)}
        image = {"B": self.batch, "d": self.size, "h": self.size, "w": self.size}
        return Model(
            sizes={**sizes, **image, "i": self.channels, "o": self.classes, "3": 3, "2": 2},
            weights=dict(self._weights()),
            data=(Data("Bdhwi"), Data("Bdhw", below="o")),
            loss=partial(loss, self),
            sites={},
        )

    def _weights(self) -> Iterator[tuple[str, Parameter]]:
        """Yield the name and the letters of each convolution kernel, level by level.

        The letters "333" are a kernel of 3 x 3 x 3; then follow input and output channels. The
        number after them says that the first four dimensions are contracted.
        """
        for i in range(self.levels):
            channels = _channel(i)
            yield (
                f"down {i} first",
                Parameter("333" + (_channel(i - 1) if i else "i") + channels, 4),
            )
            yield f"down {i} second", Parameter("333" + channels + channels, 4)
        for i in range(self.levels - 1):
            channels = _channel(i)
            yield f"up {i} doubles", Parameter("222" + _channel(i + 1) + channels, 4)
            yield f"up {i} first", Parameter("333" + _joined(i) + channels, 4)
            yield f"up {i} second", Parameter("333" + channels + channels, 4)
        yield "classes", Parameter(_channel(0) + "o")


def _channel(level: int) -> str:
    """Return the letter of a level's channels."""
    return "JKLMNOPQ"[level]


def _joined(level: int) -> str:
    """Return the letter of a level's channels after the join: twice `_channel(level)`."""
    return "jklmnpq"[level]


def loss(config: UNet3D, params: Any, images: Array, targets: Array) -> Array:
    """Return the mean cross-entropy of the voxels' classes, in nats."""
    return transformer.cross_entropy(forward(config, params, images), targets)


def forward(config: UNet3D, params: Any, images: Array) -> Array:
    """Return logits (batch, depth, height, width, classes) in float32."""
    weights = {name: weight.astype(config.dtype) for name, weight in params.items()}
    x, down_outputs = images.astype(config.dtype), []
    for i in range(config.levels):
        if i:
            # Windows of 2 with stride 2 do not overlap: an even block of the image needs no halo.
            window = (1, 2, 2, 2, 1)
            x = lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")
        x = _twice(weights, f"down {i}", x)
        down_outputs.append(x)
    # The way up starts at the second deepest level, because the deepest has no output to join.
    for i in reversed(range(config.levels - 1)):
        x = lax.conv_transpose(
            x, weights[f"up {i} doubles"], (2, 2, 2), "VALID", dimension_numbers=_NAMES
        )
        x = _twice(weights, f"up {i}", jnp.concatenate([down_outputs[i], x], -1))
    return jnp.einsum("bdhwc,co->bdhwo", x, weights["classes"]).astype(jnp.float32)


def _twice(weights: Any, name: str, x: Array) -> Array:
    """Return `x` after the two convolutions of a level, each followed by a norm and a relu."""
    for which in ("first", "second"):
        kernel = weights[f"{name} {which}"]
        # "SAME" with three taps reads one element beyond each end: the halo of a sharded depth.
        convolved = lax.conv_general_dilated(x, kernel, (1, 1, 1), "SAME", dimension_numbers=_NAMES)
        x = jax.nn.relu(_norm(convolved))
    return x


def _norm(x: Array) -> Array:
    """Return `x` with zero mean and unit variance per image and channel, in float32 inside."""
    x32 = x.astype(jnp.float32)
    # Mean and mean square come from one pass over the image, so that XLA can fuse both sums.
    mean = jnp.mean(x32, (1, 2, 3), keepdims=True)
    square = jnp.mean(jnp.square(x32), (1, 2, 3), keepdims=True)
    return ((x32 - mean) * lax.rsqrt(square - jnp.square(mean) + 1e-5)).astype(x.dtype)
