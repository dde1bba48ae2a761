"""The errors of shardalg, one class per stage of the data flow.

A message names the place, every wrong value in the user's notation, a witness, and the remedy.
All classes derive from `ShardalgError`, so one `except` catches every error that a user can cause.
A failure inside shardalg that no input should cause is an `AssertionError`.

>>> try:
...     raise MeshError("axis 'z' is not on Mesh(x=2, y=4); its axes are 'x' and 'y'")
... except ShardalgError as error:
...     print(type(error).__name__, error)
MeshError axis 'z' is not on Mesh(x=2, y=4); its axes are 'x' and 'y'
"""


class ShardalgError(Exception):
    """Base class of all errors that a user of shardalg can cause; never raised itself."""


class MeshError(ShardalgError, ValueError):
    """An invalid device mesh: repeated axis names, sizes below one, wrong device ids."""


class NotationError(ShardalgError, ValueError):
    """Text that is not valid in a sharding notation (HLO text, dimension mappings, specs)."""


class ShardingError(ShardalgError, ValueError):
    """A sharding that does not fit its shape or mesh, or that contradicts another sharding."""


class TraceError(ShardalgError, TypeError):
    """A function that JAX cannot trace, or a traced program that a graph cannot represent."""


class RuleError(ShardalgError, ValueError):
    """An operator without a row although one is required, or a row that contradicts itself."""


class StrategyError(ShardalgError, ValueError):
    """Annotations that fit no argument, result or site of the planned function."""


class BudgetError(StrategyError):
    """A memory budget within which no plan was found.

    Attributes:
      smallest_bytes: the smallest budget per device with a plan.
      plan: the plan that needs so much; None if it is not known.
    """

    def __init__(self, message: str, smallest_bytes: float = 0.0, plan: object = None) -> None:
        super().__init__(message)
        self.smallest_bytes = smallest_bytes
        self.plan = plan


class RoleError(StrategyError):
    """Roles that are unknown, or whose tree is not a prefix of the arguments' tree."""


class PipelineError(ShardalgError, ValueError):
    """A pipeline whose stages, rounds or microbatches do not fit its layers or its batch."""


class ProgramError(ShardalgError, ValueError):
    """An SPMD program with an invalid structure: shapes, definitions, axes or regions disagree."""


class ProofError(ShardalgError, ValueError):
    """A claim that the solver cannot express, or a refuted claim that had to be proved."""


class HardwareError(ShardalgError, ValueError):
    """An unknown hardware name, or a hardware file with a missing or impossible figure."""


class LoweringError(ShardalgError, ValueError):
    """A plan that cannot become a JAX executable, or arguments that do not fit the executable."""


class DeviceError(ShardalgError, RuntimeError):
    """Too few devices, or a number of devices that is set after JAX has started."""


class RunError(ShardalgError, RuntimeError):
    """A run of several processes that fails or takes too long, or a trace that cannot be read."""


class CheckpointError(ShardalgError, ValueError):
    """A saved state that is incomplete or of another model, or a target folder that exists."""


class PlanFileError(ShardalgError, ValueError):
    """A saved plan that is truncated, edited, of another version, or of another function."""


class CertificateError(ShardalgError, ValueError):
    """A certificate of a search that proves nothing: broken, edited, or with a wrong step."""


class ContractError(ShardalgError, ValueError):
    """A contract that cannot be read or does not fit the plan, or one that the plan breaks."""


class PatchError(ShardalgError, ValueError):
    """A plan that cannot be turned into a patch of the user's source, or a patch that fails."""


class TableError(ShardalgError, LookupError):
    """A table whose rows do not fit its columns, or a column that it does not have."""


class CommandError(ShardalgError, ValueError):
    """A function, a file or an option of a command that cannot be used."""
