"""Arguments that a function changes in place: what a trace of it would lose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax
from jax.tree_util import DictKey, SequenceKey, tree_flatten_with_path

from shardalg.errors import TraceError


def watched(
    fn: Callable[..., Any], paths: Sequence[str], lost: list[str], name: str
) -> Callable[..., Any]:
    """`fn`, with the arrays that it replaces in its arguments and does not return, in `lost`.

    A dict or a list is a copy of the caller's inside of a trace, and may be a scratch pad; an
    object of another class that is changed is state.

    Args:
      paths: what the arrays of the arguments are called. name: of `fn`, in messages.

    Raises:
      TraceError: state is changed, and not returned.

    >>> lost = []
    >>> def step(params):
    ...     params["w"] = params["w"] + 1.0
    >>> watched(step, ("params['w']",), lost, "step")({"w": 1.0}), lost
    (None, ["params['w']"])
    """

    @wraps(fn)
    def run(*given: Any) -> Any:
        before, tree = tree_flatten_with_path(given)
        result = fn(*given)
        after = jax.tree.leaves(given)
        same: Any = jax.tree.structure(given)
        if same != tree or len(paths) != len(after):
            return result
        kept = {id(leaf) for leaf in jax.tree.leaves(result)}
        pairs = enumerate(zip(before, after, strict=True))
        gone = [i for i, ((_, was), now) in pairs if was is not now and id(now) not in kept]
        lost[:] = [paths[i] for i in gone]
        state = [paths[i] for i in gone if not isinstance(before[i][0][-1], DictKey | SequenceKey)]
        if state:
            raise TraceError(
                f"{name} changes {', '.join(state[:3])} ({len(state)} arrays) in place and does "
                "not return them: under jax.jit the changes are lost. Pass the function without "
                "jax.jit, or jitted by nnx.jit, which carries them out; or return the new state."
            )
        return result

    return run
