"""Every error of shardalg, one family per stage of the data flow.

A message names the place, every value at fault in the user's notation, a witness, and the remedy.
All families derive from `ShardalgError`, so one `except` catches what a user can cause; a failure
inside shardalg that no input should cause is an `AssertionError`.

>>> try:
...     raise MeshError("axis 'z' is not on Mesh(x=2, y=4); its axes are 'x' and 'y'")
... except ShardalgError as error:
...     print(type(error).__name__, error)
MeshError axis 'z' is not on Mesh(x=2, y=4); its axes are 'x' and 'y'
"""


class ShardalgError(Exception):
    """Anything that a user of shardalg can cause; never raised itself."""


class MeshError(ShardalgError, ValueError):
    """A device mesh that cannot be: repeated axis names, sizes below one, wrong device ids."""


class NotationError(ShardalgError, ValueError):
    """Text that no sharding notation reads: HLO sharding text, dimension mappings, specs."""


class ShardingError(ShardalgError, ValueError):
    """A sharding that does not fit its shape or mesh, or that contradicts another one."""


class TraceError(ShardalgError, TypeError):
    """A function that JAX cannot trace, or a traced program outside what a graph can hold."""


class RuleError(ShardalgError, ValueError):
    """An operator without a row where one is demanded, or a row that contradicts itself."""


class StrategyError(ShardalgError, ValueError):
    """Annotations that fit no argument, result or site of the function that is planned."""


class RoleError(StrategyError):
    """Roles that are unknown, or that are no prefix of the arguments."""


class PipelineError(ShardalgError, ValueError):
    """A pipeline whose stages, rounds or microbatches do not fit its layers or its batch."""


class ProgramError(ShardalgError, ValueError):
    """An SPMD program of wrong structure: shapes, definitions, axes or regions disagree."""


class ProofError(ShardalgError, ValueError):
    """A claim that cannot be stated to the solver, or a refuted one where a proof is demanded."""


class HardwareError(ShardalgError, ValueError):
    """An unknown hardware name, or a hardware file with a missing or impossible figure."""


class LoweringError(ShardalgError, ValueError):
    """A plan that cannot be made a JAX executable, or arguments that do not fit the executable."""


class DeviceError(ShardalgError, RuntimeError):
    """Too few devices, or a device count asked for after JAX has started."""


class RunError(ShardalgError, RuntimeError):
    """A run of several processes that cannot start, lost one of them, or took too long."""


class CheckpointError(ShardalgError, ValueError):
    """A saved state that is not complete, or of another model, or a folder that exists."""


class PlanFileError(ShardalgError, ValueError):
    """A saved plan that is cut short, edited, of another version, or of another function."""


class TableError(ShardalgError, LookupError):
    """A table whose rows do not fit its columns, or a column that it does not have."""


class CommandError(ShardalgError, ValueError):
    """A function, a file or an option that a command is given cannot be used."""
