"""Running a plan, and keeping it in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.errors import LoweringError
from shardalg.plan.ask_shardings import ShardingAnswers
from shardalg.plan.ask_verify import VerifyAnswers
from shardalg.planning import plan_file

if TYPE_CHECKING:
    from shardalg.costs.topology import Topology
    from shardalg.lower import Lowered
    from shardalg.lower.measuring.one_shard import OneShard
    from shardalg.lower.three_ways import Comparison
    from shardalg.planning.traced import Traced
    from shardalg.xla.aot_answer import BesideCompiler


class RunAnswers(ShardingAnswers, VerifyAnswers):
    """The executable, and the file."""

    def lower(
        self,
        devices: Sequence[Any] | None = None,
        *,
        fn: Callable[..., Any] | None = None,
        args: Sequence[Any] | None = None,
    ) -> Lowered:
        """The program as a JAX executable; call it on global arrays. It is verified first.

        Args:
          devices: as many as the mesh has positions; None takes jax's first ones.
          fn: of a loaded plan, the function again; its graph must be the planned one.
          args: with `fn`, the arguments as `plan` took them; needed where they are pytrees.

        Raises:
          LoweringError: a loaded plan without the function or its pytrees, another function, a
            refuted claim.
        """
        from shardalg.verify.report import refuse_refuted

        traced = self._bound(fn, args)
        refuse_refuted(self.verify())
        made = self._executable(traced, devices)
        hints = self._hints(self.sizes)
        at = f", at the hints {hints}" if hints else ""
        made = replace(made, verified=self._verified() + at)
        return made if traced.call is None else replace(made, call=traced.call)

    def compare_runs(self, args: Sequence[Any], expected: Any, *, repeats: int = 20) -> Comparison:
        """The plan and XLA's own partitioning of the function, run in turns beside one device.

        Args:
          args: the arguments, in numbers.
          expected: what the function gives for them on one device, such as `jax.jit(fn)(*args)`.
          repeats: timed runs of each.

        Raises:
          LoweringError: a loaded plan, too few devices, a refuted claim.
        """
        from shardalg.lower.three_ways import compare

        lowered = self.lower()
        return compare(lowered, args, expected, repeats=repeats, verified=self._verified())

    def one_shard(self, device: Any = None) -> OneShard:
        """What one device does, on one device, to measure compute and memory of a large plan.

        Collectives become local stand-ins of the same shapes: `measure()` gives times and memory,
        and there is no result. `device`: None takes the first.

        Raises:
          LoweringError: a loaded plan, a `while` that ends by its values, a refuted claim.
        """
        from shardalg.lower.host import first_device
        from shardalg.lower.measuring.one_shard import OneShard
        from shardalg.verify.report import refuse_refuted

        refuse_refuted(self.verify())
        chosen = first_device() if device is None else device
        traced = self._bound(None, None)
        return OneShard(self._executable(traced, None, chosen.platform), chosen)

    def _executable(
        self, traced: Traced, devices: Sequence[Any] | None, platform: str | None = None
    ) -> Lowered:
        """The program on devices; with a platform, on none of that one."""
        from shardalg.algebra.jax_meshes import mesh_to_abstract
        from shardalg.lower import lower
        from shardalg.report.timeline import Timeline

        pairs = zip(traced.graph.sites, self._annotations.sites, strict=True)
        sites = {site.node: sharding for site, sharding in pairs if sharding is not None}
        mesh = None if platform is None else mesh_to_abstract(self.mesh)
        made = lower(
            self.program, traced.graph, devices, donate=traced.donated, mesh=mesh, sites=sites
        )
        return replace(made, platform=platform, drawn=partial(Timeline, of="measured"))

    def aot(
        self,
        topology: str | Topology,
        *,
        fn: Callable[..., Any] | None = None,
        args: Sequence[Any] | None = None,
    ) -> BesideCompiler:
        """The plan's memory, flops and collectives beside those of the chip's own compiler.

        The lowered program and XLA's twin are compiled, in another process, for chips that need not
        be here; answers are kept in the user's cache folder by content. A program that does not fit
        the memory is an answer too. A plan with named sizes is compiled at the hints.

        Args:
          topology: "v3:8x8", or a `Topology`.
          fn, args: of a loaded plan, as `lower` takes them.

        Raises:
          DeviceError: the compiler (`libtpu`, a CUDA plugin of jax) is not installed.
          HardwareError: an unknown chip or shape, or a mesh that does not tile it.
          LoweringError: the compiler does not know the topology, or refuses the program.
        """
        from shardalg.costs.topology import Topology
        from shardalg.planning.stages import priced
        from shardalg.report.tables import collectives
        from shardalg.xla.aot import target_of
        from shardalg.xla.aot_answer import Figures, beside_compiler

        where = Topology.parse(topology) if isinstance(topology, str) else topology
        target = target_of(where, self.mesh)
        traced = self._bound(fn, args)
        cost = priced(traced, self.program, where.hardware)
        sent = collectives(self.program, traced.graph)
        planned = Figures.of(self.program, cost, sent, target.platform)
        return beside_compiler(self._executable(traced, None, target.platform), planned, target)

    def named_shardings(self, devices: Sequence[Any] | None = None) -> tuple[Any, Any]:
        """JAX's shardings of the arguments and of the results, each as a pytree of its own.

        The arguments' is a tuple, one entry per argument: to place arrays, to restore a checkpoint
        into, or for `jax.jit`. An uneven dimension is laid out on the longest even prefix of its
        axes, since JAX arrays cannot be uneven.

        Args:
          devices: as `lower` takes them.

        Raises:
          LoweringError: a loaded plan, which has no pytrees; too few devices.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> w = {"w": jax.ShapeDtypeStruct((8, 4), "float32")}
        >>> specs = ({"w": P("X")},)
        >>> plan = sa.plan(lambda p: p["w"].T, w, mesh=sa.Mesh({"X": 2}), in_shardings=specs)
        >>> (entering,), leaving = plan.named_shardings()
        >>> entering["w"].spec[0], leaving.spec[1]
        ('X', 'X')
        """
        if self.graph.trees is None:
            raise LoweringError(
                "a loaded plan has no pytrees. Plan the function again, or read plan.shardings()."
            )
        made = self._executable(self._traced, devices)
        outer = ([b.outer for b in side] for side in (made.arguments, made.results))
        pairs = zip(self.graph.trees, outer, strict=True)
        entering, leaving = (tree.unflatten(leaves) for tree, leaves in pairs)
        return entering, leaving

    def jit_kwargs(self, devices: Sequence[Any] | None = None) -> dict[str, Any]:
        """What `jax.jit` of the function is to be given to have this plan's layouts at its border.

        `in_shardings`, `out_shardings` and `donate_argnums`: `jax.jit(fn, **plan.jit_kwargs())`.
        Collectives inside are then XLA's own; `lower` runs the plan's.

        Raises:
          LoweringError: as of `named_shardings`.
        """
        entering, leaving = self.named_shardings(devices)
        donated, last, given = set(self._traced.donated), 0, []
        for number, argument in enumerate(self.graph.trees[0].children()):
            first, last = last, last + argument.num_leaves
            if last > first and donated.issuperset(range(first, last)):
                given.append(number)
        return {
            "in_shardings": entering,
            "out_shardings": leaving,
            "donate_argnums": tuple(given),
        }

    def shardy(self) -> str:
        """The function as StableHLO with this plan's layouts in Shardy's words.

        The mesh (`sdy.mesh`), a `sdy.sharding` at every argument and result, and a
        `sdy.sharding_constraint` at every annotated site; lines stand in locations. Uneven layouts
        are constraints inside, since a border of JAX divides. `sa.read_stablehlo` reads it.

        >>> import jax, shardalg as sa
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jax.ShapeDtypeStruct((8, 16), "float32")
        >>> plan = sa.plan(lambda x: x + 1, x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
        >>> lines = plan.shardy().splitlines()
        >>> [line.strip() for line in lines if "sdy.mesh" in line]
        ['sdy.mesh @mesh = <["X"=2]>...']
        >>> [line.count('#sdy.sharding<@mesh, [{"X"}, {}]>') for line in lines if "@main" in line]
        [2]
        """
        from shardalg.xla.dump import shardy_text

        graph, given = self.graph, self._annotations
        layouts = self._sharded.shardings
        completed = replace(
            given,
            arguments=tuple(layouts[v] for v in graph.arguments),
            results=tuple(layouts[v] for v in graph.results),
        )
        return shardy_text(self._bound(None, None).graph, completed)

    def save(self, path: str | Path) -> None:
        """Write the plan to a JSON file, atomically; `load_plan` reads it.

        The file holds the inputs of planning (the graph, the annotations and the options), the
        versions that the plan was made with, and a summary: a digest of the program, shardings,
        collectives by module, the peak of memory by class, and seconds of a step. The chip's
        figures are not in it, nor the partitioner that policy "jit" asks the installed jax for.
        """
        plan_file.write(path, self._file)

    @property
    def _file(self) -> plan_file.PlanFile:
        """Return the content of the plan's file."""
        from shardalg.explain.plan_summary import bare_text, summary

        content = plan_file.PlanFile(self._inputs(), plan_file.versions(self.options))
        made = summary(self._stages, content.sealed(bare_text(self._stages)))
        return replace(content, summary=made.to_json())

    def _inputs(self) -> dict[str, Any]:
        """Return the inputs of planning, as plain data."""
        return plan_file.inputs(self._traced, self._annotations, self.options)
