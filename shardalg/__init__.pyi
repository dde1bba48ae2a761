"""The public names with their types, for checkers and editors; `__init__.py` loads them late."""

from shardalg import lab as lab
from shardalg import models as models
from shardalg.algebra.dims import SymbolError as SymbolError
from shardalg.algebra.dims import dims as dims
from shardalg.algebra.halos.exchange import Exchange as Exchange
from shardalg.algebra.halos.exchange import exchange as exchange
from shardalg.algebra.halos.halo import Halo as Halo
from shardalg.algebra.halos.halo import halo as halo
from shardalg.algebra.halos.intervals import Interval as Interval
from shardalg.algebra.halos.intervals import reshape_interval as reshape_interval
from shardalg.algebra.halos.intervals import reverse_interval as reverse_interval
from shardalg.algebra.halos.window import Window as Window
from shardalg.algebra.halos.window import pad_window as pad_window
from shardalg.algebra.halos.window import slice_window as slice_window
from shardalg.algebra.mesh import AxisRef as AxisRef
from shardalg.algebra.mesh import Mesh as Mesh
from shardalg.algebra.sharding import Sharding as Sharding
from shardalg.costs.analyses.mesh_axes import rank_device_orders as rank_device_orders
from shardalg.costs.cost import Cost as Cost
from shardalg.costs.hardware import Hardware as Hardware
from shardalg.costs.kernels.kernel_price import KernelPrice as KernelPrice
from shardalg.costs.topology import Topology as Topology
from shardalg.errors import CheckpointError as CheckpointError
from shardalg.errors import CommandError as CommandError
from shardalg.errors import DeviceError as DeviceError
from shardalg.errors import HardwareError as HardwareError
from shardalg.errors import LoweringError as LoweringError
from shardalg.errors import MeshError as MeshError
from shardalg.errors import NotationError as NotationError
from shardalg.errors import PipelineError as PipelineError
from shardalg.errors import PlanFileError as PlanFileError
from shardalg.errors import ProgramError as ProgramError
from shardalg.errors import ProofError as ProofError
from shardalg.errors import RoleError as RoleError
from shardalg.errors import RuleError as RuleError
from shardalg.errors import RunError as RunError
from shardalg.errors import ShardalgError as ShardalgError
from shardalg.errors import ShardingError as ShardingError
from shardalg.errors import StrategyError as StrategyError
from shardalg.errors import TableError as TableError
from shardalg.errors import TraceError as TraceError
from shardalg.graph.annotate import annotate as annotate
from shardalg.graph.annotate import mesh_split as mesh_split
from shardalg.graph.tracing.manual import manual as manual
from shardalg.lower.axes import host_devices as host_devices
from shardalg.lower.shard_map import Lowered as Lowered
from shardalg.merge.compatible import compatible as compatible
from shardalg.merge.compatible import equal as equal
from shardalg.merge.compatible import merge as merge
from shardalg.merge.compatible import refines as refines
from shardalg.merge.lemmas import lemma as lemma
from shardalg.merge.proofs.prove import Proof as Proof
from shardalg.merge.proofs.prove import prove as prove
from shardalg.merge.verdict import Verdict as Verdict
from shardalg.models.measured.measurements import calibrate as calibrate
from shardalg.models.measured.this_machine import measure_hardware as measure_hardware
from shardalg.models.pipeline import Pipeline as Pipeline
from shardalg.models.pipeline import pipeline as pipeline
from shardalg.models.ranking.ranked import Ranking as Ranking
from shardalg.models.ranking.ranked import strategies as strategies
from shardalg.models.unequal_pipeline import Stage as Stage
from shardalg.models.unequal_pipeline import UnequalPipeline as UnequalPipeline
from shardalg.models.unequal_pipeline import unequal_pipeline as unequal_pipeline
from shardalg.pictures import draw as draw
from shardalg.plan.comparing.compare import compare as compare
from shardalg.plan.plan import Plan as Plan
from shardalg.plan.plan import load_plan as load_plan
from shardalg.plan.plan import plan as plan
from shardalg.plan.resharding import Reshard as Reshard
from shardalg.plan.resharding import reshard as reshard
from shardalg.plan.strategies import recipes as recipes
from shardalg.planner.calls.logical_rules import LogicalRules as LogicalRules
from shardalg.planner.calls.logical_rules import logical_rules as logical_rules
from shardalg.planner.propagate.options import Options as Options
from shardalg.planner.propagate.options import Switches as Switches
from shardalg.planner.propagate.strategy import Strategy as Strategy
from shardalg.show.proofs import lemmas as lemmas
from shardalg.sizes.formula import FormulaError as FormulaError
from shardalg.tables import Table as Table
from shardalg.xla.stablehlo.read_text import read_stablehlo as read_stablehlo

__version__: str
__all__: list[str]

examples = lab
paper = lab
