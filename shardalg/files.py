"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_whole(target: Path, text: str) -> None:
    """Write a text file atomically: another file of that name is replaced whole or not at all.

    The new file is made beside the target, with the permissions of any new file, and renamed onto
    it.

    Raises:
      OSError: the folder does not exist, or cannot be written to; it names the target.
    """
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, target)
    except OSError as error:
        if error.errno is not None:  # the reader knows nothing of the temporary file
            error.filename = str(target)
        raise
    finally:
        temporary.unlink(missing_ok=True)
