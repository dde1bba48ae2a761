"""The answer of an audit for one instruction."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AuditedInstruction:
    """The answer for one instruction of the partitioned program.

    Attributes:
      status: "proved", "refuted", "not understood", or "behind" if it reads a value of an
        instruction that is refuted or not understood. "equal" replaces the last two if all results
        are equal on random elements, which is a proof at these sizes except for a probability of
        less than 1e-9.
      why: the reason of a status other than "proved".
      device, element: of a refuted instruction, a place that shows it; element has an index per
        dimension of the device's value.
      expected, found: the contents of this place: elements of tensors before partitioning, numbers,
        or parts of a sum.
      issue: number and title of the known issue of XLA or JAX with the same idiom, or "".
      before, after: of a refuted instruction, the lines of both texts: the instructions with its
        name in JAX, and itself.
      op: JAX's name of the operation. source: the user's line, or "".
    """

    instruction: str
    computation: str
    opcode: str
    status: str
    why: str = ""
    device: int | None = None
    element: tuple[int, ...] = ()
    op: str = ""
    source: str = ""
    expected: str = ""
    found: str = ""
    issue: str = ""
    before: str = ""
    after: str = ""

    @property
    def witness(self) -> str:
        """The expected and the found content of the place, in words; "" if nothing is refuted."""
        return f"expected {self.expected}, found {self.found}" if self.expected else ""

    def __str__(self) -> str:
        """Return one line: instruction, JAX operation, source line, reason and witness."""
        at = f", on device {self.device}" if self.device is not None else ""
        place = f" at {list(self.element)}" if self.element else ""
        name = f" ({self.op})" if self.op else ""
        line = f", {self.source}" if self.source else ""
        shown = f": {self.witness}" if self.witness else ""
        return f"{self.opcode} {self.instruction}{name}{line}: {self.why}{at}{place}{shown}"
