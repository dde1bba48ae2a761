"""Code on many points: as few runs as there are ways in which it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from shardalg.errors import ShardalgError
from shardalg.sizes.points.lanes import PartedError, Points

Found = TypeVar("Found")


def parted(
    points: Sequence[Mapping[str, int]], work: Callable[[dict[str, Any]], Found]
) -> Iterator[tuple[np.ndarray, Found]]:
    """What code makes of points: as few runs as there are ways in which it goes.

    A run ends where points part, and is made again of each part: numbers that differ only between
    the parts are equal in each, so one object and one key, as in the code of one point.

    Args:
      work: takes the lanes of each name.

    Yields: places of the points that went one way, and what `work` gave on their lanes.

    >>> found = parted([{"b": n} for n in (8, 9, 10)], lambda s: s["b"] // 2 if s["b"] % 2 else 0)
    >>> [(places.tolist(), made) for places, made in found]
    [([0, 2], 0), ([1], 4)]
    """
    queue = [np.arange(len(points))] if points else []
    while queue:
        waiting = queue.pop(0)
        here, names = Points(len(waiting), ends=True), points[0]
        lanes = {name: here.of([points[int(i)][name] for i in waiting]) for name in names}
        try:
            made = work(lanes)
        except PartedError:
            queue[:0] = [waiting[here.alive], waiting[~here.alive]]
            continue
        except ShardalgError:
            # Of the first point, and maybe of others that went its way: asked of it alone.
            if len(waiting) == 1:
                raise
            queue[:0] = [waiting[:1], waiting[1:]]
            continue
        finally:
            here.forget()
            here.calls.forget()
        yield waiting, made
