"""Claims that the solver can prove: statements about shardings and halos, as plain values.

A halo claims that its closed forms are exactly the elements that the windows read, on every device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardalg.algebra.affine import Quotient
from shardalg.algebra.halos.halo import Halo, halo
from shardalg.algebra.sharding import Sharding
from shardalg.errors import ProofError
from shardalg.merge.verdict import Verdict


@dataclass(frozen=True)
class MergeClaim:
    """The claim that `result` is the merge of two or more shardings; None: there is no merge.

    A result is right if it has the offsets of each operand on every dimension that the operand
    splits, splits no other dimension, and is balanced. Under the shardy policy the operand's
    partition id need only be the major part of the result's.

    Attributes:
      verdict: for a merge that does not exist, the verdict with the reason; None: decide it again.
    """

    first: Sharding
    second: Sharding
    result: Sharding | None
    policy: str = "gspmd"
    verdict: Verdict | None = None
    others: tuple[Sharding, ...] = ()

    def __post_init__(self) -> None:
        shapes = {s.shape for s in self.shardings}
        if len(shapes) > 1:
            raise ProofError(f"the shardings of a merge are of one shape, got {sorted(shapes)}.")

    @property
    def operands(self) -> tuple[Sharding, ...]:
        """All shardings that are merged."""
        return (self.first, self.second, *self.others)

    @property
    def shardings(self) -> tuple[Sharding, ...]:
        """The operands, and the result if there is one."""
        return self.operands if self.result is None else (*self.operands, self.result)

    def text(self) -> str:
        """Return the statement in words."""
        verb = "there is no" if self.result is None else f"{self.result.text()} is the"
        return f"{verb} merge of {' and '.join(s.text() for s in self.operands)}"


@dataclass(frozen=True)
class EqualClaim:
    """The claim that two shardings have equal offsets, and equal unreduced and manual ids.

    Attributes:
      holds: False states the opposite.
    """

    first: Sharding
    second: Sharding
    holds: bool = True

    @property
    def shardings(self) -> tuple[Sharding, ...]:
        """The two shardings that are compared."""
        return (self.first, self.second)

    def text(self) -> str:
        """Return the statement in words."""
        return (
            f"{self.first.text()} {'equals' if self.holds else 'differs from'} {self.second.text()}"
        )


@dataclass(frozen=True)
class RefineClaim:
    """The claim that every block of `fine` is inside the device's block of `coarse`.

    Attributes:
      holds: False states the opposite.
      device: for the opposite, a device whose block is not inside.
    """

    fine: Sharding
    coarse: Sharding
    holds: bool = True
    device: int | None = None

    @property
    def shardings(self) -> tuple[Sharding, ...]:
        """The two shardings that are compared."""
        return (self.fine, self.coarse)

    def text(self) -> str:
        """Return the statement in words."""
        verb = "refines" if self.holds else "does not refine"
        return f"{self.fine.text()} {verb} {self.coarse.text()}"


def of_verdict(verdict: Verdict) -> MergeClaim | RefineClaim | EqualClaim:
    """Return the claim that a verdict makes: a merge, a refinement or an equality, or its opposite.

    For example, the verdict that two shardings do not merge becomes the claim that no merge exists.
    """
    first, second, *others = verdict.operands
    if verdict.relation == "equal":
        return EqualClaim(first, second, bool(verdict))
    if verdict.relation == "refines":
        device = None if verdict.witness is None else verdict.witness.device
        return RefineClaim(first, second, bool(verdict), device)
    refused = None if verdict else verdict
    return MergeClaim(first, second, verdict.sharding, verdict.policy, refused, tuple(others))


@dataclass(frozen=True)
class Statement:
    """One statement of a halo: `given` implies `shows`, in the language of `integers.py`.

    Attributes:
      fault: the fault of the halo if the statement is false.
    """

    fault: str
    given: str
    shows: str


_FORMS = (
    "b >= 1, start == ceil(stride*t*p - low, b), "
    "limit == ceil(stride*t*p + stride*(t - 1) + (taps - 1)*dilation + 1 - low, b), "
    "left == p*s - start, right == limit - (p + 1)*s"
)
"""The closed forms of a halo, for a partition p that owns s elements and t outputs."""
_READ = (
    "stride >= 1, dilation >= 1, 0 <= x < t, 0 <= tap < taps, "
    "b*k == stride*(t*p + x) + dilation*tap - low"
)
ALL_SIZES = (
    Statement(
        "an element that is read is outside the halo",
        f"{_FORMS}, {_READ}",
        "p*s - left <= k, k < (p + 1)*s + right",
    ),
    Statement(
        "the start is not the least one",
        _FORMS,
        "b*(p*s - left) >= stride*t*p - low, b*(p*s - left - 1) < stride*t*p - low",
    ),
    Statement(
        "the limit is not the least one",
        _FORMS,
        "b*((p + 1)*s + right) > stride*t*p + stride*(t - 1) + (taps - 1)*dilation - low, "
        "b*((p + 1)*s + right - 1) <= stride*t*p + stride*(t - 1) + (taps - 1)*dilation - low",
    ),
    Statement(
        "the low padding is not the rest",
        _FORMS,
        "b*start - (stride*t*p - low) == (low - stride*t*p) % b, 0 <= (low - stride*t*p) % b < b",
    ),
)
LEMMAS = ("ceil_is_floor", "quotient_whole_part", "quotient_gcd", "quotient_endpoint")
"""The lemmas that the widths are equal to the stored quotients, and largest at an end partition."""


@dataclass(frozen=True)
class HaloWitness:
    """A partition on which a halo is wrong, and the element that is missing, if there is one."""

    fault: str
    partition: int
    element: int | None = None


@dataclass(frozen=True)
class HaloClaim:
    """The claim that a halo has every element that its window reads, and no more at either end.

    On every partition p:
    - each element that an output of p reads is in `[start(p), limit(p))`;
    - `start(p)` is the first element at or after the start of the first window, and `limit(p)` the
      first one at or after the end of the last window;
    - no width exceeds the largest one;
    - the elements that exist are within the margins that neighbours exchange;
    - padding and length are as stated.
    """

    halo: Halo

    def text(self) -> str:
        """Return the statement in words."""
        h = self.halo
        return f"{h!r} covers what {h.window!r} reads of {h.size} elements in {h.parts} parts"

    @property
    def is_derived(self) -> bool:
        """True if the widths are those that `halo` computes from the window, size and parts."""
        h = self.halo
        return h == halo(h.window, size=h.size, parts=h.parts)

    def statements(self) -> Iterator[Statement]:
        """Yield the statements of the claim at its sizes: p is any partition, x any output of p."""
        h, w = self.halo, self.halo.window
        base, first = w.base_dilation, f"({h.step}*p - {w.padding_low})"
        start, limit = _text(h.start), _text(h.limit)
        device = f"0 <= p, p < {h.parts}"
        # Only outputs, taps and elements that exist count: a read beyond them is padding, which no
        # neighbour sends.
        read_premises = (
            f"{device}, 0 <= x, x < {h.out_block}, p*{h.out_block} + x < {h.out_size}, 0 <= tap, "
            f"tap < {w.size}, 0 <= k, k < {h.size}, "
            f"{base}*k == {first} + {w.stride}*x + {w.window_dilation}*tap"
        )
        is_in_halo = f"{start} <= k, k < {limit}"
        yield Statement("an element that is read is outside the halo", read_premises, is_in_halo)
        yield Statement(
            "an element that is read is beyond the margins",
            read_premises,
            f"p*{h.block} - k <= {h.margin_left}, k - (p + 1)*{h.block} < {h.margin_right}",
        )
        yield Statement("the start is not the least one", device, _first_at(start, base, first))
        end = f"{first} + {h.reach}"
        yield Statement("the limit is not the least one", device, _first_at(limit, base, end))
        yield Statement(
            "a width or length exceeds the largest one",
            device,
            f"{_text(h.left)} <= {h.max_left}, {_text(h.right)} <= {h.max_right}, "
            f"{limit} - {start} <= {h.length}",
        )
        yield Statement(
            "the low padding is not the rest",
            device,
            f"{base}*{start} - {first} == ({w.padding_low} - {h.step}*p) % {base}, "
            f"{base}*{start} - {first} <= {h.max_padding_low}",
        )


def _text(form: Quotient) -> str:
    """Return a closed form in the language of `merge/proofs/integers.py`."""
    if not form.rest:
        return f"({form.slope}*p + {form.constant})"
    return f"({form.slope}*p + ({form.rest}*p + {form.constant}) // {form.divisor})"


def _first_at(element: str, base: int, place: str) -> str:
    """Return the statement that `element` is the first element at or after a position.

    The elements are dilated: element e is at position `base*e`.

    Args:
      element, place: the names of the element and of the position in the statement.
      base: the distance of two elements.
    """
    return f"{base}*{element} >= {place}, {base}*({element} - 1) < {place}"
