"""Planning without garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause garbage collection, because planning keeps its objects and JAX's heap is large.

    The new objects count as old afterwards, so that no collection follows directly. Freezing and
    unfreezing moves all objects into the oldest generation. This is left out if the caller froze
    objects before.

    Measured on a train step of 64 unrolled layers (process seconds, medians of three alternating
    runs): trace, first plan, three replans, table of collectives, cost and its formulas take 4.3 s.
    They take 6.1 s without the pause (a replan 0.40 instead of 0.22 s), and 4.7 s without
    the freezing. The peak memory of the process while JAX traces is the same with and without it.

    >>> with collection_paused():
    ...     gc.isenabled()
    False
    """
    # Pauses may nest: only the outermost one switches collection on again.
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
