"""A traced function, and its annotations, with another policy of rematerialisation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from shardalg.algebra.sharding import Sharding
from shardalg.errors import StrategyError
from shardalg.graph.tracing.remat import (
    CHECKPOINTS,
    SCANS,
    Policy,
    policy_text,
    rematerialised,
)
from shardalg.planner.propagate.strategy import Annotations, Strategy, resolve
from shardalg.planner.stages import annotations_at
from shardalg.planner.traced import Traced


def inputs_with_remat(
    traced: Traced, annotations: Annotations, policy: Policy
) -> tuple[Traced, Annotations]:
    """Return a function that is traced again with a policy for its layers, and its annotations.

    The policy is that of all calls of `jax.checkpoint` in the function. If it has none, each
    `jax.lax.scan` that it differentiates gets one around its body.

    Raises:
      StrategyError: the function is not available (a loaded plan, or a trace of `jax.jit`), it has
        neither such a call nor such a loop, or it has no backward pass.
    """
    what = f"remat={policy_text(policy)!r}"
    if traced.changed is None or traced.call is None:
        raise StrategyError(
            f"{what} needs the function, because JAX decides in its trace which values the "
            "backward pass keeps, and a loaded plan has no function: plan it again."
        )
    if hasattr(traced.call.fn, "args_info"):
        raise StrategyError(
            f"{what} needs the function, and jax.jit(f).trace(...) is traced already: pass "
            "the function with its arguments."
        )
    made = _traced_with(traced, policy)
    if made is None:
        raise StrategyError(
            f"{what} finds no place in the function: it has no jax.checkpoint, and no jax.lax.scan "
            "that jax.grad differentiates directly. Put jax.checkpoint around a layer, or leave "
            "remat= out."
        )
    if not any(node.phase == "backward" for node in made.graph.nodes):
        raise StrategyError(
            f"{what} changes nothing: the function has no backward pass. Plan a function that "
            "calls jax.grad, or leave remat= out."
        )
    return made, _annotations_of(made, traced, annotations)


def _traced_with(traced: Traced, policy: Policy) -> Traced | None:
    """Return the function traced with a policy; None if it has no place for one.

    A place is a call of `jax.checkpoint`, or, in a function without such calls, a differentiated
    `jax.lax.scan`.
    """
    assert traced.changed is not None, "a function that is available"
    for places in (CHECKPOINTS, SCANS):
        # `rematerialised` changes the jaxpr during the trace, and notes each place that it finds.
        found: set[str] = set()
        change = partial(rematerialised, policy=policy, places=places, found=found)
        retraced = traced.changed(change)
        if found:
            return replace(
                retraced,
                own_shardings=traced.own_shardings,
                donated=traced.donated,
                first_mesh=traced.first_mesh,
            )
    return None


def _annotations_of(made: Traced, traced: Traced, given: Annotations) -> Annotations:
    """Return the annotations of a function for another trace of it.

    Arguments and results are the same. A site inside of a layer occurs again where the layer is
    computed again, so that its annotation moves by its name.

    Raises:
      StrategyError: single values are annotated, or sites of one name have unequal annotations.
    """
    if given.values or given.orders:
        kind = "of single values" if given.values else "in another order of the devices"
        raise StrategyError(
            f"remat= traces the function again, and the plan has annotations {kind}, which another "
            "trace does not have. Annotate sites by name (sa.annotate), on the plan's mesh."
        )
    mesh, first = given.mesh, traced.first_mesh
    # The annotations that the function brings itself, in the old trace and in the new one. Only
    # those that the user has changed are moved by name.
    old_own, new_own = (resolve(t.graph, Strategy(mesh), first).sites for t in (traced, made))
    asked: dict[str | None, Sharding | None] = {}
    for site, own, now in zip(traced.graph.sites, old_own, given.sites, strict=True):
        # Two sites of one name must agree, because the new trace may have more of them.
        if own != now and asked.setdefault(site.name, now) != now:
            raise StrategyError(
                f"the sites named {site.name!r} have unequal annotations, and with remat= some of "
                "them are computed twice: give the sites different names."
            )
    new_sites = zip(made.graph.sites, new_own, strict=True)
    sites = (asked.get(site.name, own) for site, own in new_sites)
    moved = Annotations(mesh, given.arguments, given.results, tuple(sites))
    return annotations_at(moved, made.graph, mesh)
