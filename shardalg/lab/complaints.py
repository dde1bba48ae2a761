"""Questions of users about XLA's partitioner, as small functions with the users' annotations.

Most come from public issues, each reduced to a small function. Most have a remedy: an annotation
at a site, or the same function in another form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from shardalg.algebra.mesh import Mesh
from shardalg.graph.annotate import annotate, mesh_split
from shardalg.planner.propagate.strategy import Strategy

Array = jax.Array
EIGHT, GRID = Mesh({"data": 8}), Mesh({"x": 4, "y": 2})


@dataclass(frozen=True, eq=False)
class Complaint:
    """A function that XLA partitions differently from its user's expectation.

    Attributes:
      issue: where a user asked the question, such as a GitHub issue; question: its short text.
      shapes: the shapes of the arguments, which are float32.
      strategy: the user's annotations.
      sites: shardings of sites that are the remedy; {} if there are none.
      instead: another form of the function that is the remedy; None if there is none.
    """

    issue: str
    question: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    strategy: Strategy
    sites: Mapping[str, P] = field(default_factory=dict)
    instead: Callable[..., Any] | None = None

    @property
    def arguments(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The shapes and types of the arguments."""
        return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in self.shapes)

    @property
    def has_remedy(self) -> bool:
        """True if there is a remedy: shardings of sites, or another form of the function.

        With the remedy, XLA partitions the function as its user expected.
        """
        return bool(self.sites) or self.instead is not None

    @property
    def remedied(self) -> Complaint:
        """The complaint with its remedy applied."""
        strategy = replace(self.strategy, sites=dict(self.sites))
        return replace(self, function=self.instead or self.function, strategy=strategy)


def add_apart(a: Array, b: Array, c: Array) -> Array:
    """Return `a + b + c`; the sum `a + b` is resharded before `c` is added.

    The site "on the way" is the sum before the resharding.
    """
    total = annotate(a + b, "on the way")
    return mesh_split(total, GRID, [-1, (0, 1), -1]) + c


def convolve(x: Array, w: Array, *, groups: int) -> Array:
    """Return the convolution of images `x` with kernels `w`, in `groups` groups of features."""
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=groups
    )


def convolve_apart(x: Array, w: Array, *, groups: int) -> Array:
    """Return the result of `convolve` from one convolution per group of features."""
    pairs = zip(jnp.split(x, groups, axis=-1), jnp.split(w, groups, axis=-1), strict=True)
    return jnp.concatenate([convolve(*pair, groups=1) for pair in pairs], axis=-1)


def microbatches(x: Array) -> Array:
    """Return the tanh of `x`, computed for the first half of the batch, then for the second."""
    return lax.map(jnp.tanh, x.reshape(2, -1, x.shape[-1]))


def microbatches_interleaved(x: Array) -> Array:
    """Return the tanh of the even rows of `x`, then of the odd rows; every device has both."""
    return lax.map(jnp.tanh, jnp.moveaxis(x.reshape(-1, 2, x.shape[-1]), 1, 0))


def update_rows(x: Array, rows: Array) -> Array:
    """Return `x` with its first rows replaced by `rows`; the code selects them by a slice."""
    return x.at[: rows.shape[0]].set(rows)


def update_numbered_rows(x: Array, rows: Array) -> Array:
    """Return `x` with its first rows replaced by `rows`; the code selects them by their numbers."""
    return x.at[jnp.arange(rows.shape[0])].set(rows)


def quadruple(x: Array) -> Array:
    """Return `4 * x`, with the rows of `2 * x` sharded over 8 devices.

    The number of rows need not be a multiple of 8.
    """
    return mesh_split(x + x, EIGHT, [0, -1]) * 2


def quadruple_padded(x: Array) -> Array:
    """Return `quadruple(x)` after padding `x` with rows of zeros to a multiple of 8 rows."""
    return quadruple(jnp.pad(x, ((0, -len(x) % 8), (0, 0))))


def shuffle(x: Array, order: Array) -> Array:
    """Return `x` with each row permuted by the argsort of the same row of `order`."""
    return jnp.take_along_axis(x, jnp.argsort(order, axis=1), axis=1)


def roll(x: Array) -> Array:
    """Return `x` with every element moved by one place; the last element becomes the first."""
    return jnp.roll(x, 1)


_ROWS, _SLAB, _PILLARS = P("data"), P(None, ("x", "y"), None), P("y", None, "x")
COMPLAINTS: Mapping[str, Complaint] = {
    "two layouts of a sum": Complaint(
        "openxla/xla#15207, jax-ml/jax#21562",
        "Both layouts are mine: why is the whole tensor replicated between them?",
        add_apart,
        ((256, 256, 256),) * 3,
        Strategy(GRID, (_PILLARS, _PILLARS, _SLAB), _SLAB),
        sites={"on the way": P("y", "x", None)},
    ),
    "a grouped convolution": Complaint(
        "openxla/xla#47945",
        "The batch is sharded, and no feature is: why is the batch gathered?",
        partial(convolve, groups=4),
        ((16, 32, 32, 16), (3, 3, 4, 16)),
        Strategy(EIGHT, (_ROWS, P()), _ROWS),
        instead=partial(convolve_apart, groups=4),
    ),
    "microbatches": Complaint(
        "openxla/xla#13306",
        "Splitting the batch for gradient accumulation: why does it cost all-to-alls?",
        microbatches,
        ((64, 2048),),
        Strategy(EIGHT, (_ROWS,)),
        instead=microbatches_interleaved,
    ),
    "rows updated": Complaint(
        "jax-ml/jax#23052",
        "x.at[0:3].set(rows): why is all of x gathered?",
        update_rows,
        ((1024, 512), (3, 512)),
        Strategy(EIGHT, (_ROWS, P()), _ROWS),
        instead=update_numbered_rows,
    ),
    "17 rows over 8 devices": Complaint(
        "jax-ml/jax#26946",
        "I asked for a sharded value: why does a replicated one come out, without a word?",
        quadruple,
        ((17, 4096),),
        Strategy(EIGHT, (P(),)),
        instead=quadruple_padded,
    ),
    "rows shuffled": Complaint(
        "jax-ml/jax#20381",
        "Each row is shuffled by itself: what is this all-gather doing there?",
        shuffle,
        ((24, 4096), (24, 4096)),
        Strategy(EIGHT, (_ROWS, _ROWS), _ROWS),
    ),
    "an image split by rows": Complaint(
        "arXiv:2105.04663, section 4.3",
        "A convolution needs its neighbours' border rows: is that all that is sent?",
        partial(convolve, groups=1),
        ((4, 64, 64, 16), (3, 3, 16, 16)),
        Strategy(EIGHT, (P(None, "data"), P()), P(None, "data")),
    ),
    "a rotation": Complaint(
        "jax.numpy.roll",
        "Every element moves by one place: does each device send one element?",
        roll,
        ((1 << 20,),),
        Strategy(EIGHT, (_ROWS,), _ROWS),
    ),
}
