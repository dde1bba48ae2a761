"""What a compiler said of a program, kept by content in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from shardalg.errors import PlanFileError
from shardalg.io.files import write_whole
from shardalg.io.records import read
from shardalg.lower.xla_dump.hlo_collectives import HloCollective

SCHEMA = "shardalg.aot/1"


@dataclass(frozen=True)
class Compiled:
    """What the compiler of a chip says of one program; bytes and flops are those of one device.

    Attributes:
      compile_s: seconds that it took.
      out_of_memory: why the program does not fit, in the compiler's words; None: it fits.
      peak_memory_bytes: of one that does not fit, what it would take, and the rest is not known.
      argument_bytes, result_bytes: as tiled in memory. alias_bytes: results in donated arguments.
      flops: of one call, a loop's body counted once; None where the compiler counts none.
      collectives: of the compiled program.
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
    """The name of a content.

    >>> key("v3:8x8", b"module") == key("v3:8x8m", b"odule")
    False
    """
    digest = hashlib.sha256(SCHEMA.encode())
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def folder() -> Path:
    """`shardalg/aot` in the user's cache folder: `$XDG_CACHE_HOME`, else `~/.cache`."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "shardalg" / "aot"


def load(name: str, notes: list[str]) -> Compiled | None:
    """The answer of that key; None where there is none, or the file is damaged, which is noted.

    Args:
      notes: what the user is told.
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
    """Keep an answer under its key, atomically."""
    folder().mkdir(parents=True, exist_ok=True)
    write_whole(folder() / f"{name}.json", json.dumps(asdict(answer)))
