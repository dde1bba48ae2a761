"""What a plan says of its proof."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from shardalg.plan.ask_sizes import SizeAnswers

if TYPE_CHECKING:
    from shardalg.spmd.program import SpmdProgram
    from shardalg.verify.report import Report


class VerifyAnswers(SizeAnswers):
    """Whether the program computes the function."""

    def verify(self, program: SpmdProgram | None = None) -> Report:
        """Every claim on which the program's equality with the function rests, with its proof.

        `.ok` only if each claim is proved or trusted.

        Args:
          program: another program for the same function, such as `plan.program` with a change.
        """
        return self._report if program is None else self._judged(program)

    @cached_property
    def _report(self) -> Report:
        return self._judged(self.program)

    def _judged(self, program: SpmdProgram) -> Report:
        from shardalg.verify.verify import verify

        switches = self.options.switches
        report = verify(
            self._sharded,
            program,
            finite=switches.finite_sums,
            finite_in_loops=switches.defer_in_loops,
        )
        return replace(report, hints=self._hints(self.sizes))

    def _verified(self) -> str:
        """How far the plan was verified, in words."""
        return self._report.summary() if "_report" in self.__dict__ else "not verified"
