"""Ahead-of-time compilation for a topology without its devices, in another process.

TPUs need `libtpu`, which compiles without a TPU; GPUs need the plugin `jax-cuda12-plugin`.
A program is lowered here for no devices, so that partition ids are positions of the mesh. The
process (`aot_process.py`) maps the positions to places of the topology.

Results are stored by content in the user's cache folder: the same program, topology and compiler
are compiled once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import jaxlib.version

from shardalg.algebra.mesh import Mesh
from shardalg.costs.network.placement import CHIP, HOSTS, SLICES, SWITCH, TORUS
from shardalg.costs.topology import Topology
from shardalg.errors import DeviceError, LoweringError, PlanFileError
from shardalg.files import read, write_whole
from shardalg.lower.xla_dump.hlo_collectives import HloCollective, collectives
from shardalg.xla.apart import last_words, run_apart

SCHEMA = "shardalg.aot/1"


@dataclass(frozen=True)
class Compiled:
    """The chip compiler's figures for one program; bytes and flops of one device.

    Attributes:
      compile_s: compilation time in seconds.
      out_of_memory: the compiler's error if the program does not fit; None if it fits.
      peak_memory_bytes: for a program that does not fit, the bytes that it needs; other figures are
        then None.
      argument_bytes, result_bytes: bytes in memory, with the padding of tiles.
      alias_bytes: bytes of results that have the memory of donated arguments.
      flops: flops of one call, a loop's body counted once; None if the compiler counts none.
      collectives: collectives of the compiled program.
    """

    compile_s: float
    out_of_memory: str | None = None
    peak_memory_bytes: int | None = None
    argument_bytes: int | None = None
    result_bytes: int | None = None
    temp_bytes: int | None = None
    alias_bytes: int | None = None
    flops: float | None = None
    collectives: tuple[HloCollective, ...] = ()


def key(*parts: str | bytes) -> str:
    """Return the hash of the parts as text, which names a stored result.

    >>> key("v3:8x8", b"module") == key("v3:8x8m", b"odule")
    False
    """
    digest = hashlib.sha256(SCHEMA.encode())
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        # The length before each part keeps ("ab", "c") and ("a", "bc") apart.
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def folder() -> Path:
    """Return `shardalg/aot` in the user's cache folder: `$XDG_CACHE_HOME`, else `~/.cache`."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "shardalg" / "aot"


def load(name: str, notes: list[str]) -> Compiled | None:
    """Read the compiler's figures that are stored under this key.

    None if they are absent or damaged. A note says that they are damaged.

    Args:
      notes: messages to the user; one is appended for a damaged file.
    """
    path = folder() / f"{name}.json"
    if not path.exists():
        return None
    try:
        return read(Compiled, json.loads(path.read_text()), str(path))
    except (ValueError, PlanFileError) as error:
        notes.append(f"{path} is cut short or damaged ({error}): compiled again.")
        return None


def store(name: str, answer: Compiled) -> None:
    """Store the compiler's figures under this key; a reader never sees half a file."""
    folder().mkdir(parents=True, exist_ok=True)
    write_whole(folder() / f"{name}.json", json.dumps(asdict(answer)))


SCRIPT = Path(__file__).with_name("aot_process.py")
GPUS = Path(__file__).with_name("gpus")
"""Folder of descriptions of GPUs for XLA's compiler, in its own format (`GpuTargetConfigProto`)."""
LONGEST_S = 3600
TPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_MIN_LOG_LEVEL": "3",
}
_USED = re.compile(r"Used ([\d.]+)([KMG]?) of [\d.]+[KMG]? hbm")
"""The needed and the available memory in errors of the TPU compiler: "Used 28.2G of 15.48G hbm"."""
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Target:
    """A compilation target: the compiler and its devices.

    Attributes:
      compiler: name and version of the compiler.
      platform: "tpu" or "cuda"; topology: JAX's name of the topology.
      options: arguments of `jax.experimental.topologies.get_topology_desc`.
      compiler_options: options of XLA.
      places: per position of the mesh, the slice, three coordinates of the chip and the core on it;
        for GPUs the number of the device alone.
    """

    compiler: str
    platform: str
    topology: str
    options: dict[str, Any]
    compiler_options: dict[str, Any]
    places: list[tuple[int, ...]]


def target_of(topology: Topology, mesh: Mesh) -> Target:
    """Return the target for a topology, with the mesh placed on it.

    Raises:
      DeviceError: the compiler of such chips is not installed.
      HardwareError: the mesh does not tile the topology.
      LoweringError: the mesh names devices by their ids.
    """
    if mesh.device_ids is not None:
        raise LoweringError(
            f"{mesh!r} names devices by their ids, and a topology has places instead. Plan on "
            f"{Mesh(dict(mesh.axes))!r}: its axes are placed on the topology in their order."
        )
    # Only GPUs have islands (devices that share a switch).
    if topology.hardware.interconnect.island:
        return _gpus(topology, mesh)
    return _tpus(topology, mesh)


def libtpu() -> str:
    """Return the version of the TPU compiler, or the library that `TPU_LIBRARY_PATH` names.

    Raises:
      DeviceError: there is neither.
    """
    if find_spec("libtpu") is not None:
        return version("libtpu")
    named = os.environ.get("TPU_LIBRARY_PATH")
    if named:
        return named
    raise DeviceError(
        "compiling for TPUs needs their compiler, which runs without one: pip install "
        "'shardalg[tpu]' (the package libtpu), or name the library in TPU_LIBRARY_PATH."
    )


def _places(topology: Topology, mesh: Mesh) -> list[dict[str, list[int]]]:
    """Return the place on the topology of each position of the mesh.

    A place is a dictionary from a kind of level (slices, hosts, a switch, a torus, cores of a chip)
    to the coordinates on the levels of this kind, the outermost level first.
    """
    levels = topology.levels
    spans = [span for axis_spans in topology.spans(mesh).values() for span in axis_spans]
    # Two levels may be equal, such as the sides of a square torus. They are therefore told apart by
    # identity, and each takes the first equal level that is free.
    level_of_span: dict[int, int] = {}
    for span in spans:
        if id(span.level) not in level_of_span:
            equal_levels = (i for i, level in enumerate(levels) if level == span.level)
            level_of_span[id(span.level)] = next(
                i for i in equal_levels if i not in level_of_span.values()
            )
    places = []
    for position in range(mesh.size):
        # Several mesh axes may share a level, e.g. one side of a torus; their steps on it add up.
        coordinates = [0] * len(levels)
        for span in spans:
            coordinates[level_of_span[id(span.level)]] += span.digit.at(position) * span.stride
        place: dict[str, list[int]] = {}
        for level, coordinate in zip(levels, coordinates, strict=True):
            place.setdefault(level.medium, []).append(coordinate)
        places.append(place)
    return places


def _tpus(topology: Topology, mesh: Mesh) -> Target:
    """Return the target for TPUs, whose places have a slice, coordinates and a core."""
    shape = "x".join(map(str, topology.shape))
    name = f"{topology.hardware.name.removeprefix('tpu_')}:{shape}"
    options: dict[str, Any] = {"topology_name": name}
    if topology.slices > 1:
        options["num_slices"] = topology.slices
    places = [
        # A torus of two dimensions gets a third coordinate 0, as JAX's devices have.
        (*place[SLICES], *(*place[TORUS], 0, 0)[:3], *place[CHIP])
        for place in _places(topology, mesh)
    ]
    return Target(f"libtpu {libtpu()}", "tpu", name, options, {}, places)


def _gpus(topology: Topology, mesh: Mesh) -> Target:
    """Return the target for GPUs, numbered as in JAX: island by island.

    Raises:
      LoweringError: no description of this chip exists for XLA's GPU compiler.
    """
    compiler = _cuda()
    description = GPUS / f"{topology.hardware.name}.txtpb"
    if not description.exists():
        known_names = ", ".join(sorted(path.stem for path in GPUS.glob("*.txtpb")))
        raise LoweringError(
            f"XLA's GPU compiler needs a description of {topology.hardware.name}, and shardalg has "
            f"none. It has descriptions of {known_names}: compile for one of these."
        )
    # JAX names a topology of GPUs by slices, hosts and devices of a host. Autotuning would need a
    # GPU, so it is off.
    islands, inside = topology.shape
    name = f"1x{islands}x{inside}"
    options = {"topology": name, "target_config": description.read_text()}
    # A GPU's number is its island times the GPUs of an island, plus its place in the island.
    level_places = _places(topology, mesh)
    places: list[tuple[int, ...]] = [(p[HOSTS][0] * inside + p[SWITCH][0],) for p in level_places]
    return Target(compiler, "cuda", name, options, {"xla_gpu_autotune_level": 0}, places)


def _cuda() -> str:
    """Return the version of JAX's plugin for NVIDIA GPUs."""
    for major in (13, 12):
        if find_spec(f"jax_cuda{major}_plugin") is not None:
            return f"jax_cuda{major}_plugin {version(f'jax-cuda{major}-plugin')}"
    raise DeviceError(
        "compiling for GPUs needs JAX's plugin for them, which compiles without one: pip install "
        "jax-cuda12-plugin jax-cuda12-pjrt nvidia-cuda-nvcc-cu12 of the version of jax."
    )


def compile_for(
    target: Target, programs: Mapping[str, Any], mesh: Mesh
) -> tuple[dict[str, Compiled], list[str]]:
    """Compile each program; return the compiler's figures, and notes for the user.

    Args:
      programs: JAX's lowered programs by name, lowered for no devices.

    Raises:
      LoweringError: the compiler does not know the topology, refuses a program for another reason
        than memory, or ends without an answer.
    """
    notes: list[str] = []
    # The key covers all that the result depends on: the target with its compiler's version, the
    # version of jaxlib, and the program's text without source locations.
    asked = repr((target, jaxlib.version.__version__))
    keys = {n: key(n, asked, _text(stage)) for n, stage in programs.items()}
    found = {name: load(content, notes) for name, content in keys.items()}
    missing = {name: stage for name, stage in programs.items() if found[name] is None}
    if missing:
        # One process compiles all missing programs. Each result is stored when it is read, so an
        # error in a later one does not lose it.
        for name, answer in _compiled(target, missing, mesh):
            store(keys[name], answer)
            found[name] = answer
    return {name: answer for name, answer in found.items() if answer is not None}, notes


def _text(stage: Any) -> str:
    """Return a program's text without source locations."""
    # Locations name source lines: an edit above the function would change the key.
    return stage.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=False)


def _compiled(
    target: Target, programs: Mapping[str, Any], mesh: Mesh
) -> Iterator[tuple[str, Compiled]]:
    """Compile programs in another process, and yield each name with the compiler's figures.

    Raises:
      LoweringError: the process fails, or the compiler does not know the topology.
    """
    with tempfile.TemporaryDirectory(prefix="shardalg-aot-") as temporary:
        folder = Path(temporary)
        # The process reads StableHLO in bytecode, because it has no access to these objects.
        for name, stage in programs.items():
            module = BytesIO()
            stage.compiler_ir("stablehlo").operation.write_bytecode(module)
            (folder / name).write_bytes(module.getvalue())
        request = asdict(target) | {"programs": list(programs)}
        (folder / "request.json").write_text(json.dumps(request))
        process = run_apart(SCRIPT, folder, LONGEST_S, TPU_ENVIRONMENT)
        if process.returncode:
            raise LoweringError(
                f"{target.compiler} ended without an answer (status {process.returncode}): "
                f"{last_words(process.stderr)}\nCompile another program or topology."
            )
        # The process ends normally if a plugin refuses the topology, and leaves this file.
        if (failed := folder / "failed.json").exists():
            message = json.loads(failed.read_text())["message"]
            raise LoweringError(
                f"{target.compiler} does not compile for {target.topology} ({message}). Take a "
                "chip and a shape that it knows ('v3:8x8', 'v5p:2x2x1'), or install another "
                "version."
            )
        for name in programs:
            yield name, _answer(target, folder, name, mesh)


def _answer(target: Target, folder: Path, name: str, mesh: Mesh) -> Compiled:
    """Return the result of compiling a program in another process, from the files of this process.

    A program that does not fit the memory is a result, too.

    Args:
      target: the compiler and its topology.
      folder, name: the folder with the files, and the name of the program in their names.
      mesh: the mesh of the program's collectives.

    Raises:
      LoweringError: the compiler refused the program for another reason than memory.
    """
    figures = json.loads((folder / f"{name}.json").read_text())
    error = figures.pop("error", None)
    if error is None:
        text = (folder / f"{name}.hlo").read_text()
        return Compiled(**figures, collectives=collectives(text, mesh, is_final=True))
    # A program that does not fit is a result, not an error: the user compares its peak memory.
    if "RESOURCE_EXHAUSTED" not in error:
        raise LoweringError(f"{target.compiler} refuses the program ({name}): {error[:2000]}")
    used = _USED.search(error)
    peak = round(float(used[1]) * _UNITS[used[2]]) if used else None
    return Compiled(figures["compile_s"], out_of_memory=error[:2000], peak_memory_bytes=peak)
