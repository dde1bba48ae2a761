"""Rematerialisation of a function under other policies: each is a trace of its own.

A traced function has its gradients in it already, so that the graph cannot change which values the
backward pass keeps. JAX decides this while it differentiates. A function is therefore traced again,
and its calls of `jax.checkpoint` get another policy (`rematerialised`). A function without such a
call gets one around the body of each `jax.lax.scan` that it differentiates.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, wraps
from typing import Any
from unittest.mock import patch

import jax
from jax.extend.core import Var, new_jaxpr_eqn
from jax.extend.core.primitives import remat_p, scan_p

from shardalg.errors import StrategyError

Policy = str | tuple[str, ...]
"""A name in `jax.checkpoint_policies`, or the name of a function there with its arguments."""
BY_NAMES = ("save_any_names_but_these", "save_anything_except_these_names", "save_only_these_names")
"""The functions of `jax.checkpoint_policies` that return a policy for names of values."""
CHECKPOINTS, SCANS = "checkpoints", "scans"


def policy_names() -> tuple[str, ...]:
    """Return the names in `jax.checkpoint_policies` that are policies themselves.

    >>> {"dots_saveable", "everything_saveable"} <= set(policy_names())
    True
    """
    offered = jax.checkpoint_policies
    others = (*BY_NAMES, "save_from_both_policies", "save_and_offload_only_these_names")
    made = (n for n in sorted(vars(offered)) if not n.startswith("_") and n not in others)
    return tuple(name for name in made if not name.startswith("offload"))


def check_policy(given: Any) -> Policy:
    """Return a policy as the user gave it, in the form of `Policy`.

    Raises:
      StrategyError: no policy of JAX has this name, or a policy for names has none.

    >>> check_policy(["save_only_these_names", "attention"])
    ('save_only_these_names', 'attention')
    """
    if isinstance(given, str) and given in policy_names():
        return given
    words = tuple(given) if isinstance(given, list | tuple) else ()
    if len(words) > 1 and words[0] in BY_NAMES and all(isinstance(p, str) for p in words):
        return words
    known = (*policy_names(), *BY_NAMES)
    similar = get_close_matches(str(words[0] if words else given), known, 1)
    hint = f" Did you mean {similar[0]!r}?" if similar else ""
    raise StrategyError(
        f"remat has {given!r:.60}, which is no policy: give None (the function as it is written), "
        f"one of {', '.join(policy_names())}, or names of values as in "
        f"('save_only_these_names', 'attention').{hint}"
    )


def policy_text(policy: Policy | None) -> str:
    """Return a policy as text for tables: its name and arguments, "as written" for None.

    >>> policy_text(("save_only_these_names", "q", "k")), policy_text(None)
    ('save_only_these_names(q, k)', 'as written')
    """
    if policy is None:
        return "as written"
    return policy if isinstance(policy, str) else f"{policy[0]}({', '.join(policy[1:])})"


@cache
def _policy_function(policy: Policy) -> Callable[..., Any]:
    """Return JAX's policy; equal policies give one function, which JAX's caches compare."""
    if isinstance(policy, str):
        found: Callable[..., Any] = getattr(jax.checkpoint_policies, policy)
        return found
    made: Callable[..., Any] = getattr(jax.checkpoint_policies, policy[0])(*policy[1:])
    return made


# JAX's caches of traced functions have the value in their keys, and it belongs to one thread.
_asked: Any = jax.make_user_context(None)
# The method of a primitive is replaced for all threads, so one function is traced at a time.
_lock = threading.RLock()


# Each object is a key of its own, so that no trace takes over the functions of an earlier one.
@dataclass(frozen=True, eq=False)
class _Asked:
    """The policy of one trace, and where it applies.

    Attributes:
      places: CHECKPOINTS or SCANS.
      found: has the name of the places as soon as there is one.
    """

    policy: Policy
    places: str
    found: set[str]


def rematerialised(
    fn: Callable[..., Any], policy: Policy, places: str, found: set[str]
) -> Callable[..., Any]:
    """Return a function like `fn` whose layers are rematerialised by a policy.

    Args:
      fn: the function; its name, signature and results do not change.
      places: CHECKPOINTS changes the policy of each `jax.checkpoint`. SCANS puts one around the
        body of each `jax.lax.scan` that is differentiated.
      found: an output. A trace that finds such a place adds `places`.

    >>> import jax.numpy as jnp
    >>> def loss(x):
    ...     return jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum()
    >>> found: set[str] = set()
    >>> saving = rematerialised(jax.grad(loss), "everything_saveable", CHECKPOINTS, found)
    >>> [str(jax.make_jaxpr(f)(1.0)).count("sin") for f in (jax.grad(loss), saving)]
    [3, 2]
    >>> found
    {'checkpoints'}
    """

    @wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        asked = _Asked(policy, places, found)
        with _lock, _bound_by_policy(), _asked(asked):
            return fn(*args, **kwargs)

    return run


@contextmanager
def _bound_by_policy() -> Iterator[None]:
    """Let calls of `jax.checkpoint` and `jax.lax.scan` follow the policy of their thread.

    Inside the context, the `bind` methods of both primitives are replaced. `_asked` has the policy
    that this thread asked for, or None; other threads are not affected.
    """
    bind_remat, bind_scan = remat_p.bind, scan_p.bind

    def remat(*args: Any, **params: Any) -> Any:
        """Bind `jax.checkpoint` with the policy that was asked for."""
        request: _Asked | None = _asked.value
        if request is not None and request.places == CHECKPOINTS:
            # JAX binds the primitive again where it differentiates it: the policy is the same.
            request.found.add(CHECKPOINTS)
            params["policy"] = _policy_function(request.policy)
        return bind_remat(*args, **params)

    def scan(*args: Any, **params: Any) -> Any:
        """Bind `jax.lax.scan`; put a checkpoint around the body if it was asked for."""
        request: _Asked | None = _asked.value
        if request is not None and request.places == SCANS and _is_differentiated():
            request.found.add(SCANS)
            params["jaxpr"] = _with_checkpoint(params["jaxpr"], _policy_function(request.policy))
        return bind_scan(*args, **params)

    with patch.object(remat_p, "bind", remat), patch.object(scan_p, "bind", scan):
        yield


def _is_differentiated() -> bool:
    """Return whether JAX differentiates the operator that it binds now.

    The rules of `grad` bind operators again for the trace around them, so that one call of a
    function is differentiated once.
    """
    from jax._src.core import trace_ctx

    return type(trace_ctx.trace).__name__ in ("JVPTrace", "LinearizeTrace")


def _with_checkpoint(closed: Any, policy: Callable[..., Any]) -> Any:
    """Return the body of a loop as one call of `jax.checkpoint`, with equal arguments and results.

    No barrier prevents common subexpressions, because forward and backward loops share none.
    """
    inner = closed.jaxpr
    results = [Var(v.aval) for v in inner.outvars]
    params = {
        "jaxpr": inner, "prevent_cse": False, "differentiated": False, "policy": policy,
    }  # fmt: skip
    call = new_jaxpr_eqn(inner.invars, results, remat_p, params, inner.effects)
    return closed.replace(jaxpr=inner.replace(eqns=[call], outvars=results))
