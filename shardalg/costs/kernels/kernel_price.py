"""Prices of opaque kernels, whose operators are not in the graph: Pallas, FFI calls and callbacks.

A kernel reads its operands from memory and writes its results to memory, so that no operator is
fused with it. Its price is the parameter `kernel_price` of its node. `planner/kernel_prices.py`
derives the price from the code of a Pallas call; the user gives it for other targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardalg.errors import StrategyError
from shardalg.graph.ir import Params, Signature
from shardalg.sizes.amounts import quotient

OPAQUE = frozenset(("ffi_call", "pallas_call", "pure_callback"))
"""Primitives that call a kernel. Without a price, a call has 0 flops and moves all its values."""
PRICE = "kernel_price"
Amount = float | Callable[..., float]
"""Flops or bytes of one call: a number, or a function of the operands' local shapes.

Functions are allowed because the planner changes these shapes.
"""
_FLOATS = ("float", "bfloat", "complex")


@dataclass(frozen=True)
class KernelPrice:
    """The price of one call of a kernel on one device, given by the user (`Options(prices=...)`).

    Attributes:
      flops: floating-point operations of a call. They run at the chip's peak for products of the
        first floating-point operand's type.
      bytes: bytes that a call moves from and to the device's memory; None: every operand and result
        once.
      Both are numbers, or functions of the operands' local shapes, one tuple of integers each. In a
      `shard_map` these are the shapes of a device's blocks. Elsewhere every device runs the kernel
      on whole operands.

    Raises:
      StrategyError: an amount is negative, not finite, or neither a number nor a function.

    >>> KernelPrice(flops=lambda q, k: 2 * q[0] * k[0] * q[1], bytes=1024).at((4, 8), (16, 8))
    KernelPrice(flops=1024, bytes=1024)
    """

    flops: Amount
    bytes: Amount | None = None

    def __post_init__(self) -> None:
        for name in ("flops", "bytes"):
            amount = getattr(self, name)
            if not callable(amount) and not (name == "bytes" and amount is None):
                _check_amount(amount, f"KernelPrice({name}={amount!r})")

    def at(self, *shapes: tuple[int, ...]) -> KernelPrice:
        """Return a price in which functions are replaced by their values on these local shapes.

        Raises:
          StrategyError: a function raises an error, or returns no finite number from 0 on.
        """
        amounts = []
        for name in ("flops", "bytes"):
            amount = getattr(self, name)
            if callable(amount):
                where = f"KernelPrice({name}=...) on operands of the shapes {list(shapes)}"
                try:
                    amount = amount(*shapes)
                except Exception as error:
                    raise StrategyError(
                        f"{where} raises {type(error).__name__}: {error}. The function gets one "
                        "tuple of integers per operand."
                    ) from None
                _check_amount(amount, f"{where} gives {amount!r}, which")
            amounts.append(amount)
        return KernelPrice(*amounts)


def _check_amount(amount: Any, where: str) -> None:
    """Raise an error unless an amount is a finite number from 0 on.

    Raises:
      StrategyError: the message begins with `where`.
    """
    is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
    if not is_number or not 0 <= amount < math.inf:
        raise StrategyError(
            f"{where} is no amount: give a finite number from 0 on, or a function of the operands' "
            "local shapes that returns one."
        )


class Price(NamedTuple):
    """Price of one call of a kernel, for the shapes in the signature of its node.

    Attributes:
      flops: floating-point operations of one call.
      bytes: bytes that one call moves; None means every operand and result once.
      multiplies: whether the matrix unit computes the flops.
      source: origin of the price: "cost_estimate" or "kernel" (the code) of a Pallas call, or
        "options" of the user.
    """

    flops: Any
    bytes: Any
    multiplies: bool
    source: str


def price_of(signature: Signature) -> Price | None:
    """Return the price of a node's kernel; None if the node is no kernel or has no price."""
    found = signature.param(PRICE)
    return None if found is None else Price(*found)


def is_kernel(signature: Signature) -> bool:
    """Return whether an operator is an opaque kernel call, with or without a price."""
    return signature.primitive in OPAQUE or price_of(signature) is not None


def with_price(params: Params, price: Price) -> Params:
    """Return the parameters of a node with the price of its kernel."""
    return tuple(sorted({**dict(params), PRICE: tuple(price)}.items()))


def at_shapes(amount: Any, signature: Signature, shapes: tuple[tuple[Any, ...], ...]) -> Any:
    """Return the flops or bytes of a kernel call, scaled from its signature to other shapes.

    The amount is proportional to the number of elements of the first result.

    Args:
      amount: flops or bytes on the shapes of the signature.
      shapes: other shapes of the operands, then of the results.
    """
    own, now = signature.results[:1], shapes[len(signature.operands) :][:1]
    if not own or not now or tuple(own[0].shape) == tuple(now[0]):
        return amount
    return quotient(amount * math.prod(now[0]), max(math.prod(own[0].shape), 1))


def kernel_type(signature: Signature) -> str:
    """Return the item type of a kernel's arithmetic: that of the first floating-point value.

    Operands come before results. Without a floating-point value, it is the first value's type.
    """
    types = [v.dtype for v in (*signature.operands, *signature.results)]
    floats = [dtype for dtype in types if dtype.startswith(_FLOATS)]
    return [*floats, *types, "float32"][0]
