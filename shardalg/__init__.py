"""shardalg plans sharded JAX programs; a sharding is an offset function of the device position.

`docs/glossary.md` explains the terms. The public names load on first use, so that `import shardalg`
starts neither jax, sympy, z3, pandas nor matplotlib:

>>> import shardalg as sa
>>> issubclass(sa.MeshError, sa.ShardalgError)
True
"""

import importlib
import sys
from types import ModuleType

__version__ = "0.1.0"

# Public names by module, as a table, because an import here would load jax, pandas and matplotlib.
_PUBLIC = {
    "shardalg.errors": (
        "ShardalgError",
        "MeshError",
        "NotationError",
        "ShardingError",
        "TraceError",
        "StrategyError",
        "BudgetError",
        "RoleError",
        "PipelineError",
        "RuleError",
        "ProgramError",
        "ProofError",
        "PatchError",
        "PlanFileError",
        "LoweringError",
        "CommandError",
        "DeviceError",
        "RunError",
        "CheckpointError",
        "CertificateError",
        "ContractError",
        "HardwareError",
        "TableError",
    ),
    "shardalg.tables": ("Table",),
    "shardalg.pictures": ("draw",),
    "shardalg.algebra.dims": ("dims", "SymbolError"),
    "shardalg.algebra.mesh": ("Mesh", "AxisRef"),
    "shardalg.algebra.sharding": ("Sharding",),
    "shardalg.algebra.halos.window": ("Window", "pad_window", "slice_window"),
    "shardalg.algebra.halos.halo": ("Halo", "halo"),
    "shardalg.algebra.halos.intervals": ("Interval", "reshape_interval", "reverse_interval"),
    "shardalg.algebra.halos.exchange": ("Exchange", "exchange"),
    "shardalg.merge.compatible": ("merge", "compatible", "equal", "refines"),
    "shardalg.merge.verdict": ("Verdict",),
    "shardalg.planner.propagate.options": ("Options", "Switches"),
    "shardalg.planner.propagate.strategy": ("Strategy",),
    "shardalg.graph.annotate": ("annotate", "mesh_split"),
    "shardalg.graph.tracing.manual": ("manual",),
    "shardalg.models.pipeline": ("Pipeline", "pipeline"),
    "shardalg.models.unequal_pipeline": ("Stage", "UnequalPipeline", "unequal_pipeline"),
    "shardalg.plan.plan": ("Plan", "plan", "load_plan"),
    "shardalg.show.profiler_trace": ("read_trace",),
    "shardalg.xla.stablehlo.read_text": ("read_stablehlo",),
    "shardalg.xla.audit.audit_calls": ("audit",),
    "shardalg.xla.audit.audit_texts": ("audit_hlo",),
    "shardalg.xla.audit.audit_report": ("Audit",),
    "shardalg.xla.audit.audited_rows": ("AuditedInstruction",),
    "shardalg.plan.rules.logical_rules": ("LogicalRules", "logical_rules"),
    "shardalg.plan.rules.findings": ("Finding", "Findings"),
    "shardalg.plan.rules.rule_strategies": ("rules_of",),
    "shardalg.plan.contracts.statements": (
        "no",
        "some",
        "at_most",
        "sharded",
        "no_idle_devices",
        "unchanged",
    ),
    "shardalg.plan.contracts.contract": ("Contract", "contract"),
    "shardalg.plan.contracts.contract_file": ("load_contract",),
    "shardalg.costs.analyses.mesh_axes": ("rank_device_orders",),
    "shardalg.costs.cost": ("Cost",),
    "shardalg.costs.kernels.kernel_price": ("KernelPrice",),
    "shardalg.costs.topology": ("Topology",),
    "shardalg.sizes.formula": ("FormulaError",),
    "shardalg.plan.comparing.compare": ("compare",),
    "shardalg.plan.search.family": ("family",),
    "shardalg.plan.search.search": ("search",),
    "shardalg.plan.resharding": ("Reshard", "reshard"),
    "shardalg.merge.lemmas": ("lemma",),
    "shardalg.show.proofs": ("lemmas",),
    "shardalg.merge.proofs.prove": ("Proof", "prove"),
    "shardalg.lower.axes": ("host_devices",),
    "shardalg.lower.shard_map": ("Lowered",),
    "shardalg.models.measured.this_machine": ("measure_hardware",),
    "shardalg.costs.hardware": ("Hardware",),
    "shardalg.models.measured.measurements": ("calibrate",),
    "shardalg.models.ranking.ranked": ("Ranking", "strategies"),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}
_ROOMS = {
    "examples": "shardalg.lab",
    "models": "shardalg.models",
    "paper": "shardalg.lab",
    "recipes": "shardalg.plan.strategies.recipes",
}
__all__ = sorted({*_HOME, *_ROOMS})


def __getattr__(name: str) -> object:
    """Return a public name, imported from the module that defines it on first use.

    Raises:
      AttributeError: the package has no such name; the message suggests similar names.
    """
    # Names in `_ROOMS`, such as `sa.models`, are whole modules and not attributes of a module.
    if name in _ROOMS:
        return importlib.import_module(_ROOMS[name])
    if name not in _HOME:
        from difflib import get_close_matches

        near = get_close_matches(name, __all__, 3)
        hint = f". Did you mean {' or '.join(near)}?" if near else ""
        raise AttributeError(f"module 'shardalg' has no attribute {name!r}{hint}")
    from shardalg.pause import collection_paused

    # Garbage collections walk JAX's heap. They would take 0.1 of 0.3 s that the imports take.
    with collection_paused():
        value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return all names of the package, also public names that are not loaded yet."""
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The package object, in which a module never replaces the public function of the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
