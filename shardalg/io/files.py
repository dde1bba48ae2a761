"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import uuid
from pathlib import Path

WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def write_whole(target: Path, content: str | bytes) -> None:
    """Write a file atomically: another file of that name is replaced whole or not at all.

    The new file is made beside the target, with the permissions of the old one (else those of any
    new file), and renamed onto it. A symbolic link stays, and the file that it leads to is written.
    What is no regular file, such as a pipe or a device, is never replaced: it is written into.

    Args:
      content: text, written as UTF-8, or bytes.

    Raises:
      OSError: the folder does not exist or cannot be written to, the old file is read-only (also
        to a user who could replace it), or the links lead nowhere; it names the target.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        place = _behind_links(target)
        mode = place.stat().st_mode if place.exists() else None
        if mode is None or stat.S_ISREG(mode):
            _replace(place, data, mode)
        else:
            place.write_bytes(data)
    except OSError as error:
        if error.errno is None:
            raise
        # The reader knows nothing of the temporary file.
        raise OSError(error.errno, error.strerror, str(target)) from None


def check_place(target: Path) -> None:
    """Raise where `write_whole` would, before there is anything to write.

    Raises:
      OSError: as of `write_whole`; it names the target.
    """
    place = _behind_links(target)
    if place.exists():
        fault = errno.EISDIR if place.is_dir() else 0 if os.access(place, os.W_OK) else errno.EACCES
    else:
        folder = place.parent
        fault = 0 if os.access(folder, os.W_OK | os.X_OK) else errno.EACCES
        fault = fault if folder.is_dir() else errno.ENOENT
    if fault:
        raise OSError(fault, os.strerror(fault), str(target))


def _behind_links(target: Path) -> Path:
    place = Path(os.path.realpath(target))
    if place.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(target))
    return place


def _replace(place: Path, data: bytes, mode: int | None) -> None:
    """Another file in place of a regular one of these permissions, or of none."""
    if mode is not None and not (mode & WRITABLE and os.access(place, os.W_OK)):
        raise PermissionError(errno.EACCES, "the file is read-only", str(place))
    temporary = place.with_name(f".{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(data)
        if mode is not None:
            temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(place)
    finally:
        temporary.unlink(missing_ok=True)
