"""One operator of the text as it is interpreted: its attributes, types and regions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.mlir import ir

from shardalg.errors import TraceError

COMPOSITE = "stablehlo.composite"
_NUMBER = re.compile(r"0x[0-9A-Fa-f]+|-?(?:\d[\d.]*(?:[eE][+-]?\d+)?)")
_ELEMENTS = {"i1": "bool", "bf16": "bfloat16", "complex<f32>": "complex64"} | {
    "complex<f64>": "complex128"
}
_NAMED = re.compile("^(ui|i|f)([0-9]+)$")
_KINDS = {"ui": "uint", "i": "int", "f": "float"}


@dataclass(frozen=True, eq=False)
class TextStep:
    """An operator of the text, with functions that read its regions and its shardings.

    Attributes:
      op: the parsed operator.
      region: returns the function of arrays that the region with a number computes.
      layout: parses a sharding of the text for a shape; returns None if it has no meaning.
      mesh: sizes of the mesh's axes by name.
      place: source line for messages, such as `model.py:41`.
    """

    op: Any
    region: Callable[[int], Callable[..., tuple[Any, ...]]]
    layout: Callable[[Any, tuple[int, ...]], Any]
    mesh: Mapping[str, int]
    place: str

    @property
    def name(self) -> str:
        """Name of the operator, such as `stablehlo.add`."""
        return str(self.op.name)

    @property
    def attributes(self) -> Any:
        """Attributes of the operator, or of a composite's inner operator."""
        own = self.op.attributes
        return own["composite_attributes"] if self.name == COMPOSITE else own

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        return array_type(self.op.results[0].type)[0]

    @property
    def dtype(self) -> Any:
        """Type of the first result."""
        return array_type(self.op.results[0].type)[1]

    def has(self, name: str) -> bool:
        """Return True if the attribute is present."""
        return name in self.attributes

    def ints(self, name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Return an attribute that is a list of numbers; `default` if it is absent."""
        return tuple(map(int, self.attributes[name])) if self.has(name) else default

    def pairs(self, name: str, count: int) -> tuple[tuple[int, int], ...]:
        """Return the rows of an attribute with two columns; `count` rows of 0 if it is absent."""
        if not self.has(name):
            return ((0, 0),) * count
        flat = np.asarray(self.attributes[name]).reshape(-1, 2).tolist()
        return tuple((low, high) for low, high in flat)

    def number(self, name: str) -> int:
        """Return an attribute that is a number."""
        return int(self.attributes[name].value)

    def word(self, name: str) -> str:
        """Return an attribute that is a word of an enumeration: "GT" of "#stablehlo<... GT>"."""
        return re.findall(r"\w+", str(self.attributes[name]))[-1]

    def only(self, region: int = 0) -> str:
        """Return the name of the only operator of a region without its dialect, such as "add".

        The operator must be applied to the region's arguments in their order; otherwise "".
        """
        block = self.op.regions[region].blocks[0]
        first, *rest = block.operations
        plain = len(rest) == 1 and list(first.operands) == list(block.arguments)
        return str(first.operation.name).partition(".")[2] if plain else ""

    def refused(self, what: str) -> TraceError:
        """Return the error that the operator cannot be read; `what` follows its name."""
        return TraceError(
            f"{self.place}: {self.name}{what} cannot be read. Plan the JAX function itself, or "
            "write the operator with ones that can: shardalg.xla.stablehlo lists them."
        )


def array_type(kind: Any) -> tuple[tuple[int, ...], Any]:
    """Return the shape and element type of a value.

    Raises:
      TraceError: it is no tensor of known sizes, or has elements that JAX does not have.
    """
    try:
        read = ir.RankedTensorType(kind)
        element = str(read.element_type)
        match = _NAMED.match(element)
        # MLIR's `f8E4M3FN` is JAX's `float8_e4m3fn`.
        small = re.sub(r"^f(\d)(E.*)$", lambda m: f"float{m[1]}_{m[2].lower()}", element)
        plain = f"{_KINDS[match[1]]}{match[2]}" if match else small
        name = _ELEMENTS.get(element, plain)
        dtype = jnp.dtype(name)
    except (TypeError, ValueError):
        dtype = None
    if dtype is None or not read.has_static_shape:
        raise TraceError(
            f"a value of type {kind} cannot be read: it is no tensor of known sizes, of elements "
            "that JAX has. Export the function at sizes in numbers."
        )
    # Inside of a program JAX holds 64 bits only if the option jax_enable_x64 is set.
    return tuple(read.shape), jax.dtypes.canonicalize_dtype(dtype)


def border_type(kind: Any) -> tuple[tuple[int, ...], Any]:
    """Return the shape and type of an argument or a result.

    Raises:
      TraceError: elements have 64 bits, and JAX is configured for 32.
    """
    shape, dtype = array_type(kind)
    # A complex number of two 64-bit floats has 16 bytes.
    wide = 16 if dtype.kind == "c" else 8
    if re.search(r"[uif]64>+$", str(kind)) and dtype.itemsize < wide:
        raise TraceError(
            f"an argument or a result of type {kind} needs 64 bits, and JAX holds 32. Set "
            "jax.config.update('jax_enable_x64', True), or export the function without them."
        )
    return shape, dtype


def literal(op: Any) -> Any:
    """Return the array of a constant.

    Raises:
      TraceError: elements that are not plain numbers.
    """
    shape, dtype = array_type(op.results[0].type)
    if dtype.kind == "c":  # the parser has no attribute of such elements
        return _of_text(op.get_asm().partition(" = stablehlo.constant ")[2], shape, dtype)
    # A splat has one value for all elements, and the text has it once.
    attribute = op.attributes["value"]
    if getattr(attribute, "is_splat", False) and dtype.kind in "biuf":
        return np.full(shape, np.asarray(attribute.get_splat_value().value, dtype))
    # Types that numpy lacks are read from the text of the attribute.
    try:
        return np.asarray(attribute).reshape(shape).astype(dtype)
    except TypeError:
        return _of_text(str(attribute), shape, dtype)


def _of_text(text: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the array of an MLIR literal whose elements the MLIR bindings cannot read.

    The text has the type at its end, e.g. `dense<[1.0, 2.0]> : tensor<2xf32>`.
    """
    hex_bytes = re.match('dense<"0x([0-9A-Fa-f]+)">', text)
    # MLIR prints large constants as the hexadecimal digits of their bytes.
    if hex_bytes:
        return np.frombuffer(bytes.fromhex(hex_bytes[1]), dtype).reshape(shape)
    # A complex number has two parts of half its size.
    part_type = np.dtype({"complex64": "float32", "complex128": "float64"}.get(str(dtype), dtype))
    size = part_type.itemsize
    number_texts = _NUMBER.findall(text[: text.rindex(":")])
    # MLIR prints NaN and infinities as the hexadecimal bits of the element.
    bits = [
        int(n, 16).to_bytes(size, "little") if n.startswith("0x") else None for n in number_texts
    ]
    parts = [
        np.asarray(float(n), part_type) if b is None else np.frombuffer(b, part_type)[0]
        for n, b in zip(number_texts, bits, strict=True)
    ]
    # Real and imaginary parts alternate, so a view pairs them to complex numbers.
    elements = np.asarray(parts, part_type).view(dtype)
    # One element alone is a splat, the value of the whole array.
    return np.full(shape, elements[0]) if len(elements) == 1 else elements.reshape(shape)
