"""Planning without garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """No garbage collection inside: what is built stays, and walking JAX's heap costs more.

    Nor right after it: what was built counts as old, as if it had been walked already (freezing and
    unfreezing moves all objects into the oldest generation, unless somebody froze objects before).

    >>> with collection_paused():
    ...     gc.isenabled()
    False
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()
