"""The stages of a plan from a user's call, from another plan's trace, or from the inputs in a file.

Each function returns the stages and the options that they were made with. A plan is these two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from shardalg.algebra.mesh import Mesh
from shardalg.errors import ShardalgError, StrategyError, TraceError
from shardalg.graph.user_frames import passed_on
from shardalg.planner.calls.meshes import placed
from shardalg.planner.calls.user_call import opened
from shardalg.planner.propagate.options import Options, options_from
from shardalg.planner.propagate.strategy import Annotations, Strategy, resolve, strategy_from
from shardalg.planner.stages import Stages, annotations_on_mesh, planned
from shardalg.planner.traced import Traced, trace_call, with_own_shardings

if TYPE_CHECKING:
    from shardalg.plan.plan import Plan


def one_strategy(
    strategy: Strategy | None, mesh: Any, in_shardings: Any, out_shardings: Any
) -> Strategy:
    """Return `strategy`, or a strategy of the mesh and the shardings if it is None.

    Raises:
      StrategyError: both forms are given.
    """
    if strategy is None:
        # The mesh may be None until the arguments are read: their shardings can bring one.
        return Strategy(mesh, in_shardings, out_shardings)
    if not (mesh is None and in_shardings is None and out_shardings is None):
        raise StrategyError(
            "plan() takes a strategy, or mesh and shardings, not both: put them into the Strategy."
        )
    return strategy


def traced_call(
    fn: Callable[..., Any],
    given: tuple[tuple[Any, ...], Mapping[str, Any]],
    roles: Any,
    donate_argnums: Any,
    strategy: Strategy,
    options: Options | None,
) -> tuple[Traced, Strategy, Options]:
    """Trace a function with its arguments; return the strategy with its mesh, and the options.

    Raises:
      An exception of the user's function, with the user's frames of its traceback alone.
      TraceError: the function fails, and an argument is None.
    """
    # Wrong types are reported before the function is traced, which may take long.
    strategy, options = strategy_from(strategy), options_from(options or Options())
    try:
        # `opened` splits modules of flax nnx or equinox into arrays and structure, so the traced
        # function can have other arguments than the user's.
        call = opened(fn, *given)
        given = call.given or given
        if donate_argnums is not None:
            call = replace(call, donated=call.donates(donate_argnums))
        strategy, explicit = placed(call, strategy, given)
        traced = trace_call(call, strategy.mesh.shape, given=given, roles=roles, explicit=explicit)
        if roles is None and any(traced.argument_roles) and options.keep_gathers is None:
            # Roles that were read off the trees give names to bytes. They do not decide what stays
            # in memory for the backward pass: that is the user's to say.
            options = replace(options, keep_gathers=True)
        return replace(traced, first_mesh=strategy.mesh), strategy, options
    # The package's own errors keep their traceback; only errors of the user's function are
    # shortened.
    except ShardalgError:
        raise
    except Exception as error:
        # None is a pytree without arrays, so that jax reports it only inside of the function.
        absent = [str(n) for n, arg in enumerate(given[0]) if arg is None]
        absent += [name for name, arg in given[1].items() if arg is None]
        if absent and isinstance(error, TypeError | AttributeError | ValueError):
            raise TraceError(
                f"the function fails, and its argument {', '.join(absent)} is None: "
                f"{type(error).__name__}: {error}. Give an array or a jax.ShapeDtypeStruct."
            ) from passed_on(fn, error)
        raise passed_on(fn, error)  # noqa: B904  # the same exception, with the user's frames


def planned_strategy(
    traced: Traced, strategy: Strategy, options: Options
) -> tuple[Stages, Options]:
    """Plan a traced function under a strategy.

    Return the results of all passes, and the options.
    """
    return planned_annotations(traced, strategy_annotations(traced, strategy), options)


def strategy_annotations(traced: Traced, strategy: Strategy) -> Annotations:
    """Return the annotations of a strategy for a traced function, and its arguments' shardings.

    Raises:
      StrategyError: the strategy does not fit the function.
    """
    flat = traced.with_layouts(strategy)
    return with_own_shardings(resolve(traced.graph, flat, traced.first_mesh), traced)


def planned_annotations(
    traced: Traced, annotations: Annotations, options: Options
) -> tuple[Stages, Options]:
    """Plan a traced function under annotations.

    Return the results of all passes, and the options.
    """
    stages = planned(traced, annotations, options)
    refuse_fallbacks(stages, options)
    return stages, options


def refuse_fallbacks(stages: Stages, options: Options) -> None:
    """Raise an error if `strict=True` and an operator is not partitioned as it could be.

    Raises:
      StrategyError: there is such an operator; the error lists them.
    """
    from shardalg.plan.explain.warnings import roundabout

    fallbacks = roundabout.warnings(stages.program, stages.graph) if options.strict else ()
    if len(fallbacks):
        raise StrategyError(
            f"strict=True, and operators fall back:\n{fallbacks}\nAdd a row, or allow them."
        )


def replanned(
    plan: Plan, strategy: Strategy | None, mesh: Any, options: Options | None
) -> tuple[Stages, Options]:
    """Plan the function of a plan again without a new trace; see `Plan.replan`.

    It is planned under another strategy, on another mesh, or with other options.

    Raises:
      StrategyError: both a strategy and a mesh are given, or a layout does not fit the mesh.
    """
    options = options_from(options or plan.options)
    if strategy is not None:
        if mesh is not None:
            raise StrategyError(
                "replan() takes a strategy, which has a mesh, or a mesh: give one of both."
            )
        strategy = strategy_from(strategy)
        traced = plan._traced.on(strategy.mesh, before=plan.mesh)
        return planned_strategy(traced, strategy, options)
    if mesh is None:
        return planned_annotations(plan._traced, plan._annotations, options)
    # PartitionSpecs name axes and not sizes, so the same annotations are valid on a mesh with other
    # sizes of these axes.
    there = mesh if isinstance(mesh, Mesh) else Mesh.from_jax(mesh)
    traced = plan._traced.on(there, before=plan.mesh)
    graphs = (plan.graph, traced.graph)
    annotations = annotations_on_mesh(graphs, plan._annotations, there, traced.first_mesh)
    return planned_annotations(traced, annotations, options)


def unknown_keywords(given: Mapping[str, Any], parameters: Iterable[str]) -> StrategyError:
    """Return the error about keywords that `plan` does not have, with similar ones.

    Args:
      given: the unknown keywords with their values.
      parameters: the names of the parameters of `plan`.
    """
    known = [name for name in parameters if name not in ("fn", "args", "unknown")]
    texts = []
    for name, value in given.items():
        near = get_close_matches(name, known, 1)
        texts.append(f"{name}={value!r:.40}" + (f" (near {near[0]})" if near else ""))
    return StrategyError(
        f"plan() has no keyword {', '.join(texts)}: its keywords are {', '.join(known)}. Keyword "
        "arguments of the function are given as kwargs={'name': value}."
    )
