"""Windows of convolutions and of reduce-window on blocks: halos, masks and starts in one check.

Output `o` of a window of size `n` with stride `s` reads, at tap `t`, the place

    q = o*s + t*dilation - low

of the image, in which elements are `base_dilation` places apart. An element `i` of the image and an
element `k` of the kernel thus belong to one output before partitioning. All pairs that a device
joins in an output must belong to the same one, and none of its pairs may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardalg.xla.audit.hlo_attributes import WindowDim
from shardalg.xla.audit.values.per_device import ArrayPool, PerDevice

_FAR = 1 << 40


@dataclass(frozen=True)
class WindowSizes:
    """The sizes of one dimension: of the image, of the output, and the window."""

    image: int
    output: int
    window: WindowDim


@dataclass(frozen=True)
class WindowPlaces:
    """The outputs of a device along one dimension.

    Attributes:
      outputs: index before partitioning of each output; -1 if it is no output, [classes, length].
      cover: the taps whose kernel element the device has, [classes, taps].
      faults: 1 if an output joins elements that it should not, 2 if it lacks some, else 0.
    """

    outputs: PerDevice
    cover: PerDevice
    faults: PerDevice


def window_places(
    pool: ArrayPool,
    image: PerDevice,
    kernel: PerDevice,
    local: WindowSizes,
    whole: WindowSizes,
) -> WindowPlaces:
    """Return the outputs before partitioning that a device's outputs are.

    Args:
      image, kernel: the elements that a device holds, by index before partitioning; -1: none.
      local, whole: sizes on the device, and before partitioning.
    """

    def part(number: int):  # noqa: ANN202
        return lambda i, k: _outputs(i, k, local, whole)[number]

    key = ("window", local, whole)
    outputs, cover, faults = (pool.applied((*key, n), part(n), image, kernel) for n in range(3))
    return WindowPlaces(outputs, cover, faults)


def scattered_places(
    pool: ArrayPool,
    image: PerDevice,
    source: PerDevice,
    local: WindowSizes,
    whole: WindowSizes,
) -> PerDevice:
    """Return the index before partitioning of each element of a select-and-scatter's result.

    -1 marks an element that lacks a window, or that is in a window with other elements.

    Args:
      image, source: the elements that a device holds of the operand and of the windows' values.
      local, whole: sizes on the device, and before partitioning; `output` counts the windows.
    """

    def scatter(image: np.ndarray, source: np.ndarray) -> np.ndarray:
        """Return the index before partitioning of each element of the result.

        It has one row per class of devices, and one column per element of the image on the device.
        """
        index, inside = taps(local)
        index_whole, inside_whole = taps(whole)
        # A window is right if it reads the same elements as before partitioning, at all taps.
        held = np.where(inside, image[:, index], -1)  # [classes, windows, taps]
        window = np.clip(source, 0, None)
        wanted = np.where(inside_whole, index_whole, -1)[window]
        right = ((held == wanted).all(2)) & (source >= 0)
        made = np.where(image < 0, -1, image)
        # Windows before partitioning that cover each element.
        covers = np.zeros((whole.image, whole.output), bool)
        at, tap = np.nonzero(inside_whole)
        covers[index_whole[at, tap], at] = True
        # An element of the result is right if its device has every window that covers it before
        # partitioning, and no wrong window touches it.
        for row in range(len(made)):
            have = np.zeros((local.image, whole.output), bool)
            for number in np.nonzero(source[row] >= 0)[0]:
                touched = index[number][inside[number]]
                if right[row, number]:
                    have[touched, source[row, number]] = True
                else:
                    made[row, touched] = -1
            needed = covers[np.maximum(made[row], 0)]
            made[row] = np.where((needed & ~have).any(1), -1, made[row])
        return made

    return pool.applied(("scatter", local, whole), scatter, image, source)


def taps(sizes: WindowSizes) -> tuple[np.ndarray, np.ndarray]:
    """Return the image index per output and tap, and whether it exists, [outputs, taps]."""
    w = sizes.window
    place = np.arange(sizes.output)[:, None] * w.stride + np.arange(w.size) * w.dilation - w.low
    index = place // w.base_dilation
    exists = (place % w.base_dilation == 0) & (index >= 0) & (index < sizes.image)
    return np.clip(index, 0, max(sizes.image - 1, 0)), exists


def _outputs(
    image: np.ndarray, kernel: np.ndarray, local: WindowSizes, whole: WindowSizes
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the arrays of `WindowPlaces` for all classes of devices."""
    mine, theirs = local.window, whole.window
    index, exists = taps(local)
    tap_of = kernel[:, ::-1] if mine.is_reversed else kernel
    element = np.where(exists, image[:, index], -1)  # [classes, outputs, taps]
    # The tap before partitioning at which a kernel element stands.
    tap = np.where(tap_of < 0, -1, theirs.size - 1 - tap_of if theirs.is_reversed else tap_of)
    used = (element >= 0) & (tap >= 0)[:, None, :]
    start = element * theirs.base_dilation + theirs.low - tap[:, None, :] * theirs.dilation
    output = np.where(used & (start % theirs.stride == 0), start // theirs.stride, -_FAR)
    best = np.where(used, output, -_FAR).max(2)
    joins = (used & (output != best[:, :, None])).any(2)
    # A window that reads no element has the place that its neighbours give it.
    steps = np.arange(local.output)
    origin = np.where(best > -_FAR, best - steps, -_FAR).max(1, keepdims=True)
    place = np.where(origin > -_FAR, origin + steps, steps)
    place = np.where(best > -_FAR, best, place)
    outside = (place < 0) | (place >= whole.output)
    safe = np.where(outside, 0, place)
    # Every element that the output reads before partitioning, at a tap that the device has.
    cover = np.zeros((len(kernel), theirs.size), bool)
    for row, held in enumerate(tap):
        cover[row, held[held >= 0]] = True
    _, needed = taps(whole)
    have = np.zeros((len(image), local.output, theirs.size), bool)
    at, o, t = np.nonzero(used)
    have[at, o, tap[at, t]] = True
    lacks = (needed[safe] & cover[:, None, :] & ~have).any(2) & ~outside & ~joins
    twice = np.zeros(joins.shape, np.int64)
    np.add.at(twice, (at, o), 1)
    joins = joins | (twice != have.sum(2))
    faults = np.where(joins, 1, np.where(lacks, 2, 0))
    return np.where(outside | joins | lacks, -1, place), cover, faults
