"""The public names with their types, for checkers and editors; `__init__.py` loads them late."""

from shardalg.errors import (
    ShardalgError as ShardalgError,
    MeshError as MeshError,
    NotationError as NotationError,
    ShardingError as ShardingError,
    TraceError as TraceError,
    StrategyError as StrategyError,
    RoleError as RoleError,
    RuleError as RuleError,
    ProgramError as ProgramError,
    ProofError as ProofError,
    PlanFileError as PlanFileError,
    LoweringError as LoweringError,
    DeviceError as DeviceError,
    HardwareError as HardwareError,
    TableError as TableError,
)
from shardalg.table import (
    Table as Table,
)
from shardalg.algebra.dims import (
    dims as dims,
    SymbolError as SymbolError,
)
from shardalg.algebra.mesh import (
    Mesh as Mesh,
    AxisRef as AxisRef,
)
from shardalg.algebra.sharding import (
    Sharding as Sharding,
)
from shardalg.algebra.window import (
    Window as Window,
)
from shardalg.algebra.halo import (
    Halo as Halo,
    halo as halo,
)
from shardalg.algebra.interval import (
    Interval as Interval,
)
from shardalg.algebra.exchange import (
    Exchange as Exchange,
    exchange as exchange,
)
from shardalg.merge.compatible import (
    merge as merge,
    compatible as compatible,
    equal as equal,
    refines as refines,
)
from shardalg.merge.verdict import (
    Verdict as Verdict,
)
from shardalg.propagate.strategy import (
    Strategy as Strategy,
    Options as Options,
)
from shardalg.graph.annotate import (
    annotate as annotate,
    mesh_split as mesh_split,
)
from shardalg.plan import (
    Plan as Plan,
    plan as plan,
    load_plan as load_plan,
)
from shardalg.report.reshard import (
    Reshard as Reshard,
    reshard as reshard,
)
from shardalg.merge.lemmas import (
    lemma as lemma,
)
from shardalg.merge.prove import (
    Proof as Proof,
    prove as prove,
)
from shardalg.lower.host import (
    host_devices as host_devices,
)

__version__: str
__all__: list[str]
