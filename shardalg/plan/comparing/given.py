"""Arguments of comparisons: machines, meshes, executors and progress; their texts and checks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardalg.algebra.mesh import Mesh
from shardalg.costs.topology import Machine, Topology, machine
from shardalg.errors import PlanFileError, StrategyError, TableError

Progress = Callable[[int, int, str], None]
"""Called with the number of a finished strategy or point, the number of all, and its name."""


def machines_of(hardware: Any) -> tuple[Machine, ...]:
    """Return the machines that the user named: none, one or several.

    Raises:
      HardwareError: an unknown name. StrategyError: an empty list, or a machine that occurs twice.
    """
    if hardware is None:
        return ()
    found = [machine(each) for each in listed("hardware", hardware)]
    check_distinct("hardware", found)
    return tuple(found)


def listed(name: str, given: Any) -> list[Any]:
    """Return the values of an argument, one or several, as a list that is not empty.

    Args:
      name: the name of the argument, for the error.

    Raises:
      StrategyError: the list is empty, or the values are in something else than a list.
    """
    if isinstance(given, set | frozenset | Iterator):
        raise StrategyError(
            f"{name} is a {type(given).__name__}: give a list, whose values have an order."
        )
    values = list(given) if isinstance(given, list | tuple | range) else [given]
    # An empty list would give a table without rows, which is a mistake of the caller.
    if not values:
        raise StrategyError(f"{name} is an empty list: give at least one value, or leave it out.")
    return values


def check_distinct(name: str, values: Sequence[Any]) -> None:
    """Raise unless all values differ, because two rows would have one name.

    Raises:
      StrategyError: two values are equal.
    """
    twice = next((v for i, v in enumerate(values) if v in values[:i]), None)
    if twice is not None or values.count(None) > 1:
        raise StrategyError(f"{name} has {twice!r} twice: give each value once.")


def meshes_of(given: Any, *, what: str = "meshes") -> tuple[Mesh, ...]:
    """Return the meshes that the user gave: none, one or several.

    Args:
      what: the name of the argument, for the error.

    Raises:
      StrategyError: a value is neither a mesh nor axis sizes, is in the list twice, or there is
        none in it.
    """
    if given is None:
        return ()
    meshes: list[Mesh] = []
    for each in listed(what, given):
        # Three forms: a `Mesh`, axis sizes, or a mesh of JAX, which has axis types.
        if isinstance(each, Mesh):
            meshes.append(each)
        elif isinstance(each, Mapping):
            meshes.append(Mesh(dict(each)))
        elif hasattr(each, "axis_types"):
            meshes.append(Mesh.from_jax(each))
        else:
            raise StrategyError(
                f"{what} has {each!r:.60}: give a Mesh, or axis sizes as "
                "{'data': 16, 'model': 4}."
            )
    check_distinct(what, meshes)
    return tuple(meshes)


def devices_of(on: Machine) -> int | None:
    """Return the number of devices of a machine; None for a chip alone."""
    return on.devices if isinstance(on, Topology) else None


def machine_name(on: Machine) -> str:
    """Return the text that names a chip or a topology."""
    return on.text if isinstance(on, Topology) else on.name


def mesh_text(mesh: Mesh) -> str:
    """Return the axis sizes, as in "data=16, model=4"."""
    return ", ".join(f"{name}={size}" for name, size in mesh.axes)


def check_devices(mesh: Mesh, on: Machine) -> None:
    """Raise unless a mesh has as many devices as a machine.

    Raises:
      StrategyError: the numbers differ.
    """
    if devices_of(on) not in (None, mesh.size):
        raise StrategyError(
            f"the mesh has {mesh.size} devices, and {machine_name(on)} has {devices_of(on)}."
        )


def print_progress(number: int, count: int, name: str) -> None:
    """Print how many strategies are done, on one line of stderr."""
    end = "\r\033[K" if number == count else ""
    print(f"\r\033[K{number} of {count}: {name}{end}", end="", file=sys.stderr, flush=True)


def reporter(progress: Progress | bool | None) -> Progress | None:
    """Return the function that is called after each strategy or point; None for none.

    Args:
      progress: a function; True for a line on stderr; None for a line if stderr is a terminal.

    Raises:
      StrategyError: it is something else.
    """
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise StrategyError(
            f"progress is {progress!r:.40}: give True, False, or a function of the number of a "
            "finished row, the number of all rows, and its name."
        )
    # A log file is no terminal: by default it gets no line per point.
    if progress is True or (progress is None and sys.stderr.isatty()):
        return print_progress
    return progress if callable(progress) else None


def check_share(reserve: object) -> None:
    """Raise unless `reserve` is a share of the memory.

    Raises:
      StrategyError: it is no number from 0 to below 1.
    """
    if not (isinstance(reserve, int | float) and 0 <= reserve < 1):
        raise StrategyError(f"reserve is {reserve!r}: give a share from 0 to below 1.")


def page_path(path: object) -> Path:
    """Return the path of a page that is written.

    Raises:
      TableError: it is neither text nor a `Path`.
    """
    if not isinstance(path, str | Path):
        raise TableError(f"page() writes a file, and its path is {path!r:.60}: give text.")
    return Path(path)


def resumed_file(path: object) -> Path:
    """Return the path of a file of finished work, which need not exist yet.

    Raises:
      PlanFileError: it is neither text nor a `Path`, or its folder does not exist.
    """
    if not isinstance(path, str | Path):
        raise PlanFileError(f"file is {path!r:.60}: give the path of a file as text.")
    place = Path(path)
    if not place.exists() and not place.parent.is_dir():
        raise PlanFileError(f"file={str(path)!r}: the folder {place.parent} is missing.")
    return place
