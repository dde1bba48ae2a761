"""Old names of the public interface: each works for one version more, with a warning."""

from __future__ import annotations

import warnings


class RenamedWarning(DeprecationWarning):
    """An old name of something that has another one now; it works for one version more."""


def warn_renamed(old: str, new: str) -> None:
    """Warn, where the caller of the calling function stands, that a name has another one now.

    >>> with warnings.catch_warnings(record=True) as seen:
    ...     warnings.simplefilter("always")
    ...     warn_renamed("parts", "num_shards")
    >>> print(seen[0].message)
    parts is an old name, which the next version drops; use num_shards.
    """
    words = f"{old} is an old name, which the next version drops; use {new}."
    warnings.warn(words, RenamedWarning, stacklevel=3)
