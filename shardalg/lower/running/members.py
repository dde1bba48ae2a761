"""This process among those of a run: joining them, agreeing, and what lies on all of them."""

from __future__ import annotations

import atexit
import hashlib
import os
import sys
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from shardalg.errors import RunError
from shardalg.graph.evaluate import is_key

# What JAX says where nothing names other processes; or where it runs already, in a session.
_ALONE = ("coordinator_address should be defined", "must be called before any JAX")


def join(timeout_s: int = 300) -> bool:
    """Join the processes that a launcher or a scheduler started; False where there are none.

    Found are `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID` of the environment
    (as `shardalg run --processes` sets them, or a user by hand), and what
    `jax.distributed.initialize` finds itself: SLURM, GKE, Cloud TPU, Open MPI. To be called before
    anything else uses JAX.

    Raises:
      RunError: the processes do not find each other in time, or JAX has started.
    """
    told = [os.environ.get(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")]
    try:
        count, index = (None if text is None else int(text) for text in told)
        jax.distributed.initialize(
            num_processes=count, process_id=index, initialization_timeout=timeout_s
        )
    except (ValueError, RuntimeError) as error:
        if told == [None, None] and any(words in str(error) for words in _ALONE):
            return False
        raise RunError(
            f"this process cannot join the others: {error}. JAX_COORDINATOR_ADDRESS, "
            "JAX_NUM_PROCESSES and JAX_PROCESS_ID, or the scheduler, say which they are."
        ) from error
    return True


@dataclass(frozen=True)
class Job:
    """The processes that run together: the number of this one, how many, all their devices."""

    index: int
    processes: int
    devices: int

    @classmethod
    def this(cls) -> Job:
        """The job of this process, perhaps it alone."""
        return cls(jax.process_index(), jax.process_count(), jax.device_count())


def leave() -> None:
    """Wait for the others, and part."""
    jax.distributed.shutdown()


def abandon() -> None:
    """End with this process, after an error, and not as JAX does, which waits for the others."""

    def end() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(2)

    atexit.register(end)  # before what JAX registered, as it is later


def agree(text: str, what: str) -> None:
    """Raise unless every process has the same text: programs that differ would wait for each other.

    Raises:
      RunError: they differ.
    """
    from jax.experimental import multihost_utils

    digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    every = np.asarray(multihost_utils.process_allgather(digest)).reshape(-1, digest.size)
    others = [index for index, other in enumerate(every) if (other != every[0]).any()]
    if others:
        raise RunError(
            f"{what} of process 0 and of process {others[0]} differ. Give all processes the same "
            "files, versions and options."
        )


def on_host(array: jax.Array) -> np.ndarray:
    """The whole array, on every process; types that only JAX has as exact wider ones.

    Key arrays become their words, bfloat16 and smaller floats float32.
    """
    from jax.experimental import multihost_utils

    if is_key(array):
        array = jax.random.key_data(array)
    if array.is_fully_addressable or array.is_fully_replicated:
        held = np.asarray(array)
    else:
        held = np.asarray(multihost_utils.process_allgather(array, tiled=True))
    foreign = held.dtype.kind == "V" and jnp.issubdtype(held.dtype, jnp.floating)
    return held.astype(np.float32) if foreign else held
