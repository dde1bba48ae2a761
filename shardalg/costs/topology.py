"""Machines of many chips: slices of a torus or islands of GPUs, with mesh axes placed on links."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.costs.hardware import DefaultChip, Hardware, load
from shardalg.costs.network.collective_seconds import LATENCY, collective_s
from shardalg.costs.network.placement import (
    CHIP,
    HOSTS,
    SLICES,
    SWITCH,
    TORUS,
    DigitSpan,
    Level,
    Placement,
    Wiring,
    exact_placement,
    fill_levels,
    spans,
)
from shardalg.errors import HardwareError
from shardalg.tables import Table


@dataclass(frozen=True)
class Topology:
    """Machine of many chips of one kind, with the links that join them.

    A TPU slice is a torus of chips. A dimension that is too small to wrap around is a line, with
    half the bandwidth of a ring. GPUs form islands of a switch (NVLink), and a network joins the
    islands. The data center network joins several slices. The axes of a mesh are placed on these
    links, which gives the bandwidth and the hops of each axis.

    Args:
      hardware: a chip's name, or a `Hardware` with an interconnect.
      shape: chips along each dimension of one slice; for GPUs (islands, GPUs per island).
      chips: number of chips of one slice, instead of `shape`; the vendor's shape is used.
      slices: number of slices.
      order: the order in which mesh axes fill the links.
      network_axes: the mesh axes that cross the slow network, between slices or between islands of
        GPUs. The default is the outermost axes. The name of an axis has no meaning.

    Raises:
      HardwareError: the chip's interconnect is unknown; the shape has other dimensions than
        the torus, or is larger; the vendor has no shape for the number of chips; or there are
        several slices of a chip without a data center network.

    >>> Topology("v3", shape=(8, 8)), Topology("v5e", chips=256, slices=2)
    (Topology(tpu_v3:8x8), Topology(tpu_v5e:16x16, slices=2))
    >>> across = Topology("v5e", chips=256, slices=2, network_axes="replica")
    >>> print(across.axes(Mesh({"fsdp": 256, "replica": 2})).select("axis", "on"))
    axis     on
    fsdp     torus 16 x torus 16
    replica  dcn 2
    >>> print(Topology("v3", shape=(8, 8)).axes(Mesh({"X": 8, "Y": 16})))
    axis  devices  on                wraps  bytes_per_s  hops  latency_s
    X           8  torus 8           False     4.15e+10     7      7e-06
    Y          16  torus 8 x chip 2  False     8.89e+10     7      7e-06
    """

    hardware: Hardware
    shape: tuple[int, ...]
    slices: int = 1
    order: tuple[str, ...] = ()
    network_axes: tuple[str, ...] = ()

    def __init__(
        self,
        hardware: str | Hardware,
        shape: Sequence[int] | None = None,
        *,
        chips: int | None = None,
        slices: int = 1,
        order: Sequence[str] = (),
        network_axes: str | Sequence[str] = (),
    ) -> None:
        """Check the arguments and store them in the fields, each in the field's type."""
        # A chip's name, text and lists are accepted, but the fields have one hashable type each.
        chip = load(hardware)
        given = _shape(chip, shape, chips)
        _check_slices(chip, slices)
        _check_names("order", order)
        crossing = (network_axes,) if isinstance(network_axes, str) else network_axes
        _check_names("network_axes", crossing)
        named = {"hardware": chip, "shape": given, "slices": slices, "order": tuple(order)}
        named["network_axes"] = tuple(crossing)
        for name, value in named.items():
            # The class is frozen, so that topologies are keys of caches.
            object.__setattr__(self, name, value)

    @staticmethod
    def parse(text: str) -> Topology:
        """Return the topology that a text such as `v3:8x8` or `tpu_v5e:16x16*2` describes.

        `*2` means two slices; a single number is the number of chips. The axes that cross the slow
        network follow `@`, as in `v5e:16x16*2@replica`. The order in which axes fill the links
        follows a slash, as in `v3:8x8/Y,X`.

        Raises:
          HardwareError: the text has another form, or `Topology` refuses the values.

        >>> Topology.parse("tpu_v3:8x8").text, Topology.parse("h100:64").text
        ('tpu_v3:8x8', 'h100:8x8')
        """
        match = re.fullmatch(r"(.+?):(\d+(?:x\d+)*)(?:\*(\d+))?(?:@([^/]+))?(?:/(.+))?", text)
        if not match:
            raise HardwareError(
                f"{text!r} is no topology: write the chip and its shape, as in 'v3:8x8', "
                "'tpu_v5e:16x16*2' for two slices, or 'h100:64' for so many chips."
            )
        chip, sizes, slices, crossing, order = match.groups()
        shape = tuple(map(int, sizes.split("x")))
        # A single number is a count of chips, whose shape is the vendor's.
        options: dict[str, Any] = {"chips": shape[0]} if len(shape) == 1 else {"shape": shape}
        options["order"] = order.split(",") if order else ()
        options["network_axes"] = crossing.split(",") if crossing else ()
        return Topology(chip, slices=int(slices or 1), **options)

    @property
    def text(self) -> str:
        """Text of the topology, in the form that `parse` reads."""
        slices = f"*{self.slices}" if self.slices > 1 else ""
        crossing = f"@{','.join(self.network_axes)}" if self.network_axes else ""
        order = f"/{','.join(self.order)}" if self.order else ""
        return f"{self.hardware.name}:{'x'.join(map(str, self.shape))}{slices}{crossing}{order}"

    def __str__(self) -> str:
        return self.text

    @property
    def chip(self) -> Hardware:
        """The chip that the topology consists of."""
        return self.hardware

    def on(self, software: str) -> Topology:
        """Return the topology with the constants of a software stack; see `Hardware.on`."""
        return replace(self, hardware=self.hardware.on(software))

    def shared(self, devices: int) -> Topology:
        """Return the topology unchanged."""
        # `Hardware.shared` divides the cores of one machine; chips do not share cores.
        return self

    def __repr__(self) -> str:
        """Return the topology as text, such as `Topology(tpu_v5e:16x16, slices=2)`."""
        slices = f", slices={self.slices}" if self.slices > 1 else ""
        order = f", order={','.join(self.order)}" if self.order else ""
        crossing = f", network_axes={','.join(self.network_axes)}" if self.network_axes else ""
        shape = "x".join(map(str, self.shape))
        return f"Topology({self.hardware.name}:{shape}{slices}{order}{crossing})"

    @property
    def chips(self) -> int:
        """Number of chips of all slices together."""
        return math.prod(self.shape) * self.slices

    @property
    def devices(self) -> int:
        """Number of devices that JAX shows: cores of TPU v2 and v3, chips of all others."""
        return self.chips * self.hardware.interconnect.cores_per_chip

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """Levels of the network, outermost first.

        For TPUs they are slices, the dimensions of a slice's torus, and the cores of a chip. For
        GPUs they are slices, islands, and the GPUs of an island.
        """
        chip, joined = self.hardware, self.hardware.interconnect
        cores = joined.cores_per_chip
        host = joined.chips_per_host * cores
        levels = [Level(SLICES, self.slices, chip.dcn_bytes_per_s, chip.dcn_latency_s, host)]
        if joined.island:
            # Islands come first in the shape, because levels are ordered from slow to fast.
            islands, inside = self.shape
            levels += [
                Level(HOSTS, islands, chip.network_bytes_per_s, chip.network_latency_s),
                Level(SWITCH, inside, chip.link_bytes_per_s, chip.latency_s),
            ]
        else:
            wraps = joined.wraps(self.shape)
            levels += [
                Level(TORUS, size, chip.link_bytes_per_s, chip.latency_s, cores, ring)
                for size, ring in zip(self.shape, wraps, strict=True)
            ]
            levels.append(Level(CHIP, cores, math.inf))
        return tuple(replace(level, number=number) for number, level in enumerate(levels))

    def spans(self, mesh: Mesh) -> dict[str, tuple[DigitSpan, ...]]:
        """Return the links that each axis of a mesh uses, as spans, major first.

        The innermost axis takes whole levels whose product is its size, as JAX does. If this is
        impossible, axes fill the levels from the inside, on a torus also parts of a level. The
        `network_axes`, by default the outermost axes, cross the slow network. With an `order`, axes
        fill the levels in that order.

        Raises:
          HardwareError: the mesh does not tile the topology.
        """
        return _spans(self, mesh)

    def wiring(self, mesh: Mesh) -> Wiring:
        """Return the links of a mesh; `Wiring.spans` returns the links of one axis or a part of it.

        Raises:
          HardwareError: the mesh does not tile the topology.
        """
        return Wiring(mesh, self.spans(mesh))

    def speeds(self, mesh: Mesh) -> dict[str, float]:
        """Return, for each mesh axis, the bytes per second that a device receives.

        The rate is that of an all-gather along this axis alone, without latency.
        """
        return {name: _speed(found) for name, found in self.spans(mesh).items()}

    def axes(self, mesh: Mesh) -> Table:
        """Return a table with a row per mesh axis: its links, bytes per second, hops and latency.

        The rate counts the bytes that a device receives in an all-gather along this axis alone.
        "latency_s" is the latency of this all-gather.
        """
        table_rows = []
        for (name, axis_spans), size in zip(
            self.spans(mesh).items(), mesh.shape.values(), strict=True
        ):
            parts = []
            # An axis may run over several levels of the network, e.g. a part of a torus and the
            # slices.
            for span in axis_spans:
                stride = f" by {span.stride}" if span.stride > 1 else ""
                parts.append(f"{span.level.medium} {span.count}{stride}")
            link_text = " x ".join(parts) or "one device"
            latency = collective_s("all_gather", axis_spans, 1)[LATENCY]
            hops = sum(span.hops for span in axis_spans)
            wraps = any(span.wraps for span in axis_spans)
            table_rows.append(
                (name, size, link_text, wraps, float(f"{_speed(axis_spans):.3g}"), hops, latency)
            )
        names = ("axis", "devices", "on", "wraps", "bytes_per_s", "hops", "latency_s")
        return Table(names, tuple(table_rows))


def _speed(found: Sequence[DigitSpan]) -> float:
    """Return the bytes per second that a device receives in an all-gather, without latency."""
    taken = collective_s("all_gather", found, _MANY)
    # Latency is a column of its own.
    seconds = sum(s for cause, s in taken.items() if cause != LATENCY)
    received = _MANY * (math.prod(span.count for span in found) - 1)
    return received / seconds if seconds else math.inf


_MANY = 1 << 20  # bytes; any number gives the same speed


@lru_cache(maxsize=256)
def _spans(topology: Topology, mesh: Mesh) -> dict[str, tuple[DigitSpan, ...]]:
    """Return, for each axis of a mesh, the links that it uses, as spans (`Topology.spans`).

    The result is cached, because each price of a mesh asks for it.

    Raises:
      HardwareError: the mesh does not tile the topology.
    """
    sizes = mesh.shape
    levels = topology.levels
    counts = [level.size for level in levels]
    if mesh.size != topology.devices:
        raise _tiling_error(
            topology, mesh, f"it has {topology.devices} devices, the mesh {mesh.size}"
        )
    if topology.order or topology.network_axes:
        placed = _placement_by_options(topology, mesh, counts)
    else:
        # First whole levels, as JAX places devices. Then levels filled one after the other; at last
        # parts of a torus dimension, which axes share (`allow_split_physical_axes` in JAX).
        torus = not topology.hardware.interconnect.island
        placed = (_whole_level_placement(sizes, counts) if torus else None) or fill_levels(
            sizes, counts
        )
        if placed is None and torus:
            placed = fill_levels(sizes, counts, shared=True)
    if placed is None:
        raise _tiling_error(topology, mesh, "no axis or part of one fits along its dimensions")
    return dict(spans(placed, sizes, levels))


def _whole_level_placement(sizes: Mapping[str, int], counts: Sequence[int]) -> Placement | None:
    """Return a placement in which each mesh axis fills whole levels of a topology, or None.

    If there are several slices, the outermost axis runs over all of them.

    Args:
      sizes: sizes of the mesh axes, major first.
      counts: sizes of the levels, outermost first.
    """
    outermost_axis = next((a for a, size in sizes.items() if size > 1), "")
    # One slice needs no axis over slices.
    if counts[0] == 1 or not outermost_axis:
        return exact_placement(sizes, counts)
    if sizes[outermost_axis] % counts[0]:
        return None
    inner_sizes = {**sizes, outermost_axis: sizes[outermost_axis] // counts[0]}
    # The remaining part of the outermost axis must fit on whole levels inside of a slice.
    placement = exact_placement(inner_sizes, [1, *counts[1:]])
    return placement and {
        **placement,
        outermost_axis: [(0, counts[0], 1), *placement[outermost_axis]],
    }


def _placement_by_options(
    topology: Topology, mesh: Mesh, counts: Sequence[int]
) -> Placement | None:
    """Return the placement that `network_axes` and `order` ask for; None if it is impossible.

    Args:
      counts: sizes of the levels, outermost first.
    """
    # Slices, and for GPUs also islands, are the levels of the slow network.
    levels = 2 if topology.hardware.interconnect.island else 1
    sizes = dict(mesh.shape)
    if not topology.network_axes:
        return _placement_in_order(topology, mesh, sizes, counts)
    shares = _network_shares(topology, mesh, math.prod(counts[:levels]))
    outside = fill_levels({n: shares.get(n, 1) for n in sizes}, counts[:levels], shared=True)
    # The slow network has its share of each axis, so only the rest is placed inside of the slices
    # or islands.
    rest = {name: size // shares.get(name, 1) for name, size in sizes.items()}
    # Levels of size 1 keep the numbers of the inner levels.
    ones = [1] * levels
    if topology.order:
        inside = _placement_in_order(topology, mesh, rest, [*ones, *counts[levels:]])
    else:
        # Axes that use whole dimensions of a torus have the most links. Otherwise axes may share a
        # dimension, as in JAX. The switch of an island (two levels) has no dimensions to share.
        inside = exact_placement(rest, [*ones, *counts[levels:]]) or fill_levels(
            rest, [*ones, *counts[levels:]], shared=levels == 1
        )
    if outside is None or inside is None:
        return None
    return {name: [*outside[name], *inside[name]] for name in sizes}


def _network_shares(topology: Topology, mesh: Mesh, parts: int) -> dict[str, int]:
    """Return, for each of `network_axes`, the number of slices or islands that it runs over.

    Args:
      parts: number of slices, or of islands of all slices.

    Raises:
      HardwareError: an axis is unknown, or the axes do not divide into the slices or islands.
    """
    unknown = [name for name in topology.network_axes if name not in mesh.axis_names]
    if unknown:
        raise HardwareError(
            f"network_axes={list(topology.network_axes)} of {topology!r} names {unknown[0]!r}, "
            f"which is no axis of {mesh!r}: give axes of the mesh."
        )
    # The share of an axis limits the shares of later ones, so the order of the mesh decides: each
    # axis takes the largest share that divides both.
    left, shares = parts, {}
    for name in (name for name in mesh.axis_names if name in topology.network_axes):
        shares[name] = math.gcd(mesh.shape[name], left)
        left //= shares[name]
    # An axis that was named but takes no share would silently stay inside of a slice.
    idle = [name for name, share in shares.items() if share == 1 < mesh.shape[name]]
    if left > 1 or idle:
        names = ", ".join(f"{name}={mesh.shape[name]}" for name in shares)
        what = "islands" if topology.hardware.interconnect.island else "slices"
        raise _tiling_error(
            topology, mesh, f"the network axes {names} do not divide into its {parts} {what}"
        )
    return shares


def _placement_in_order(
    topology: Topology, mesh: Mesh, sizes: Mapping[str, int], counts: Sequence[int]
) -> Placement | None:
    """Return the placement that fills levels from the inside in the requested order of axes.

    The result is None if the sizes do not divide.

    Args:
      sizes: sizes of the mesh axes.
      counts: sizes of the levels, outermost first.

    Raises:
      HardwareError: `Topology.order` does not name each axis of the mesh once.
    """
    if sorted(topology.order) != sorted(mesh.axis_names):
        raise HardwareError(
            f"order={list(topology.order)} of {topology!r} is not the axes of {mesh!r}: give each "
            "of them once, the one on the slowest links first."
        )
    return fill_levels({name: sizes[name] for name in topology.order}, counts)


def _tiling_error(topology: Topology, mesh: Mesh, why: str) -> HardwareError:
    """Return the error for a mesh that cannot be placed on a topology.

    Args:
      why: the reason, as a clause without a full stop.
    """
    cores_per_chip = topology.hardware.interconnect.cores_per_chip
    slices = f" on {topology.slices} slices" if topology.slices > 1 else ""
    cores = f", {cores_per_chip} devices to a chip" if cores_per_chip > 1 else ""
    return HardwareError(
        f"{mesh!r} does not tile {topology!r}: {why}. Its chips lie "
        f"{' x '.join(map(str, topology.shape))}{slices}{cores}: give axes whose sizes are "
        "products of these, or another shape=, chips= or slices=."
    )


def _shape(chip: Hardware, shape: Any, chips: Any) -> tuple[int, ...]:
    """Return the shape of a slice: the given one, or the vendor's for a number of chips.

    Raises:
      HardwareError: as in `Topology`, or not exactly one of both is given.
    """
    interconnect = chip.interconnect
    if not (interconnect.dimensions or interconnect.island):
        raise HardwareError(
            f"nothing is known of how chips of {chip.name!r} are joined: give its file an "
            "'interconnect' as chips/tpu_v3.json has, or take the chip alone instead of a "
            "topology: all its axes then have links of their own."
        )
    example_shape = interconnect.default(64)
    if (shape is None) == (chips is None):
        raise HardwareError(
            f"a Topology of {chip.name} takes shape={example_shape} or chips=64, one of the two; "
            f"got shape={shape}, chips={chips}."
        )
    if shape is not None:
        return _check_shape(chip, tuple(shape) if isinstance(shape, list | tuple) else (shape,))
    shape_of_chips = interconnect.default(chips) if type(chips) is int and chips > 0 else None
    if shape_of_chips is None:
        offered = ", ".join(str(math.prod(s)) for s in interconnect.shapes)
        known_numbers = (
            offered or f"1 to {interconnect.island - 1}, and multiples of {interconnect.island}"
        )
        raise HardwareError(
            f"chips={chips!r}: no slice of {chip.name} has so many; there are {known_numbers}. "
            f"Give one of these, or the shape itself: shape={example_shape}."
        )
    return shape_of_chips


def _check_shape(chip: Hardware, shape: tuple[Any, ...]) -> tuple[int, ...]:
    """Return a shape; raise `HardwareError` if it does not fit into the chip's largest slice."""
    interconnect = chip.interconnect
    largest = interconnect.dimensions or (None, interconnect.island)
    is_shape = len(shape) == len(largest) and all(type(n) is int and n >= 1 for n in shape)
    is_within = is_shape and any(
        all(limit is None or n <= limit for n, limit in zip(oriented_shape, largest, strict=True))
        # A torus may be turned, but islands and GPUs per island are different things.
        for oriented_shape in (shape, shape[::-1] if interconnect.dimensions else shape)
    )
    if not is_within:
        limit = " x ".join("any number" if n is None else str(n) for n in largest)
        kind = "chips along each dimension" if interconnect.dimensions else "islands, GPUs in each"
        raise HardwareError(
            f"shape={shape} is no slice of {chip.name}: it has {len(largest)} numbers of at least "
            f"1 ({kind}), at most {limit}."
        )
    return shape


def _check_names(what: str, given: Any) -> None:
    """Raise `HardwareError` unless a value is a list of axis names, each once.

    Args:
      what: the name of the argument, for the message.
    """
    good = isinstance(given, str | list | tuple) and all(type(axis) is str for axis in given)
    if not good or len(set(given)) < len(given):
        raise HardwareError(
            f'{what}={given!r}: give the names of axes, each once, as in ["Y", "X"].'
        )


def _check_slices(chip: Hardware, slices: Any) -> None:
    """Raise `HardwareError` unless a chip can be joined to so many slices.

    Slices are connected by the data center network, so its rate must be known.
    """
    if type(slices) is not int or slices < 1:
        raise HardwareError(f"slices={slices!r}: give a number of at least 1.")
    if slices > 1 and math.isinf(chip.dcn_bytes_per_s):
        raise HardwareError(
            f"slices={slices}: no data center network is known for {chip.name}; take one slice, or "
            "give its file the figure 'dcn_bytes_per_s'."
        )


@dataclass(frozen=True)
class PlacedTopology:
    """A topology on which another mesh is placed than that of the priced program.

    The formulas of a program with named axis sizes hold at many meshes, and its instructions have
    the digits of one. The axes have the same names on all of them, and other links.

    Attributes:
      mesh: the mesh whose axes have the links.
    """

    topology: Topology
    mesh: Mesh

    @property
    def chip(self) -> Hardware:
        """The chip that the topology consists of."""
        return self.topology.chip

    def shared(self, devices: int) -> PlacedTopology:
        """Return the topology unchanged."""
        return self

    def wiring(self, mesh: Mesh) -> Wiring:
        """Return the links under the axes, for instructions on another mesh of these axes.

        Raises:
          HardwareError: the placed mesh does not tile the topology.
        """
        return Wiring(mesh, self.topology.spans(self.mesh))


Machine = Hardware | Topology
"""Prices need either; a bare `Hardware` gives each mesh axis separate links."""


def machine(given: str | Machine) -> Machine:
    """Return a chip or a topology from its text.

    The text is the name of a chip, the path of a hardware file, or a topology such as "v3:8x8".
    A `Hardware` or `Topology` is returned unchanged.

    Raises:
      HardwareError: the text is none of these.

    >>> machine("v3:8x8"), machine("v3").name
    (Topology(tpu_v3:8x8), 'tpu_v3')
    """
    if isinstance(given, Topology | PlacedTopology):
        return given
    # The path of a hardware file may contain a colon too.
    if isinstance(given, str) and ":" in given and not given.endswith(".json"):
        return Topology.parse(given)
    return load(given)


def arranged(given: str | Machine, mesh: Mesh) -> Machine:
    """Return the topology in which the vendor joins as many chips as a mesh needs.

    For GPUs these are whole islands, for TPUs a slice that is sold. A topology is returned
    unchanged. A chip is returned unchanged, with separate links for each mesh axis, in five
    cases: its links are unknown; it has links given by mesh axis (`axis_link_bytes_per_s`); the
    vendor sells no such number; the mesh does not tile the slice; or axes of the mesh have named
    sizes, because a formula must hold at all sizes.

    Args:
      given: a chip or its name, or a topology or its text such as "h100:2x8".

    >>> arranged("h100", Mesh({"fsdp": 16})), arranged("h100", Mesh({"fsdp": 12})).name
    (Topology(h100:2x8), 'h100')
    """
    machine_or_chip = machine(given)
    interconnect = machine_or_chip.chip.interconnect
    cores = interconnect.cores_per_chip
    is_known = interconnect.dimensions or interconnect.island
    own_links = machine_or_chip.chip.axis_link_bytes_per_s
    if isinstance(machine_or_chip, Topology) or not is_known or own_links or mesh.symbolic:
        return machine_or_chip
    if mesh.size % cores or interconnect.default(mesh.size // cores) is None:
        return machine_or_chip
    topology = Topology(machine_or_chip, chips=mesh.size // cores)
    # `spans` raises if the mesh does not tile the slice.
    try:
        topology.spans(mesh)
    except HardwareError:
        return machine_or_chip
    return topology


def with_devices_of(given: Topology, mesh: Mesh) -> Topology:
    """Return a topology with as many devices as a mesh has; unchanged if it has so many.

    Several slices change their number and keep their shape. One slice, or the islands of GPUs, get
    the vendor's shape for so many chips. The order of axes and the network axes stay.

    Raises:
      HardwareError: the vendor joins no such number of chips, or the slices do not divide.

    >>> with_devices_of(Topology("h100", chips=64), Mesh({"X": 16})).text
    'h100:2x8'
    >>> with_devices_of(Topology("v5e", chips=256, slices=2), Mesh({"X": 4, "Y": 256})).text
    'tpu_v5e:16x16*4'
    """
    if mesh.size == given.devices:
        return given
    cores = given.hardware.interconnect.cores_per_chip
    if given.slices == 1:
        # A chip may count as several devices, e.g. two cores on a TPU v3.
        chips, remainder = divmod(mesh.size, cores)
        kept_options = {"order": given.order, "network_axes": given.network_axes}
        if not remainder:
            return Topology(given.hardware, chips=chips, **kept_options)  # type: ignore[arg-type]
        raise HardwareError(
            f"{mesh!r} has {mesh.size} devices, and a chip of {given.hardware.name} has {cores}: "
            "give axes whose product is a multiple."
        )
    devices_per_slice = given.devices // given.slices
    slices, remainder = divmod(mesh.size, devices_per_slice)
    if remainder or not slices:
        raise HardwareError(
            f"{mesh!r} has {mesh.size} devices, which is no number of slices of {given!r} with "
            f"{devices_per_slice} devices each: give a multiple, or a topology of one slice."
        )
    return replace(given, slices=slices)


OWN_LINKS = "each mesh axis on links of its own"
OF_OPTIONS = "the chip of the plan's options"
"""Source that `chip_text` prints if neither the call nor the default chose the chip."""


def chip_text(asked: str | Machine, devices: int | str, source: str = "as asked for") -> str:
    """Return text that names the number of devices, the chip, and who chose it.

    Args:
      asked: the chip or topology that was chosen.
      source: words for who chose it; for a `DefaultChip` they are "the default chip".
    """
    source = "the default chip" if isinstance(asked, DefaultChip) else source
    return f"{devices} x {machine(asked).chip.name} ({source}; devices of the mesh)"


def machine_text(
    asked: str | Machine,
    devices: int | str,
    source: str = "as asked for",
    mesh: Mesh | None = None,
) -> str:
    """Return the text of `chip_text`, followed by the links between the devices.

    Args:
      mesh: the mesh. Chips without a topology are joined for it as the vendor joins so many
        (`arranged`). With None each mesh axis has links of its own.

    >>> machine_text("v3", 8)
    '8 x tpu_v3 (as asked for; devices of the mesh), each mesh axis on links of its own'
    >>> machine_text("v3:2x2", 8)
    '8 x tpu_v3 (as asked for; devices of the mesh), joined as tpu_v3:2x2'
    """
    machine_or_chip = machine(asked) if mesh is None else arranged(asked, mesh)
    links_text = (
        f"joined as {machine_or_chip.text}" if isinstance(machine_or_chip, Topology) else OWN_LINKS
    )
    return f"{chip_text(asked, devices, source)}, {links_text}"
