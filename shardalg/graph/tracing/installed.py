"""What the installed jax partitions with."""

from __future__ import annotations

SWITCH = "jax_use_shardy_partitioner"
"""The option of jax by which GSPMD or Shardy partitions; a jax without it has Shardy alone."""


def installed_partitioner() -> str:
    """The partitioner of XLA that `jax.jit` uses here: "gspmd" or "shardy".

    >>> installed_partitioner() in ("gspmd", "shardy")
    True
    """
    import jax

    return "shardy" if getattr(jax.config, SWITCH, True) else "gspmd"
