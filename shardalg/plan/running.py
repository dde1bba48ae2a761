"""A plan on devices: lowered, compiled for chips that are not here, and at the border of `jax.jit`.

A loaded plan has no function. It is given again as `fn`, and must have the planned graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from shardalg.errors import LoweringError
from shardalg.plan.named_sizes import hints_text
from shardalg.planner.stages import priced

if TYPE_CHECKING:
    from shardalg.costs.topology import Topology
    from shardalg.lower import Lowered
    from shardalg.lower.isolated import OneShard
    from shardalg.lower.three_ways import Comparison
    from shardalg.plan.plan import Plan
    from shardalg.planner.traced import Traced
    from shardalg.spmd.program import SpmdProgram
    from shardalg.verify.report import Report
    from shardalg.xla.aot_answer import BesideCompiler


def bound(plan: Plan, fn: Callable[..., Any] | None, args: Sequence[Any] | None) -> Traced:
    """Return the traced function of a plan, in a form that can run.

    Args:
      fn, args: the function and its arguments, which a plan from a file does not have; else None.

    Raises:
      LoweringError: a loaded plan without the function, or a function with another graph.
    """
    # A plan that was made in this process still has its function.
    if plan._traced.call is not None and fn is None:
        return plan._traced
    if fn is None:
        raise LoweringError(
            "a loaded plan has no function to run: pass it, as plan.lower(fn=train_step)."
        )
    return plan._traced.bound(fn, args, plan.mesh.shape)


def verified(plan: Plan, program: SpmdProgram) -> Report:
    """Return every claim about a program for the plan's function, with its proof."""
    from shardalg.verify.verify import verify

    switches = plan.options.switches
    report = verify(
        plan._sharded,
        program,
        finite=switches.finite_sums,
        finite_in_loops=switches.defer_in_loops,
    )
    return replace(report, hints=hints_text(plan, plan.sizes))


def verified_text(plan: Plan) -> str:
    """Return how many claims were proved, or "not verified" before the first `Plan.verify`."""
    # A computed `cached_property` is in the instance's dict, so this look-up starts no proof.
    return plan._report.summary() if "_report" in plan.__dict__ else "not verified"


def executable(
    plan: Plan, traced: Traced, devices: Sequence[Any] | None, platform: str | None = None
) -> Lowered:
    """Return the program as a JAX executable, without verifying it.

    Args:
      platform: lower for a platform without its devices; None: for `devices`.
    """
    from shardalg.algebra.jax_meshes import mesh_to_abstract
    from shardalg.lower import lower
    from shardalg.show.timeline import Timeline

    pairs = zip(traced.graph.sites, plan._annotations.sites, strict=True)
    sites = {site.node: sharding for site, sharding in pairs if sharding is not None}
    # JAX lowers for devices that are not here on an abstract mesh.
    mesh = None if platform is None else mesh_to_abstract(plan.mesh)
    made = lower(plan.program, traced.graph, devices, donate=traced.donated, mesh=mesh, sites=sites)
    return replace(made, platform=platform, drawn=partial(Timeline, of="measured"))


def lowered(
    plan: Plan,
    devices: Sequence[Any] | None,
    fn: Callable[..., Any] | None,
    args: Sequence[Any] | None,
) -> Lowered:
    """Return the verified program as a JAX executable; see `Plan.lower`.

    Raises:
      LoweringError: the function is missing or another one, or a claim is refuted.
    """
    from shardalg.verify.report import refuse_refuted

    traced = bound(plan, fn, args)
    # A program that is proved wrong must not run: its results would be wrong without an error.
    refuse_refuted(plan.verify())
    made = executable(plan, traced, devices)
    hints = hints_text(plan, plan.sizes)
    at = f", at the hints {hints}" if hints else ""
    made = replace(made, verified=verified_text(plan) + at)
    return made if traced.call is None else replace(made, call=traced.call)


def compared_runs(plan: Plan, args: Sequence[Any], expected: Any, repeats: int) -> Comparison:
    """Return measured runs of the plan, of XLA's partitioning and of one device.

    Raises:
      LoweringError: a loaded plan, too few devices, or a refuted claim.
    """
    from shardalg.lower.three_ways import compare

    made = plan.lower()
    return compare(made, args, expected, repeats=repeats, verified=verified_text(plan))


def one_shard(plan: Plan, device: Any) -> OneShard:
    """Return the program of one device with local collectives; see `Plan.one_shard`.

    Raises:
      LoweringError: a loaded plan, a `while` that ends by its values, or a refuted claim.
    """
    from shardalg.lower.axes import first_device
    from shardalg.lower.isolated import OneShard
    from shardalg.verify.report import refuse_refuted

    refuse_refuted(plan.verify())
    chosen = first_device() if device is None else device
    traced = bound(plan, None, None)
    return OneShard(executable(plan, traced, None, chosen.platform), chosen)


def beside_chip_compiler(
    plan: Plan,
    topology: str | Topology,
    fn: Callable[..., Any] | None,
    args: Sequence[Any] | None,
) -> BesideCompiler:
    """Return the plan's figures and the chip compiler's figures; see `Plan.aot`.

    Raises:
      DeviceError: the compiler is not installed. HardwareError: an unknown chip or shape.
      LoweringError: the compiler refuses the topology or the program.
    """
    from shardalg.costs.topology import Topology
    from shardalg.show.tables import collectives
    from shardalg.xla.aot import target_of
    from shardalg.xla.aot_answer import Figures, beside_compiler

    where = Topology.parse(topology) if isinstance(topology, str) else topology
    target = target_of(where, plan.mesh)
    traced = bound(plan, fn, args)
    # The compiler reports bytes and flops of one device, so the plan's figures are the same ones.
    cost = priced(traced, plan.program, where.hardware)
    sent = collectives(plan.program, traced.graph)
    planned = Figures.of(plan.program, cost, sent, target.platform)
    return beside_compiler(executable(plan, traced, None, target.platform), planned, target)


def named_shardings(plan: Plan, devices: Sequence[Any] | None) -> tuple[Any, Any]:
    """Return JAX's shardings of the arguments and of the results, each as a pytree.

    Raises:
      LoweringError: a loaded plan, which has no pytrees, or too few devices.
    """
    if plan.graph.trees is None:
        raise LoweringError(
            "a loaded plan has no pytrees. Plan the function again, or read plan.shardings()."
        )
    # The executable decides which prefix of axes is even, so it is the source here too.
    lowered_plan = executable(plan, plan._traced, devices)
    outer = ([b.outer for b in side] for side in (lowered_plan.arguments, lowered_plan.results))
    pairs = zip(plan.graph.trees, outer, strict=True)
    entering, leaving = (tree.unflatten(leaves) for tree, leaves in pairs)
    return entering, leaving


def jit_kwargs(plan: Plan, devices: Sequence[Any] | None) -> dict[str, Any]:
    """Return the keyword arguments of `jax.jit` that give its border the plan's shardings."""
    entering, leaving = plan.named_shardings(devices)
    donated, last, given = set(plan._traced.donated), 0, []
    # `donate_argnums` of jax counts arguments, a plan counts leaves: an argument is donated if
    # all of its leaves are.
    for number, argument in enumerate(plan.graph.trees[0].children()):
        first, last = last, last + argument.num_leaves
        if last > first and donated.issuperset(range(first, last)):
            given.append(number)
    return {"in_shardings": entering, "out_shardings": leaving, "donate_argnums": tuple(given)}


def shardy_text(plan: Plan) -> str:
    """Return the function as StableHLO with the plan's shardings in the Shardy dialect."""
    from shardalg.xla import dump

    graph, layouts = plan.graph, plan._sharded.shardings
    # Only the border gets completed shardings; constraints inside are those that the user wrote.
    completed = replace(
        plan._annotations,
        arguments=tuple(layouts[v] for v in graph.arguments),
        results=tuple(layouts[v] for v in graph.results),
    )
    return dump.shardy_text(bound(plan, None, None).graph, completed)
