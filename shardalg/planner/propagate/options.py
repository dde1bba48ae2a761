"""The options of planning: the policy, the chip whose rates are used, and the switches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from shardalg.costs.hardware import DefaultChip
from shardalg.costs.kernels.kernel_price import KernelPrice
from shardalg.errors import StrategyError
from shardalg.graph.ops.families.building import BALANCED, WORST
from shardalg.graph.tracing.parts import installed_partitioner
from shardalg.renamed import warn_renamed


class Policy(NamedTuple):
    """The order and the merges of completion under one policy.

    Attributes:
      partitioner: the partitioner whose borders and merges it follows: "gspmd" or "shardy".
      way: the order in which shardings spread, a key of `planner.propagate.complete.ORDERS`.
      followed: the rules that complete the shardings, as text after "shardings".
      is_weighed: whether policy "cost" compares its plan, too, and is never slower.
    """

    partitioner: str
    way: str
    followed: str
    is_weighed: bool = False


POLICIES = {
    "paper": Policy("gspmd", "paper", "completed by the paper's rules", is_weighed=True),
    "gspmd": Policy("gspmd", "gspmd", "completed by the rules of XLA's GSPMD", is_weighed=True),
    "shardy": Policy("shardy", "shardy", "completed by the rules of XLA's Shardy", is_weighed=True),
    "cost": Policy("gspmd", "paper", "chosen by cost"),
}
"""A row per policy; "jit" has the row of the partitioner that the installed jax uses."""
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
    """Return the dataclass with a constructor that names unknown keywords in its error.

    The error is a StrategyError that lists the known settings. For one version, `Options` still
    takes switches as keywords, with a warning.
    """
    init: Callable[..., None] = cls.__init__

    @wraps(init)
    def taking(self: _Class, *args: Any, **given: Any) -> None:
        """Check the names of the keywords, then call the constructor that this one replaces."""
        known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        switches = {} if cls is Switches else {n: given.pop(n) for n in SWITCHES if n in given}
        unknown = [name for name in given if name not in known]
        # The error of a dataclass would not say which settings exist.
        if unknown:
            near = [n for name in unknown for n in get_close_matches(name, [*known, *SWITCHES], 1)]
            hint = f" Did you mean {', '.join(near)}?" if near else ""
            wrong = ", ".join(f"{name}={given[name]!r}" for name in unknown)
            raise StrategyError(
                f"{cls.__name__}() has no setting {wrong}. Its settings are "
                f"{', '.join(known)}.{hint}"
            )
        # Switches used to be keywords of `Options` itself, so callers get a warning at first.
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
    """Parts of planning that can be turned on or off alone, to see their effect (`Plan.switches`).

    Attributes:
      share_gathers: a value gathered into one sharding serves all users of one phase.
      defer_sums: partial sums are deferred while additions, copies and reshards pass them on, so
        that several sums are reduced once. Otherwise each is reduced where it is computed.
      defer_in_loops: partial sums that a loop adds to its carry, or stacks, are reduced once after
        the loop (gradients accumulated over microbatches). Otherwise they are reduced in every
        iteration, as XLA does. The carry then has partial sums on all devices, where it could be
        sharded among them. A stack that would be larger because of it is not deferred. These sums
        are deferred behind products, quotients and conversions, too, as by `finite_sums`: `verify`
        assumes that the numbers of the loop are finite.
      finite_sums: partial sums are also deferred behind products, quotients and conversions to
        wider floats (parts of a bfloat16 sum are then added up in float32). This is right if all
        numbers are finite and no sum or product of parts overflows, which `verify` then takes on
        trust.
      wide_sums: partial sums of bfloat16 and float16 (prefixes and rows added to a table, too) are
        sent in float32, in which a device adds them up, and rounded afterwards. Otherwise they are
        sent in their own type, as by XLA. Products by groups (`ragged_dot`) are excluded. Only for
        plans without named sizes.
      join_formatting: masks, slices and permutes of one value that repeat or undo each other are
        merged.
      join_gathers: gathers of several dimensions of one value, and reduce-scatters, are one
        collective over the axes of all. It sends as many bytes, and on a torus over more links at
        the same time. By "gspmd", "shardy" and "jit" each dimension has its own, as in XLA; also
        with `collective_matmul`, whose rings gather one dimension. Only for sizes that divide.
      pad_blocks: blocks whose sizes do not divide are padded between two shardings, and samples
        that do not divide are padded while they are merged with another dimension. Otherwise such
        dimensions are gathered. Off for named sizes, because their bytes are formulas.
      collective_matmul: a product and the all-gather of an operand, or the reduce-scatter of its
        result, become a ring of permutes beside products of one block each, if that is faster at
        the rates of `hardware`. It sends as many bytes, and no device holds the gathered operand or
        the whole partial sum. Sums are added up in the order of the ring. Off for named sizes.
      stage_transforms: a Fourier transform of several dimensions runs in stages if one of them is
        sharded and that sends less: a device transforms the dimensions that it has whole, all
        devices exchange blocks, and the others follow. Off for named sizes.
      turn_products: if the operands of a product want one axis on different dimensions of its
        result, the larger operand wins, as in XLA. By the paper's policy, the other one wins if a
        value beside the result has its sharding, a step is then faster, and no more is sent. Off
        for named sizes.
      keep_below_peak: if `keep_gathers` is None and arguments have roles, a gathered copy is kept
        for the backward pass if the peak of memory does not rise. Off for named sizes.
      priorities: of operators; False lets all of them act at once, to show the effect of the order.
        Priorities of annotations (`Sharding.priorities`) apply either way.

    Raises:
      StrategyError: a switch that is neither True nor False.

    Without priorities, a product takes its first operand's sharding before the ReLU after it offers
    that of its own result. The shardings on the two sides of the ReLU then disagree (GSPMD,
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
    join_gathers: bool = True
    pad_blocks: bool = True
    collective_matmul: bool = False
    stage_transforms: bool = True
    turn_products: bool = True
    keep_below_peak: bool = False
    priorities: bool = True

    def __post_init__(self) -> None:
        """Raise StrategyError unless every switch is True or False."""
        _check_switches(self)


SWITCHES = tuple(field.name for field in fields(Switches))


@_naming_keywords
@dataclass(frozen=True)
class Options:
    """The options of a plan.

    Every policy compares by the rates of one chip, `hardware`. For example, it chooses by them
    between sending a value and computing it twice, whatever chip `Plan.cost` prices the plan on
    later. Set `hardware` to the chip that the plan is to run on.

    Attributes:
      policy: the origin of the shardings. "paper": the paper's completion. "gspmd" or "shardy": the
        completion of XLA's partitioner of this name. "jit": that of the partitioner that the
        installed jax uses, so that the shardings are those of the function's own `jax.jit` (the
        collectives are shardalg's). "gspmd" sweeps loops and branches in XLA's own order, with
        tuples as in XLA (`planner/propagate/gspmd/`). The paper's policy sweeps the program as one.
        "shardy" does not yet follow Shardy's own order inside loops, so that values there may be
        sharded differently. "cost" starts from the paper's completion and lets any axis partition
        any loop, for the fewest seconds (`planner.partition.by_cost`).
      strict: a primitive without a rule, or a violated condition, is an error rather than a
        warning.
      keep_gathers: whether gathered operands of the forward pass are kept for the backward pass:
        all, none, or as many as a device may hold in that number of bytes, the largest saving per
        byte first. None: all, as XLA keeps them, if no argument has a role; otherwise none (with
        the switch `keep_below_peak`, those that do not raise the peak of memory).
      hoist_gathers: whether gathers that are equal in every iteration of a loop move before it.
      stream_layers: a loop over a stack whose layers are divided among devices: True fetches one
        layer per iteration, False gathers the stack before the loop, as XLA does. None: it fetches
        one layer per iteration if the gathered stack does not fit on the chip, or if that takes
        less time and sends no more; by "gspmd", "shardy" and "jit" it gathers. Named sizes gather.
      hardware: the chip, or a topology such as "v3:8x8", whose seconds "cost" counts, and by whose
        rates every policy compares bytes sent with repeated work. On a topology, reshards of every
        policy compare the links of its axes.
      trips: the number of iterations of `while` loops whose length is unknown, by the source line
        that `plan.warnings()` names (`{"model.py:41": 100}`) or by symbol (`{"trips_1": 100}`).
        Bytes and seconds of other loops of unknown length are those of one iteration.
      prices: prices of kernels that are no JAX code, by target: the target of a `jax.ffi.ffi_call`,
        the name of the function of a `jax.pure_callback`, the name of a Pallas call
        (`{"my_target": KernelPrice(flops=1e9, bytes=1e6)}`). Without a price their flops count as
        0, which the cost's text says; a Pallas call has the price of its code.
      fuse_attention: whether softmax attention that the function writes out is priced as one fused
        kernel: no traffic and memory for scores, which the backward pass computes again. The cost's
        text names its lines. The planned program stays as it is.
      expert_load: the rows of the busiest device divided by the average, where experts
        (`jax.lax.ragged_dot`) are divided among devices or rows are sent by
        `jax.lax.ragged_all_to_all`. 1.0 is a perfect balance. "worst" prices the largest number of
        rows that a device can have. The cost's text names the lines on which it has an effect.
      switches: parts of planning that can be turned on or off alone.

    Raises:
      StrategyError: an unknown policy, an `expert_load` below 1, a switch that is neither True nor
        False, a `keep_gathers` that is not a number of bytes, or `trips` that are not whole numbers
        from 0 on.

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
    fuse_attention: bool = False
    prices: Mapping[str, KernelPrice] | tuple[tuple[str, KernelPrice], ...] = ()
    expert_load: float | str = BALANCED
    switches: Switches = Switches()

    @staticmethod
    def of(settings: Mapping[str, Any]) -> Options:
        """Return the options with these values, by name; names of switches may be among them.

        >>> Options.of({"defer_sums": False, "strict": True}).settings["defer_sums"]
        False
        """
        flipped = {name: value for name, value in settings.items() if name in SWITCHES}
        others = {name: value for name, value in settings.items() if name not in SWITCHES}
        return Options(**others, switches=Switches(**flipped))

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by name, with switches among the others."""
        whole = asdict(self)
        return {**whole.pop("switches"), **whole, "prices": self.prices}

    @property
    def completing(self) -> Options:
        """The options of the first completion; policy "cost" compares several completions."""
        return self.completions[0]

    @property
    def completions(self) -> tuple[Options, ...]:
        """The options of all completions that the policy compares: its own, or several by cost."""
        if self.policy != "cost":
            return (self,)
        return tuple(replace(self, policy=name) for name, row in POLICIES.items() if row.is_weighed)

    @property
    def partitioner(self) -> str:
        """The partitioner whose merges completion follows: "gspmd" or "shardy".

        >>> Options().partitioner, Options(policy="shardy").partitioner
        ('gspmd', 'shardy')
        """
        return self._row.partitioner

    @property
    def way(self) -> str:
        """The order of visits of completion: a partitioner's, or "paper".

        >>> Options().way, Options(policy="gspmd").way
        ('paper', 'gspmd')
        """
        return self._row.way

    @property
    def followed(self) -> str:
        """The rules that complete a plan's shardings, as text that follows the word "shardings".

        >>> Options().followed, Options(policy="cost").followed
        ("completed by the paper's rules", 'chosen by cost')
        """
        if self.policy == JIT:
            name = _NAMES[self.partitioner]
            return f"completed as by your jax.jit ({name}; collectives are shardalg's)"
        return self._row.followed

    @property
    def _row(self) -> Policy:
        return POLICIES[installed_partitioner() if self.policy == JIT else self.policy]

    def where(self, *, named: bool) -> Options:
        """Return the options without the parts of planning that named sizes exclude.

        Args:
          named: whether some size of the plan has a name; if not, all options stay.
        """
        bare = {"pad_blocks": False, "collective_matmul": False, "stage_transforms": False}
        bare |= {"turn_products": False, "keep_below_peak": False}
        if not named:
            return self
        return replace(self, stream_layers=False, switches=replace(self.switches, **bare))

    def __post_init__(self) -> None:
        """Check every setting, and make `hardware`, `trips` and `prices` hashable."""
        if not isinstance(self.hardware, str):  # a `Topology` is saved as its text
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
        if not isinstance(self.fuse_attention, bool):
            raise StrategyError(
                f"fuse_attention is {self.fuse_attention!r}. Give True (softmax attention is "
                "priced as one kernel) or False."
            )
        load = self.expert_load
        # True is an `int` in Python, but no number of rows. The busiest device has at least the
        # average.
        is_number = isinstance(load, int | float) and not isinstance(load, bool)
        if load != WORST and not (is_number and 1 <= float(load) < math.inf):
            raise StrategyError(
                f"expert_load is {load!r}. Give the rows of the busiest device divided by the "
                f"average, a number from 1.0 (balanced) on, or {WORST!r}."
            )
        # Options must be hashable, so mappings become sorted pairs.
        object.__setattr__(self, "trips", _trips(self.trips))
        object.__setattr__(self, "prices", _prices(self.prices))
        if not isinstance(self.switches, Switches):
            raise StrategyError(
                f"switches are a Switches, as in Switches(defer_sums=False), got {self.switches!r}."
            )
        # True and False are numbers, too, so that one test is enough.
        if not isinstance(self.keep_gathers, int | None) or (self.keep_gathers or 0) < 0:
            raise StrategyError(
                f"keep_gathers is {self.keep_gathers!r}. Give True, False, or the bytes that a "
                "device may hold for copies that outlive the forward pass, or leave it out."
            )

    def keeping(self, roles: Sequence[str]) -> bool | int:
        """Return `keep_gathers` of a program, decided if it is None.

        Weights are gathered on demand and freed (GSPMD, arXiv:2105.04663, section 5.1), and
        gathered activations with them. This is for a training step, whose arguments have roles. A
        program without roles keeps its gathered copies.

        Args:
          roles: the role of each value of the graph.

        >>> Options().keeping(("unknown", "unknown")), Options().keeping(("parameters", "data"))
        (True, False)
        """
        # Without a setting of the user, the roles decide.
        if self.keep_gathers is None:
            return all(role == "unknown" for role in roles)
        return self.keep_gathers

    if not TYPE_CHECKING:  # mypy refuses the old names, although they still run

        def __getattr__(self, name: str) -> Any:
            """Return a field of `options.switches` as an attribute of the options, with a warning.

            Older versions had these fields here; the next version drops the old names.
            """
            if name not in SWITCHES:
                raise AttributeError(f"'Options' object has no attribute {name!r}")
            warn_renamed(f"options.{name}", f"options.switches.{name}")
            return getattr(self.switches, name)


@dataclass(frozen=True)
class CompletionOptions:
    """The settings that completion reads; a key of the completions that several plans share.

    Attributes:
      partitioner: "gspmd" or "shardy": the partitioner whose rules completion follows for
        arguments, results and loop carries, and for two different shardings of one value.
      order: the order of visits, a key of `planner.propagate.complete.ORDERS`.
      priorities: as in `Switches`.
      hardware, pad_blocks, finite_sums: as in `Options` and `Switches`. With order "paper", they
        decide the shardings of values to which no annotation propagates.

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
            partitioner=options.partitioner,
            order=options.way,
            priorities=switches.priorities,
            hardware=options.hardware,
            pad_blocks=switches.pad_blocks,
            finite_sums=switches.finite_sums,
        )


def _trips(given: Any) -> tuple[tuple[str, int], ...]:
    """Return the iterations that a user gave per loop, as sorted pairs, which are hashable.

    Args:
      given: a mapping or pairs (source line, iterations). StrategyError for anything else.
    """
    try:
        pairs = dict(given)
    except (TypeError, ValueError):
        # The name None fails the check below, which raises the message.
        pairs = {None: given}
    for name, number in pairs.items():
        if not isinstance(name, str) or type(number) is not int or number < 0:
            raise StrategyError(
                f"trips is {given!r:.200}. Give a dict from the source line of a while loop to its "
                'number of iterations, as in Options(trips={"model.py:41": 100}).'
            )
    return tuple(sorted(pairs.items()))


def _prices(given: Any) -> tuple[tuple[str, KernelPrice], ...]:
    """Return the prices that a user gave per kernel, as sorted pairs, which are hashable.

    Args:
      given: a mapping or pairs (target of the kernel, price). StrategyError for anything else.
    """
    try:
        pairs = dict(given)
    except (TypeError, ValueError):
        # The name None fails the check below, which raises the message.
        pairs = {None: given}
    for name, price in pairs.items():
        if not isinstance(name, str) or not isinstance(price, KernelPrice):
            raise StrategyError(
                f"prices is {given!r:.200}. Give a dict from the target of a kernel to its price, "
                'as in Options(prices={"my_target": KernelPrice(flops=1e9, bytes=1e6)}).'
            )
    return tuple(sorted(pairs.items(), key=lambda pair: pair[0]))


def options_from(given: object) -> Options:
    """Return the argument if it is an `Options`.

    Raises:
      StrategyError: it is something else.
    """
    if not isinstance(given, Options):
        raise StrategyError(
            f"options is {given!r:.80}, not an Options. Pass one, as in Options(strict=True)."
        )
    return given
