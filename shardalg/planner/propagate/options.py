"""How a plan is made: the policy, the chip that weighs, and the switches that turn parts off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from shardalg.costs.hardware import DefaultChip
from shardalg.errors import StrategyError
from shardalg.graph.tracing.parts import installed_partitioner
from shardalg.renamed import warn_renamed


class Policy(NamedTuple):
    """Whose layouts a policy has.

    Attributes:
      partitioner: whose borders and merges: "gspmd" or "shardy".
      way: of `planner.propagate.complete.ORDERS`, in which order layouts spread.
      followed: whose layouts those are, in words.
      is_weighed: whether policy "cost" is never slower than it.
    """

    partitioner: str
    way: str
    followed: str
    is_weighed: bool = False


POLICIES = {
    "paper": Policy("gspmd", "paper", "the paper's", is_weighed=True),
    "gspmd": Policy("gspmd", "gspmd", "XLA's (GSPMD)", is_weighed=True),
    "shardy": Policy("shardy", "shardy", "XLA's (Shardy)", is_weighed=True),
    "cost": Policy("gspmd", "paper", "chosen by cost"),
}
"""A row per policy; "jit" is that of the partitioner that the installed jax uses."""
JIT = "jit"
_NAMES = {"gspmd": "GSPMD", "shardy": "Shardy"}
_Class = TypeVar("_Class")


def _check_switches(owner: Any) -> None:
    """Raise unless every field declared as a bool is one."""
    for switch in fields(owner):
        value = getattr(owner, switch.name)
        if switch.type == "bool" and not isinstance(value, bool):
            raise StrategyError(f"{switch.name} is {value!r}. Give True or False.")


def _naming_keywords(cls: type[_Class]) -> type[_Class]:
    """Name a keyword that there is not; switches are keywords of options too, for one version."""
    init: Callable[..., None] = cls.__init__

    @wraps(init)
    def taking(self: _Class, *args: Any, **given: Any) -> None:
        known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        switches = {} if cls is Switches else {n: given.pop(n) for n in SWITCHES if n in given}
        unknown = [name for name in given if name not in known]
        if unknown:
            near = [n for name in unknown for n in get_close_matches(name, [*known, *SWITCHES], 1)]
            hint = f" Did you mean {', '.join(near)}?" if near else ""
            said = ", ".join(f"{name}={given[name]!r}" for name in unknown)
            raise StrategyError(
                f"{cls.__name__}() has no setting {said}: its settings are "
                f"{', '.join(known)}.{hint}"
            )
        if switches:
            words = ", ".join(f"{name}={value!r}" for name, value in switches.items())
            warn_renamed(f"Options({words})", f"Options(switches=Switches({words}))")
            given["switches"] = replace(given.get("switches", Switches()), **switches)
        init(self, *args, **given)

    type.__setattr__(cls, "__init__", taking)
    return cls


DEFAULT_CHIP = DefaultChip("tpu_v3")


@_naming_keywords
@dataclass(frozen=True)
class Switches:
    """Parts of planning, to turn off or on alone and see what each is worth (`Plan.switches`).

    Attributes:
      share_gathers: what was brought into a layout serves all users of one phase that want it.
      defer_sums: partial sums wait while additions, copies and layouts pass them on, so that sums
        of several are reduced once; else each is reduced where it is made.
      defer_in_loops: partial sums that a loop adds to what it carries, or stacks, are reduced once
        behind it (gradients accumulated over microbatches); else in every iteration, as XLA does.
        What is carried is then held as partial sums are, by all devices where it would be divided
        among them, and what would be stacked larger for it is not. These sums are deferred behind
        products, quotients and conversions too, as by `finite_sums`: `verify` takes the numbers
        of the loop as finite.
      finite_sums: they wait behind products, quotients and conversions to wider floats too (parts
        of a bfloat16 sum are then added up in float32). That is right where all numbers are finite
        and no sum or product of parts overflows, which `verify` then takes on trust.
      wide_sums: partial sums of bfloat16 and float16 (prefixes and rows added to a table, too) are
        sent in float32, in which a device adds them up, and rounded after; else in their own type,
        as XLA sends them. Not of products by groups (`ragged_dot`). In numbers only.
      join_formatting: masks, slices and permutes of one value that repeat or undo each other are
        one.
      pad_blocks: blocks whose sizes do not divide are padded on the way between two layouts, and
        samples that do not divide while they are merged with another dimension; else such
        dimensions are gathered whole. Named sizes go without: their bytes are formulas.
      collective_matmul: a product and the all-gather of an operand, or the reduce-scatter of its
        result, go as a ring of permutes beside products of one block each, where that is faster by
        the rates of `hardware`: as many bytes, and nobody holds what is gathered or still to be
        summed. Sums are then added up in the order of the ring. Named sizes go without.
      stage_transforms: a Fourier transform of several dimensions runs in stages if one of them is
        sharded and that sends less: a device transforms the dimensions that it has whole, all
        devices exchange blocks, and the others follow. Named sizes go without.
      turn_products: where the operands of a product want one axis on different dimensions of its
        result, the larger operand wins, as in XLA; by the paper's policy the other one wins if a
        value beside the result has its layout, a step is then faster, and no more is sent. Named
        sizes go without.
      keep_below_peak: if `keep_gathers` is None and arguments have roles, a gathered copy stays for
        the backward pass where the peak of memory does not rise. Named sizes ignore the switch.
      priorities: of operators; False lets all of them act at once (to see what the order does).
        Those of annotations (`Sharding.priorities`) hold either way.

    Raises:
      StrategyError: a switch that is neither True nor False.

    Without priorities a product follows its first operand before a ReLU behind it asks for what
    its own result has, and the layouts on the two sides of the ReLU disagree (GSPMD,
    arXiv:2105.04663, figure 4):

    >>> import jax, shardalg as sa
    >>> P, f32 = jax.sharding.PartitionSpec, jax.numpy.float32
    >>> x, w = jax.ShapeDtypeStruct((64, 16), f32), jax.ShapeDtypeStruct((16, 512), f32)
    >>> ends = {"in_shardings": (P("X"), None), "out_shardings": P(None, "X")}
    >>> for priorities in (True, False):
    ...     plan = sa.plan(
    ...         lambda x, w: jax.numpy.maximum(x @ w, 0), x, w, mesh=sa.Mesh({"X": 4}),
    ...         options=sa.Options(switches=sa.Switches(priorities=priorities)), **ends,
    ...     )
    ...     print(plan.shardings()["sharding"][2], plan.collectives()["wire_bytes"].sum())
    [None, X] 3072
    [X, None] 24576
    """

    share_gathers: bool = True
    defer_sums: bool = True
    defer_in_loops: bool = False
    finite_sums: bool = False
    wide_sums: bool = False
    join_formatting: bool = True
    pad_blocks: bool = True
    collective_matmul: bool = False
    stage_transforms: bool = True
    turn_products: bool = True
    keep_below_peak: bool = False
    priorities: bool = True

    def __post_init__(self) -> None:
        _check_switches(self)


SWITCHES = tuple(field.name for field in fields(Switches))


@_naming_keywords
@dataclass(frozen=True)
class Options:
    """How a plan is made.

    Every policy weighs by the rates of one chip, `hardware`: where it chooses between sending and
    computing twice, it is by that chip's figures, whatever chip `Plan.cost` prices the plan on
    later. A plan that is to run on another chip is planned with that chip here.

    Attributes:
      policy: whose completion: "paper", the paper's; "gspmd" or "shardy", that of XLA's
        partitioner of this name; "jit", of the one that the installed jax uses, so that layouts are
        those of the function's own `jax.jit` (collectives are ours). "gspmd" sweeps loops and
        branches in XLA's own order, their tuples as XLA has them (`planner/propagate/gspmd/`); the
        paper's
        policy sweeps the program as one, and "shardy" does not yet follow Shardy's own order inside
        loops: values there may lie otherwise. "cost" starts from the paper's and lets any axis
        serve any loop, as takes the fewest seconds (`planner.partition.by_cost`).
      strict: a primitive without a rule, or a broken condition, is an error rather than a warning.
      keep_gathers: gathered operands of the forward pass stay for the backward pass: all, none, or
        as many as a device may hold in that number of bytes, what saves most per byte first. None:
        all, as XLA keeps them, where no argument's role is told; where roles are, none (with the
        switch `keep_below_peak` those that do not raise the peak of memory).
      hoist_gathers: what a loop gathers in every trip, and no trip changes, is gathered before it.
      stream_layers: a loop over a stack whose layers are divided among devices: True fetches one
        layer per iteration, False gathers the stack before the loop, as XLA does. None: it fetches
        one layer per iteration if the gathered stack does not fit on the chip, or if that takes
        less time and sends no more; by "gspmd", "shardy" and "jit" it gathers. Named sizes gather.
      hardware: the chip, or a topology such as "v3:8x8": whose seconds "cost" counts, and by whose
        rates every policy weighs bytes sent against work that is repeated. On a topology reshards
        of every policy weigh the links of its axes.
      trips: the number of iterations of `while` loops whose length is unknown, by the source line
        that `plan.warnings()` names (`{"model.py:41": 100}`) or by symbol (`{"trips_1": 100}`).
        Bytes and seconds of other loops of unknown length are those of one iteration.
      switches: parts of planning that can be turned off alone.

    Raises:
      StrategyError: an unknown policy, a switch that is neither True nor False, `keep_gathers`
        is no number of bytes, or `trips` has something other than whole numbers from 0 on.

    >>> Options(policy="shardy", switches=Switches(defer_sums=False)).switches.defer_sums
    False
    """

    policy: str = "paper"
    strict: bool = False
    _: KW_ONLY
    keep_gathers: bool | int | None = None
    hoist_gathers: bool = False
    stream_layers: bool | None = None
    hardware: str = DEFAULT_CHIP
    trips: Mapping[str, int] | tuple[tuple[str, int], ...] = ()
    switches: Switches = Switches()

    @staticmethod
    def of(settings: Mapping[str, Any]) -> Options:
        """Options from settings by name, switches beside the others, as `settings` gives them.

        >>> Options.of({"defer_sums": False, "strict": True}).settings["defer_sums"]
        False
        """
        flipped = {name: value for name, value in settings.items() if name in SWITCHES}
        others = {name: value for name, value in settings.items() if name not in SWITCHES}
        return Options(**others, switches=Switches(**flipped))

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by name, switches beside the others."""
        whole = asdict(self)
        return {**whole.pop("switches"), **whole}

    @property
    def completing(self) -> Options:
        """The options of completion."""
        return self.completions[0]

    @property
    def completions(self) -> tuple[Options, ...]:
        """The options of all completions that the policy weighs: its own, or several by cost."""
        if self.policy != "cost":
            return (self,)
        return tuple(replace(self, policy=name) for name, row in POLICIES.items() if row.is_weighed)

    @property
    def partitioner(self) -> str:
        """Whose order and merges completion follows: "gspmd" or "shardy".

        >>> Options().partitioner, Options(policy="shardy").partitioner
        ('gspmd', 'shardy')
        """
        return self._row.partitioner

    @property
    def way(self) -> str:
        """Whose order of visits completion has: a partitioner's, or "paper".

        >>> Options().way, Options(policy="gspmd").way
        ('paper', 'gspmd')
        """
        return self._row.way

    @property
    def followed(self) -> str:
        """Whose layouts a plan has, in words.

        >>> Options().followed, Options(policy="cost").followed
        ("the paper's", 'chosen by cost')
        """
        if self.policy == JIT:
            return f"your jax.jit's ({_NAMES[self.partitioner]}; collectives are shardalg's)"
        return self._row.followed

    @property
    def _row(self) -> Policy:
        return POLICIES[installed_partitioner() if self.policy == JIT else self.policy]

    def where(self, *, named: bool) -> Options:
        """The options of a plan whose sizes have names, or have none."""
        bare = {"pad_blocks": False, "collective_matmul": False, "stage_transforms": False}
        bare |= {"turn_products": False, "keep_below_peak": False}
        if not named:
            return self
        return replace(self, stream_layers=False, switches=replace(self.switches, **bare))

    def __post_init__(self) -> None:
        if not isinstance(self.hardware, str):  # of a Topology its text
            object.__setattr__(self, "hardware", str(self.hardware))
        if self.policy not in (JIT, *POLICIES):
            raise StrategyError(
                f"policy {self.policy!r} is not one of {[*POLICIES, JIT]}. "
                "Use Options(policy='jit') for the layouts of your jax.jit, or leave it out."
            )
        _check_switches(self)
        if not isinstance(self.stream_layers, bool | None):
            raise StrategyError(
                f"stream_layers is {self.stream_layers!r}. Give True (one layer per iteration), "
                "False (the stack is gathered before the loop), or leave it out."
            )
        object.__setattr__(self, "trips", _trips(self.trips))
        if not isinstance(self.switches, Switches):
            raise StrategyError(
                f"switches are a Switches, as in Switches(defer_sums=False), got {self.switches!r}."
            )
        if not isinstance(self.keep_gathers, int | None) or (self.keep_gathers or 0) < 0:
            raise StrategyError(
                f"keep_gathers is {self.keep_gathers!r}. Give True, False, or the bytes that a "
                "device may hold for copies that outlive the forward pass, or leave it out."
            )

    def keeping(self, roles: Sequence[str]) -> bool | int:
        """`keep_gathers` of a program, decided where it is left open.

        Weights are gathered on demand and freed (GSPMD, arXiv:2105.04663, section 5.1), and what is
        gathered of activations with them: that is for a step whose roles are told. A program
        without roles is no step of training that anybody knows of: it keeps what it gathered.

        Args:
          roles: of all values of the graph.

        >>> Options().keeping(("unknown", "unknown")), Options().keeping(("parameters", "data"))
        (True, False)
        """
        if self.keep_gathers is None:
            return all(role == "unknown" for role in roles)
        return self.keep_gathers

    if not TYPE_CHECKING:  # a checker knows the names that stay

        def __getattr__(self, name: str) -> Any:
            """A switch, as an attribute of the options themselves; for one version."""
            if name not in SWITCHES:
                raise AttributeError(f"'Options' object has no attribute {name!r}")
            warn_renamed(f"options.{name}", f"options.switches.{name}")
            return getattr(self.switches, name)


@dataclass(frozen=True)
class CompletionOptions:
    """The settings that completion reads; a key of the completions that several plans share.

    Attributes:
      partitioner: the partitioner whose borders and merges completion follows: "gspmd" or "shardy".
      order: the order of visits, a key of `planner.propagate.complete.ORDERS`.
      priorities: as in `Switches`.
      hardware, pad_blocks, finite_sums: as in `Options` and `Switches`; the paper's completion
        chooses by them the shardings of values that no annotation reaches.

    >>> CompletionOptions.of(Options(policy="cost")) == CompletionOptions.of(Options())
    True
    """

    partitioner: str = "gspmd"
    order: str = "paper"
    priorities: bool = True
    hardware: str = DEFAULT_CHIP
    pad_blocks: bool = True
    finite_sums: bool = False

    @staticmethod
    def of(options: Options) -> CompletionOptions:
        """Return the settings of a plan that completion reads."""
        switches = options.switches
        return CompletionOptions(
            options.partitioner,
            options.way,
            switches.priorities,
            options.hardware,
            switches.pad_blocks,
            switches.finite_sums,
        )


def _trips(given: Any) -> tuple[tuple[str, int], ...]:
    """Return iterations per loop as sorted pairs, which are hashable."""
    try:
        pairs = dict(given)
    except (TypeError, ValueError):
        pairs = {None: given}
    for name, number in pairs.items():
        if not isinstance(name, str) or type(number) is not int or number < 0:
            raise StrategyError(
                f"trips is {given!r:.200}. Give a dict from the source line of a while loop to its "
                'number of iterations, as in Options(trips={"model.py:41": 100}).'
            )
    return tuple(sorted(pairs.items()))


def options_from(given: object) -> Options:
    """What is given as options, if they are.

    Raises:
      StrategyError: they are something else.
    """
    if not isinstance(given, Options):
        raise StrategyError(
            f"options are an Options, as in Options(strict=True), got {given!r:.80}."
        )
    return given
