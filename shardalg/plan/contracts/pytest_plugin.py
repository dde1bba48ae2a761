"""Plug-in of pytest: each statement of a file `*.contract.toml` is a test.

pytest loads it by its entry point, so nothing heavy is imported until such a file is collected.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shardalg.plan.contracts.contract import ContractReport

SUFFIX = ".contract.toml"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Return a collector for a contract file; None for any other file."""
    if not file_path.name.endswith(SUFFIX):
        return None
    collector: pytest.Collector = ContractTests.from_parent(parent, path=file_path)
    return collector


class ContractTests(pytest.File):
    """The statements of a contract file. The function is planned once, for the first of them."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield a test per statement.

        Raises:
          ContractError: the file cannot be read.
        """
        from shardalg.plan.contracts.contract_file import read_file

        self.given = read_file(self.path)
        self._report: ContractReport | None = None
        for number, statement in enumerate(self.given.contract.statements):
            yield StatementTest.from_parent(self, name=str(statement), number=number)

    @property
    def report(self) -> ContractReport:
        """The verdicts about all statements of the file."""
        if self._report is None:
            from shardalg.plan.commands.checking import planned

            self._report = self.given.contract.check(planned(self.given, self.path))
        return self._report


class StatementTest(pytest.Item):
    """One statement of a contract file; the test fails unless it holds or is proved."""

    def __init__(self, *, number: int, **given: Any) -> None:
        super().__init__(**given)
        self.number = number

    def runtest(self) -> None:
        """Check the statement.

        Raises:
          ContractError: it is refuted, or not decided.
        """
        from shardalg.errors import ContractError

        assert isinstance(self.parent, ContractTests), "a statement is in a contract file"
        verdict = self.parent.report.verdicts[self.number]
        if not verdict.ok:
            raise ContractError(str(verdict))

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        """Return the text of a failure: the verdict, without a traceback through shardalg."""
        from shardalg.errors import ShardalgError

        if isinstance(excinfo.value, ShardalgError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return the place that pytest prints: the file, and the statement."""
        return self.path, None, self.name
