"""Rates and capacities of one device (a chip, or a core of a chip), each figure with its source."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from shardalg.algebra.mesh import Mesh
from shardalg.costs.calibration.constants import DATASHEET, NOTHING, Calibration
from shardalg.costs.calibration.constants import from_json as read_calibration
from shardalg.costs.calibration.operator_rates import DATA_SHEET, OPERATOR_UNITS, OperatorRates
from shardalg.costs.matrix_unit import ANY_SIZE, MatrixUnit, read_unit
from shardalg.costs.network.interconnect import UNKNOWN, Interconnect, read
from shardalg.costs.network.placement import UnplacedAxes
from shardalg.errors import HardwareError
from shardalg.files import write_whole
from shardalg.tables import Table

SCHEMA = "shardalg.hardware/1"
FILES = Path(__file__).parent / "chips"
UNITS = {
    "peak_flops_per_s": "flop/s",
    "hbm_bytes": "B",
    "hbm_bytes_per_s": "B/s",
    "sram_bytes_per_s": "B/s",
    "link_bytes_per_s": "B/s",
    "latency_s": "s",
    "network_bytes_per_s": "B/s",
    "network_latency_s": "s",
    "dcn_bytes_per_s": "B/s",
    "dcn_latency_s": "s",
    "cores": "cores",
}
ALL_UNITS = {**UNITS, **OPERATOR_UNITS}
MAYBE_ZERO = frozenset(name for name, unit in ALL_UNITS.items() if unit == "s")
_PEAK = "peak_flops_per_s."
# The calibration constants of a chip are shares of these rates, so they are invalid if one changes.
_FITTED_ON = frozenset(
    ("peak_flops_per_s.bfloat16", "hbm_bytes_per_s", "link_bytes_per_s", "network_bytes_per_s")
)
REPLACED = "replaced by the user"
"""The source of a figure that the user changed, whose other sources are for the old value."""
_MOST = 1 << 40
"""Flops per byte if arithmetic takes no time: any byte then outweighs all flops."""


class DefaultChip(str):
    """Name of a chip that the package chose, not the user; printed costs say "the default chip"."""


@dataclass(frozen=True)
class Source:
    """A value of a figure, and the document that it is from.

    A figure may have several sources with different values; the first is used.

    Attributes:
      figure: name of the figure, such as "hbm_bytes_per_s" or "peak_flops_per_s.bfloat16".
      value: the value, in the unit of `UNITS`.
      source: name of the document.
    """

    figure: str
    value: float
    source: str


class Rates(NamedTuple):
    """Number of flops that a device can compute in the time that moving one byte takes.

    Attributes:
      sent_flops: flops in the time of sending a byte to another device.
      written_flops: flops in the time of writing a byte to the device's own memory.
    """

    sent_flops: int
    written_flops: int


@dataclass(frozen=True)
class Hardware:
    """Rates and capacities of one device. A rate that is not given is infinite.

    Attributes:
      peak_flops_per_s: (item type, flop/s). A type that is not listed has the slowest rate.
      hbm_bytes, hbm_bytes_per_s: capacity and bandwidth of the device's own memory.
      link_bytes_per_s: bytes per second that a device sends along one mesh axis, one way.
      latency_s: latency of one hop.
      network_bytes_per_s, network_latency_s: the link by which a GPU leaves its island, one way.
      sram_bytes_per_s: bandwidth of all memory on the chip (a GPU's shared memory).
      dcn_bytes_per_s, dcn_latency_s: a host's link into the data center network, one way.
      axis_link_bytes_per_s: (axis name, bytes/s) of axes on other links, such as between hosts.
      rebuilds: whether the chip's compiler repeats pointwise operators in the backward pass instead
        of keeping their results (`costs.saved_activations`). XLA does on TPU, rarely on CPU.
      cores: cores that all devices of a machine share. The figures are then those of one core, and
        the memory is the machine's. If infinite, devices share no cores.
      operators: measured rates of operators, which are used instead of the datasheet's.
      sources: the source of each figure, conflicting ones included.
      interconnect: links between chips of this kind, which a `Topology` is built from.
      matrix_unit: block sizes that products are rounded up to.
      calibration: the constants that prices use (`costs.calibration.constants`); `on` changes them.
      calibrations: the constants of each software stack that the chip's file has.

    Raises:
      HardwareError: a figure is negative, not a number, or zero (only a latency may be zero).

    >>> Hardware("toy", (("bfloat16", 2e12), ("float32", 1e12))).peak("int32")
    1000000000000.0
    """

    name: str
    peak_flops_per_s: tuple[tuple[str, float], ...] = ()
    hbm_bytes: float = math.inf
    hbm_bytes_per_s: float = math.inf
    link_bytes_per_s: float = math.inf
    latency_s: float = 0.0
    axis_link_bytes_per_s: tuple[tuple[str, float], ...] = ()
    rebuilds: bool = False
    sources: tuple[Source, ...] = ()
    interconnect: Interconnect = UNKNOWN
    network_bytes_per_s: float = math.inf
    network_latency_s: float = 0.0
    dcn_bytes_per_s: float = math.inf
    dcn_latency_s: float = 0.0
    sram_bytes_per_s: float = math.inf
    cores: float = math.inf
    operators: OperatorRates = DATA_SHEET
    matrix_unit: MatrixUnit = ANY_SIZE
    calibration: Calibration = NOTHING
    calibrations: tuple[Calibration, ...] = ()

    def __post_init__(self) -> None:
        """Raise HardwareError for an impossible figure; drop constants fitted on other figures."""
        bad_figures = {name: value for name, value in self._figures() if not _possible(name, value)}
        if bad_figures:
            raise HardwareError(
                f"hardware {self.name!r}: impossible figures {bad_figures}. "
                "A rate or a capacity is a number above 0, a latency is not negative."
            )
        # Constants are shares of the figures that they were fitted on. They mean nothing with
        # other figures, unless the user asks for them.
        constants = self.calibration
        is_from_file = constants in self.calibrations and not constants.was_chosen
        # A file that was saved with replaced figures says so in their sources.
        saved_sources = {s.figure: s.source for s in reversed(self.sources)}
        replaced_figures = {s.figure for s in self._replaced()}
        replaced_figures |= {
            figure for figure, source in saved_sources.items() if source == REPLACED
        }
        if is_from_file and not replaced_figures.isdisjoint(_FITTED_ON):
            object.__setattr__(self, "calibration", NOTHING)

    def _figures(self) -> Iterable[tuple[str, Any]]:
        """Yield (name, value) of all figures, under the names that hardware files use."""
        yield from ((_PEAK + dtype, value) for dtype, value in self.peak_flops_per_s)
        yield from ((f"link_bytes_per_s.{axis}", v) for axis, v in self.axis_link_bytes_per_s)
        yield from self.operators.figures
        yield from ((name, getattr(self, name)) for name in UNITS if name != "peak_flops_per_s")

    def on(self, software: str) -> Hardware:
        """Return the chip with the measured constants of a software stack.

        Args:
          software: "xla" (jax.jit), "pytorch" (FSDP), or "datasheet" for no constants: products run
            at their peak, and no computation hides a collective. A chip whose rates were replaced
            has no constants either, unless they are chosen here.

        Raises:
          HardwareError: the chip has no constants of that software.

        >>> load("h100").on("pytorch").calibration.software
        'pytorch'
        >>> load("h100").on("datasheet").calibration.values
        ()
        """
        if software == DATASHEET:
            return replace(self, calibration=NOTHING)
        for constants in self.calibrations:
            if constants.software == software:
                return replace(self, calibration=replace(constants, was_chosen=True))
        known_names = ", ".join((*(one.software for one in self.calibrations), DATASHEET))
        raise HardwareError(
            f"no constants of {self.name!r} under software {software!r}: there are {known_names}."
        )

    def peak(self, dtype: str) -> float:
        """Return the peak rate for items of a type, in flop/s; the slowest rate if it is unknown.

        Without any peak the rate is infinite.
        """
        return self._peaks.get(dtype, self._slowest_peak)

    @cached_property
    def _peaks(self) -> dict[str, float]:
        """The peak rate of each item type, in flop/s."""
        return dict(self.peak_flops_per_s)

    @cached_property
    def _slowest_peak(self) -> float:
        """The slowest of the peak rates, in flop/s; infinite if there is none."""
        return min(self._peaks.values(), default=math.inf)

    def rates(self, dtype: str) -> Rates:
        """Return how many flops on items of `dtype` take as long as one byte sent or written.

        A number is 0 if moving bytes takes no time, and very large if arithmetic takes no time.

        >>> load("tpu_v3").rates("bfloat16")
        Rates(sent_flops=741, written_flops=137)
        """
        peak = self.peak(dtype)

        def flops_per_byte(bytes_per_s: float) -> int:
            """Return the flops in the time of one byte, at most `_MOST`."""
            if math.isinf(bytes_per_s):
                return 0
            return _MOST if math.isinf(peak) else min(round(peak / bytes_per_s), _MOST)

        return Rates(flops_per_byte(self.link_bytes_per_s), flops_per_byte(self.hbm_bytes_per_s))

    def link(self, axes: Iterable[str]) -> float:
        """Return the bytes per second of the slowest link among mesh axes."""
        other = dict(self.axis_link_bytes_per_s)
        return min((other.get(axis, self.link_bytes_per_s) for axis in axes), default=math.inf)

    def shared(self, devices: int) -> Hardware:
        """Return the rates of one device if several devices share the machine's cores and memory.

        Times grow by the number of devices per core, and rates shrink by it. The result is the
        hardware itself if `cores` is infinite.

        >>> core = Hardware("laptop", (("float32", 8e9),), hbm_bytes=16e9, latency_s=1.0, cores=2)
        >>> core.shared(8).peak("float32"), core.shared(8).latency_s, core.shared(1).latency_s
        (2000000000.0, 4.0, 1.0)
        """
        if math.isinf(self.cores):
            return self
        # Each core works for `turns` devices, one after the other, so that everything takes so many
        # times as long.
        turns = max(1.0, devices / self.cores)
        figures = {n: getattr(self, n) for n in UNITS if n not in ("peak_flops_per_s", "cores")}
        slower_figures = {
            n: v * turns if UNITS[n] == "s" else v / turns for n, v in figures.items()
        }
        return replace(
            self,
            **{**slower_figures, "hbm_bytes": self.hbm_bytes / devices},
            peak_flops_per_s=tuple((t, v / turns) for t, v in self.peak_flops_per_s),
            axis_link_bytes_per_s=tuple((a, v / turns) for a, v in self.axis_link_bytes_per_s),
            operators=self.operators.slower(turns),
            cores=math.inf,
        )

    @staticmethod
    def load(hardware: str | Hardware) -> Hardware:
        """Return the hardware with this name, or read it from a JSON file at this path.

        A `Hardware` is returned unchanged.
        """
        return load(hardware)

    @property
    def chip(self) -> Hardware:
        """The hardware itself."""
        # A `Topology` has this attribute too, so callers need not tell the two apart.
        return self

    def speeds(self, mesh: Mesh) -> dict[str, float]:
        """Return the bytes per second that a device sends along each mesh axis, one way."""
        return {name: self.link([name]) for name in mesh.axis_names}

    def wiring(self, mesh: Mesh) -> UnplacedAxes:
        """Return the links under each axis of a mesh: separate links of a known speed.

        Where axes share links is known only of a `Topology`.
        """
        return UnplacedAxes(mesh, self.speeds(mesh), self.latency_s)

    def with_own_links(self) -> Hardware:
        """Return the chip without torus or islands, so that each mesh axis has links of its own.

        Otherwise prices place the mesh on the vendor's slices or islands. Prices in formulas of the
        axis sizes cannot do so, and are comparable only with prices on the returned chip.

        >>> load("h100").with_own_links().interconnect.island
        0
        """
        return replace(self, interconnect=replace(self.interconnect, dimensions=(), island=0))

    def with_links(self, links: Mapping[str, float]) -> Hardware:
        """Return the same device with other links along some mesh axes.

        Args:
          links: for each axis name, the bytes per second that a device sends along it.
        """
        return replace(self, axis_link_bytes_per_s=tuple(links.items()))

    @property
    def current_sources(self) -> tuple[Source, ...]:
        """All sources, after one "replaced by the user" for each figure with a changed value.

        >>> fast = replace(load("tpu_v3"), link_bytes_per_s=1e12)
        >>> [(s.value, s.source) for s in fast.current_sources][:1]
        [(1000000000000.0, 'replaced by the user')]
        """
        return (*self._replaced(), *self.sources)

    def _replaced(self) -> list[Source]:
        """Return the figures whose values differ from the values of their sources.

        A figure without a source is not among them, because the user gave it.
        """
        recorded = {s.figure: s.value for s in reversed(self.sources)}
        return [
            Source(figure, value, REPLACED)
            for figure, value in self._figures()
            if figure in recorded and recorded[figure] != value
        ]

    def table(self) -> Table:
        """Return a table of all figures with unit and source.

        In the column "used", False marks a value of a conflicting source.
        """
        # The first source of a figure is in use, and later ones are kept for comparison. Reversed,
        # so that the first one is what the mapping keeps.
        sources = self.current_sources
        first_sources = {s.figure: s for s in reversed(sources)}
        rows = (
            (
                s.figure,
                s.value,
                ALL_UNITS[s.figure.split(".")[0]],
                s is first_sources[s.figure],
                s.source,
            )
            for s in sources
        )
        return Table(("figure", "value", "unit", "used", "source"), tuple(rows))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` reads.

        A figure without a source has the hardware's name as its source.
        """
        figures: dict[str, list[dict[str, Any]]] = {}
        for s in self.current_sources:
            figures.setdefault(s.figure, []).append({"value": s.value, "source": s.source})
        # An unknown rate is infinite or 0, and is left out; a latency of 0 is a valid figure.
        for figure, value in self._figures():
            is_known = math.isfinite(value) and (value or figure == "latency_s")
            if is_known and figure not in figures:
                figures[figure] = [{"value": value, "source": self.name}]
        header = {"schema": SCHEMA, "name": self.name, "rebuilds": self.rebuilds}
        interconnect = self.interconnect.to_json()
        software: dict[str, Any] = {one.software: one.to_json() for one in self.calibrations}
        if any(one.borrowed for one in self.calibrations):
            # Borrowed constants are saved as the name of their chip, so that later fits of it count
            # here.
            software = {"like": self.calibrations[0].borrowed}
        parts = {
            "interconnect": interconnect,
            "matrix_unit": self.matrix_unit.to_json(),
            "software": software,
        }
        return {
            **header,
            **{name: part for name, part in parts.items() if part},
            "figures": figures,
        }


def _possible(name: str, value: Any) -> bool:
    """Return whether a value is a number above 0; a figure in seconds may also be 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return number and (value >= 0 if name.partition(".")[0] in MAYBE_ZERO else value > 0)


def from_json(data: Any, *, where: str = "hardware") -> Hardware:
    """Return a `Hardware` from parsed JSON.

    The data is `{"schema": ..., "name": ..., "figures": {figure: [{"value": ..., "source":
    ...}]}}`. Optional keys are "rebuilds" (a boolean), "software" (constants by software stack, or
    {"like": a chip}), "interconnect" (see `network.interconnect.read`) and "matrix_unit" (see
    `matrix_unit.read_unit`). The first value of a figure is used, the others are kept as
    conflicting sources.

    Args:
      where: name of the file, for error messages.

    Raises:
      HardwareError: another schema, an unknown figure, a figure without a value or a source.

    >>> entry = [{"value": 1e9, "source": "data sheet"}]
    >>> data = {"schema": SCHEMA, "name": "toy", "figures": {"link_bytes_per_s": entry}}
    >>> from_json(data).link(["X"])
    1000000000.0
    """
    sources = tuple(_sources(data, where))
    # Reversed, so that the first of several values of a figure wins. The tuples below are reversed
    # back into the order of the file.
    used = {source.figure: source.value for source in reversed(sources)}
    plain: dict[str, float] = {}
    peaks, links, measured = [], [], []
    for figure, value in used.items():
        # A detail may follow a dot: an item type, a mesh axis, or a class of operators.
        base, _, detail = figure.partition(".")
        if figure in UNITS:
            plain[figure] = value
        elif base == "peak_flops_per_s":
            peaks.append((detail, value))
        elif base == "link_bytes_per_s":
            links.append((detail, value))
        else:
            measured.append((figure, value))
    calibrations = _calibrations(data.get("software", {}), where)
    return Hardware(
        data["name"],
        tuple(reversed(peaks)),
        axis_link_bytes_per_s=tuple(reversed(links)),
        operators=OperatorRates(tuple(reversed(measured))),
        rebuilds=data.get("rebuilds", False),
        sources=sources,
        interconnect=read(data["interconnect"], where)
        if "interconnect" in data
        else Interconnect(),
        matrix_unit=read_unit(data.get("matrix_unit"), where),
        calibrations=calibrations,
        # The first stack of the file is the one that prices use unless another is asked for.
        calibration=calibrations[0] if calibrations else NOTHING,
        **plain,
    )


def _calibrations(data: Any, where: str) -> tuple[Calibration, ...]:
    """Return the constants in the entry "software" of a hardware file, one per software stack.

    An entry `{"like": a chip}` gives the constants of that chip.
    """
    if not isinstance(data, dict):
        raise HardwareError(f"{where}: 'software' is {data!r:.80}; write constants by software.")
    like = data.get("like")
    if like is None:
        return tuple(read_calibration(part, name, where) for name, part in data.items())
    if len(data) > 1 or like not in names():
        raise HardwareError(f"{where}: 'software' is like {like!r}; write a chip's name alone.")
    # A chip without measured steps has the shares of the most similar chip, and wider errors.
    return tuple(replace(one, borrowed=like) for one in load(like).calibrations)


def _sources(data: Any, where: str) -> Iterable[Source]:
    """Yield all values in the entry "figures" of a hardware file, and check the file's form.

    Raises:
      HardwareError: as in `from_json`.
    """
    entry = '{"schema", "name", "figures": {figure: [{"value", "source"}]}}'
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise HardwareError(f"{where}: schema {found!r}, but {SCHEMA!r} is read: {entry}.")
    if not isinstance(data.get("name"), str) or not isinstance(data.get("figures"), dict):
        raise HardwareError(f"{where}: 'name' or 'figures' is missing; write {entry}.")
    if not isinstance(data.get("rebuilds", False), bool):
        raise HardwareError(f"{where}: 'rebuilds' is {data['rebuilds']!r}; write true or false.")
    for figure, entries in data["figures"].items():
        # Some figures have a detail after a dot: the item type of a peak or of an operator's rate,
        # the axis of a link.
        base, dot, detail = figure.partition(".")
        if base == "peak_flops_per_s" or base in OPERATOR_UNITS:
            known = bool(detail) or figure == "operator_s"
        else:
            known = base in UNITS and (not dot or (base == "link_bytes_per_s" and bool(detail)))
        if not known:
            raise HardwareError(
                f"{where}: unknown figure {figure!r}; the figures are {', '.join(ALL_UNITS)} "
                "(peak_flops_per_s.<item type>, link_bytes_per_s.<axis>)."
            )
        yield from _entries(figure, entries, where)


def _entries(figure: str, entries: Any, where: str) -> Iterable[Source]:
    """Yield the values of one figure of a hardware file, each with its source.

    Raises:
      HardwareError: the entry is no list, is empty, or has an impossible number or no source.
    """
    is_list = isinstance(entries, list) and bool(entries)
    for entry in entries if is_list else (entries,):
        is_entry = isinstance(entry, dict) and isinstance(entry.get("source"), str)
        if not is_list or not is_entry or not _possible(figure, entry.get("value")):
            raise HardwareError(
                f"{where}: {figure} is {entry!r}; each figure is a list of "
                '{"value": a positive number, "source": where it is from}.'
            )
        yield Source(figure, entry["value"], entry["source"])


def load(hardware: str | Hardware) -> Hardware:
    """Return the hardware with a name, or from the path of a JSON file.

    A `Hardware` is returned unchanged.

    Raises:
      HardwareError: the name or file does not exist, the file is malformed, or the value is
        neither a name nor a `Hardware`.

    >>> load("tpu_v3").peak("bfloat16")
    61500000000000.0
    """
    if isinstance(hardware, Hardware):
        return hardware
    if not isinstance(hardware, str):
        raise HardwareError(
            f"hardware is {hardware!r}: give one of the names {', '.join(names())}, the path of a "
            ".json file, or a Hardware."
        )
    return _read(hardware)


@lru_cache(maxsize=32)
def _read(name: str) -> Hardware:
    """Return the hardware of `load` for a name or path; cached, because parsing takes time."""
    # A name with the ending .json is a path; any other name, or alias, is a file of the package.
    path = Path(name) if name.endswith(".json") else FILES / f"{_aliases().get(_plain(name))}.json"
    # A chip of the package comes before a file of the user's own: `keep` refuses such names.
    own_path = own_folder() / f"{name}.json"
    path = own_path if not path.is_file() and own_path.is_file() else path
    if not path.is_file():
        raise HardwareError(
            f"no hardware {name!r}: the names are {', '.join((*names(), *own_names()))}; "
            "or give the path of a .json file, or measure this machine (shardalg calibrate)."
        )
    return from_json(_data(path), where=str(path))


def _data(path: Path) -> Any:
    """Return the parsed JSON of a file; raise `HardwareError` if it is no JSON."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        how = "Is the file cut short? Write it again (this machine's: shardalg calibrate)."
        raise HardwareError(f"{path}: not JSON ({error}). {how}") from None


@lru_cache(maxsize=1)
def _aliases() -> dict[str, str]:
    """Return a dictionary from each spelling of a chip's name (as `_plain` gives it) to its file.

    A file is given by its name without ".json".
    """
    given = {name: (name, *_data(FILES / f"{name}.json").get("aliases", ())) for name in names()}
    return {_plain(alias): name for name, aliases in given.items() for alias in aliases}


def _plain(name: str) -> str:
    """Return the letters and digits of a name in lower case, without its vendor.

    >>> _plain("NVIDIA A100-80GB") == _plain("a100_80gb"), _plain("TPU v5e")
    (True, 'tpuv5e')
    """
    return re.sub(r"[\W_]|nvidia|google|cloud", "", name.lower())


def own_folder() -> Path:
    """Return the folder of the user's own hardware files.

    It is `shardalg/hardware` in `$XDG_CONFIG_HOME`, or in `~/.config` if that is not set.
    """
    given = os.environ.get("XDG_CONFIG_HOME")
    return (Path(given) if given else Path.home() / ".config") / "shardalg" / "hardware"


def own_names() -> tuple[str, ...]:
    """Return the names of the user's own hardware files."""
    return tuple(sorted(path.stem for path in own_folder().glob("*.json")))


def keep(hardware: Hardware, name: str) -> Path:
    """Write a hardware file into the user's folder, and return its path.

    Afterwards `name` can be used like the name of a chip.

    Raises:
      HardwareError: the name has other characters, or is the name of a chip of the package.
    """
    check_own_name(name)
    path = own_folder() / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(replace(hardware, name=name).to_json(), indent=1) + "\n")
    _read.cache_clear()
    return path


def check_own_name(name: str) -> None:
    """Raise an error unless the user's own hardware can have this name.

    Raises:
      HardwareError: the name has characters other than letters, digits, `_` and `-`, or it is the
        name of a chip of the package.
    """
    if not re.fullmatch(r"[A-Za-z][\w-]*", name) or _plain(name) in _aliases():
        raise HardwareError(
            f"{name!r} cannot name hardware of your own: write a word of letters, digits, _ and -, "
            f"none of {', '.join(names())}."
        )


def names() -> tuple[str, ...]:
    """Return the names of the chips that the package has hardware files for."""
    return tuple(sorted(path.stem for path in FILES.glob("*.json")))
