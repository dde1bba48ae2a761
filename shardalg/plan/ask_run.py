"""Running a plan, and keeping it in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardalg.plan.ask_shardings import ShardingAnswers
from shardalg.plan.ask_verify import VerifyAnswers
from shardalg.planning import plan_file

if TYPE_CHECKING:
    from shardalg.lower import Lowered


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
        from shardalg.lower import lower
        from shardalg.verify.report import refuse_refuted

        traced = self._bound(fn, args)
        refuse_refuted(self.verify())
        sites = {
            site.node: sharding
            for site, sharding in zip(traced.graph.sites, self._annotations.sites, strict=True)
            if sharding is not None
        }
        made = lower(self.program, traced.graph, devices, donate=traced.donated, sites=sites)
        hints = self._hints(self.sizes)
        at = f", at the hints {hints}" if hints else ""
        made = replace(made, verified=self._verified() + at)
        return made if traced.call is None else replace(made, call=traced.call)

    def save(self, path: str | Path) -> None:
        """Write the plan to a JSON file, atomically; `load_plan` reads it.

        The file holds the graph, the annotations and the options; the rest is derived again.
        """
        plan_file.write(path, self._content())

    def _content(self, schema: str = plan_file.SCHEMA) -> dict[str, Any]:
        parts = self._traced, self._annotations, self.options
        return plan_file.content(*parts, text=self.text(), schema=schema)
