"""What the installed jax partitions with, and how it counts."""

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


def jax_version() -> str:
    """Return the version of the installed jax.

    >>> jax_version().split(".")[0].isdecimal()
    True
    """
    import jax

    return jax.__version__


def sorts_permutes() -> bool:
    """Whether `lax.ppermute` counts places along the mesh, in whichever order axes are named.

    A jax that asks about another order counts as named, where that is allowed.

    >>> sorts_permutes() in (True, False)
    True
    """
    import jax

    return not hasattr(jax.config, "jax_raise_on_ppermute_sort_diff")
