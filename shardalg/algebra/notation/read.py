"""The reader of shardings in any notation, and of the notations that name axes of a given mesh.

| notation | begins with | read by |
|---|---|---|
| HLO, versions 1 to 3 | `{` | `hlo` |
| Shardy | `#sdy.sharding<` or `<` | `axis_lists` |
| PartitionSpec | `P(` or `PartitionSpec(` | here |
| our own `[X, None, (Y, Z:(2)4, ?)p1]{U:W}`, and the paper's mapping `[0, -1, 1]` | `[` | here |

The first functions read meshes, shapes and sizes from options of the command line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from shardalg.algebra.digits import Digit, Digits
from shardalg.algebra.layout import Layout
from shardalg.algebra.mesh import AxisRef, Mesh
from shardalg.algebra.notation.axis_lists import from_sdy
from shardalg.algebra.notation.hlo import from_hlo
from shardalg.algebra.notation.reader import Dim, Reader, layout_of
from shardalg.errors import MeshError, NotationError, ShardingError


def assignments(text: str, what: str, example: str) -> dict[str, int]:
    """Return the names and numbers in a text such as `A=1,B=2`, as a dictionary.

    Args:
      what, example: the option and a valid value, for the message.

    Raises:
      NotationError: the text has another form, or a name occurs twice.

    >>> assignments("B=8, S=64", "sizes", "B=8")
    {'B': 8, 'S': 64}
    """
    pairs = [part.strip() for part in text.split(",") if part.strip()]
    size_of: dict[str, int] = {}
    for pair in pairs:
        name, equals, size = (part.strip() for part in pair.partition("="))
        # A repeated name could be a typing error, so the last one does not win silently.
        if not (name and equals and _is_number(size)) or name in size_of:
            raise NotationError(
                f"{what}: {pair!r} in {text!r}; write NAME=SIZE, each name once, as in {example}."
            )
        size_of[name] = int(size)
    return size_of


def mesh_of(text: str) -> Mesh:
    """Return the mesh that a text such as "X=2,Y=4" describes.

    >>> mesh_of("data=2,model=4")
    Mesh(data=2, model=4)
    """
    return Mesh(assignments(text, "mesh", "X=2,Y=4"))


def shape_of(text: str) -> tuple[int, ...]:
    """Return the shape that a text such as "64,128" describes; "" is the shape of a scalar.

    >>> shape_of("64,128"), shape_of("")
    ((64, 128), ())

    Raises:
      ShardingError: a part of the text is no whole number.
    """
    sizes = [part.strip() for part in text.split(",")] if text.strip() else []
    wrong = [size for size in sizes if not _is_number(size)]
    if wrong:
        raise ShardingError(
            f"shape: {', '.join(map(repr, wrong))} in {text!r}; write sizes as in 64,128."
        )
    return tuple(map(int, sizes))


def _is_number(text: str) -> bool:
    """Return whether the text is a whole number of at most 18 digits."""
    return text.isascii() and text.isdecimal() and len(text) <= 18


_SPEC = "P('x', None, ('y', 'z'), UNCONSTRAINED, unreduced={'w'})"
_OWN = "[x, None, (y, z:(2)4, ?)p1]{U:w} or, by numbers of axes, [0, -1, 1]"
_EXAMPLES = f"""{{devices=[2,1,4]<=[8]}} or {{mesh['x'=2], [{{'x'}}]}} (HLO)
  #sdy.sharding<@mesh, [{{"x"}}, {{?}}]> (Shardy)
  {_SPEC}
  {_OWN}"""
_NAME = r"[^\W\d][\w.-]*"
_QUOTES = "'\""


def parse(text: str, shape: tuple[int, ...], mesh: Mesh | None = None) -> Layout:
    """Return the sharding of a tensor of `shape` that a text in any notation states.

    Args:
      mesh: the mesh with the axes that the text names or numbers. HLO text needs none, and Shardy's
        text needs none if it states its mesh.

    >>> parse("P(('x', 'y'), UNCONSTRAINED)", (8, 8), Mesh({"x": 2, "y": 4}))
    Sharding([(x, y), ?], shape=(8, 8), Mesh(x=2, y=4))
    >>> parse("[0, -1]", (8, 8), Mesh({"x": 2, "y": 4}))
    Sharding([x, None], shape=(8, 8), Mesh(x=2, y=4))

    Raises:
      NotationError: the text has no known notation, is malformed, or does not fit shape or mesh.
    """
    # The first characters decide the notation, so that errors speak of one notation only.
    for start, read in _NOTATIONS.items():
        if isinstance(text, str) and re.compile(start).match(text):
            return read(text, shape, mesh)
    raise NotationError(f"{text!r:.80} is no sharding. Write one as\n  {_EXAMPLES}")


def read_spec(text: str, shape: tuple[int, ...], mesh: Mesh | None = None) -> Layout:
    """Return the sharding that the text of a PartitionSpec describes, in the form that JAX prints.

    For example `PartitionSpec('x', None, ('y', 'z'), unreduced={'w'})`: one entry per dimension,
    then keyword arguments.

    Raises:
      NotationError: `mesh` is None, the text is malformed, or it does not fit shape or mesh.
    """
    reader = Reader(text, "the PartitionSpec", _SPEC)
    mesh = _needed(reader, mesh)
    reader.take(_SPEC_START)
    dims: list[Dim] = []
    digits_of_kind: dict[str, Digits] = {}
    reduction = ""
    while not reader.word(")"):
        # Keyword arguments may follow the entries, each of them once.
        keyword = next(
            (
                keyword
                for keyword in _HELD
                if keyword not in digits_of_kind and reader.word(keyword)
            ),
            None,
        )
        # Keywords name axes that split no dimension. JAX prints `unreduced_kind='sum'` behind them.
        if keyword is not None:
            digits_of_kind[keyword] = _spec_class(reader, mesh)
        elif "unreduced" in digits_of_kind and not reduction and reader.take(_SPEC_KIND):
            reduction = reader.expect("sum")
        elif digits_of_kind or len(dims) == len(shape):
            raise reader.error(f"expected ')' behind {len(dims)} entries, found {reader.found()}")
        else:
            dims.append(_spec_entry(reader, mesh))
        # As in Python, a comma may follow the last entry; then the loop's condition ends the loop.
        if reader.expect(",", ")") == ")":
            break
    reader.end()
    # As in JAX, dimensions without an entry are not partitioned.
    dims += [Dim((), False, 0)] * (len(shape) - len(dims))
    # `_HELD` gives the name of each keyword in a layout.
    classes = {_HELD[keyword]: digits for keyword, digits in digits_of_kind.items()}
    return layout_of(mesh, shape, tuple(dims), classes)


def read_own(text: str, shape: tuple[int, ...], mesh: Mesh | None = None) -> Layout:
    """Return the sharding of a text that `Sharding.text` printed, or of a `dims_mapping` as text.

    The first form is `[x, None, (y, z:(2)4, ?)p1]{U:w}`, with one entry per dimension. The second
    one has an axis number per dimension, -1 for none: `[0, -1, 1]`.

    Raises:
      NotationError: `mesh` is None, the text is malformed, or it does not fit shape or mesh.
    """
    reader = Reader(text, "the sharding", _OWN)
    mesh = _needed(reader, mesh)
    start = reader.skip()
    reader.expect("[")
    dims: list[Dim] = []
    closed = reader.word("]")
    while not closed:
        # Refuse too many entries before they are read, so that hostile texts cost little.
        if len(dims) == len(shape):
            raise reader.error(f"more entries than the {len(shape)} dimensions of {shape}")
        dims.append(_own_entry(reader, mesh))
        closed = reader.expect(",", "]") == "]"
    if len(dims) != len(shape):
        fault = f"{len(dims)} entries for the {len(shape)} dimensions of {shape}"
        raise reader.error(fault, start)
    digits_of_kind: dict[str, Digits] = {}
    # Axes that split no dimension follow, such as `{U:w}`, in the order in which `Layout.text`
    # prints them.
    for mark, kind in (("U", "unreduced"), ("R", "replicated"), ("M", "manual")):
        if reader.take(rf"\{{\s*{mark}\s*:"):
            # `_own_axis` returns the reader of one axis, and each axis may be several digits.
            axes_digits = reader.items(_own_axis(reader, mesh), "}")
            digits_of_kind[kind] = _joined(
                tuple(digit for row in axes_digits for digit in row), mesh
            )
    reader.end()
    return layout_of(mesh, shape, tuple(dims), digits_of_kind)


_SPEC_START = r"\s*(?:jax\.|jax\.sharding\.)?(?:P|PartitionSpec)\s*\("
# Newer versions of JAX print how partial values are combined. The word after this pattern must be
# "sum", because a sharding here has partial sums only.
_SPEC_KIND = r"unreduced_kind\s*=\s*(?:jax\.sharding\.)?(?:UnreducedKind\.)?"
_HELD = {"unreduced": "unreduced", "reduced": "replicated"}
_NOTATIONS: Mapping[str, Callable[[str, tuple[int, ...], Mesh | None], Layout]] = {
    r"\s*\{": from_hlo,
    r"\s*(?:#sdy|<)": from_sdy,
    _SPEC_START: read_spec,
    r"\s*\[": read_own,
}


def _needed(reader: Reader, mesh: Mesh | None) -> Mesh:
    """Return the mesh; raise NotationError if it is None, because the notation needs one."""
    if mesh is None:
        raise reader.error("this notation names axes and states no mesh; give the mesh")
    return mesh


def _spec_entry(reader: Reader, mesh: Mesh) -> Dim:
    """Read one entry of a PartitionSpec: None, UNCONSTRAINED, an axis, or a tuple of axes.

    Return the dimension: its digits, whether completion may shard it further, and priority 0,
    because a PartitionSpec has no priorities.
    """
    if reader.take(r"None\b"):
        return Dim((), False, 0)
    # JAX prints the constant of its class; an unconstrained dimension is open.
    if reader.take(r"(?:P\.|PartitionSpec\.)?UNCONSTRAINED\b"):
        return Dim((), True, 0)
    if not reader.word("("):
        return Dim((_spec_axis(reader, mesh),), False, 0)
    # Python writes a tuple of one axis with a comma at its end, ('x',). So a closing parenthesis
    # may follow a comma.
    digits, is_closed = [], reader.word(")")
    while not is_closed:
        digits.append(_spec_axis(reader, mesh))
        is_closed = reader.expect(",", ")") == ")" or reader.word(")")
    return Dim(tuple(digits), False, 0)


def _spec_class(reader: Reader, mesh: Mesh) -> Digits:
    """Read a set of axes, `={'y', 'z'}`; return their digits in the order of the mesh."""
    reader.expect("=")
    # Python prints a frozenset as `frozenset({'y'})`, and a set without the word.
    is_frozenset = reader.take(r"frozenset\(")
    reader.expect("{")
    digits = reader.items(lambda: _spec_axis(reader, mesh), "}")
    if is_frozenset:
        reader.expect(")")
    # A set has no order of its own, so the digits are sorted by the place of their axis in the
    # mesh.
    axis_digits = [mesh.digit(name) for name in mesh.axis_names]
    return tuple(sorted(digits, key=axis_digits.index))


def _spec_axis(reader: Reader, mesh: Mesh) -> Digit:
    """Read a quoted axis name; return the digit of the axis."""
    start = reader.skip()
    reader.one_more_axis(start)
    name = reader.quoted(_QUOTES, "an axis")
    return _known(reader, mesh, AxisRef(name), start)


def _own_entry(reader: Reader, mesh: Mesh) -> Dim:
    """Read one dimension in the form of `Sharding.text`, such as `x`, `?` or `(x, y:(2)4, ?)p1`.

    Return its digits, whether completion may shard it further (`?`), and its priority (`p1`).
    """
    # The paper's `dims_mapping` has -1 for a dimension that is not partitioned.
    if reader.take(r"None\b|-1"):
        return Dim((), False, 0)
    if reader.word("?"):
        return Dim((), True, 0)
    if not reader.word("("):
        return Dim(_own_axis(reader, mesh)(), False, 0)
    digits: list[Digit] = []
    is_open, is_closed = False, reader.word(")")
    # `?` ends the list, because further digits of an open dimension are appended behind the others.
    while not is_closed:
        is_open = reader.word("?")
        if not is_open:
            digits += _own_axis(reader, mesh)()
        is_closed = reader.expect(")" if is_open else ",", ")") == ")"
    priority = reader.number("a priority") if reader.word("p") else 0
    return Dim(_joined(tuple(digits), mesh), is_open, priority)


def _joined(digits: Digits, mesh: Mesh) -> Digits:
    """Return the digits with neighbouring sub-axes of one axis merged, as `text` prints them."""
    try:
        return tuple(mesh.ref_digit(ref) for ref in mesh.refs(digits))
    except MeshError:
        return digits


def _own_axis(reader: Reader, mesh: Mesh) -> Callable[[], Digits]:
    """Return a function without arguments that reads one axis and returns its digits.

    A list of axes (`Reader.items`) needs such a function. An axis is written as a name, a number, a
    sub-axis `x:(2)4`, or a digit `d//stride%size`.
    """

    def read() -> Digits:
        """Read one axis in a form such as `x`, `x:(2)4`, `0` or `d//4%2`; return its digits."""
        start = reader.skip()
        reader.one_more_axis(start)
        # A digit that is no axis of this mesh is written by its stride and size.
        if reader.take(r"d//"):
            return (_foreign(reader, mesh, start),)
        name = reader.take(_NAME)
        # In a `dims_mapping`, an axis is a number: its place in the mesh.
        if not name and reader.text[start : start + 1].isdigit():
            return (_numbered(reader, mesh),)
        name = name or reader.quoted(_QUOTES, "an axis")
        # `AxisRef` prints the axis of an unnamed mesh as "device".
        name = "" if mesh.is_unnamed and name == "device" else name
        ref = AxisRef(name)
        if reader.word(":"):
            reader.expect("(")
            pre = reader.number("the number of parts above the sub-axis")
            reader.expect(")")
            ref = AxisRef(name, pre, reader.number("the size of the sub-axis"))
            if ref.size == 1:
                raise reader.error(f"{ref!r} splits nothing", start)
        return (_known(reader, mesh, ref, start),)

    return read


def _numbered(reader: Reader, mesh: Mesh) -> Digit:
    """Read the number of an axis, counted from 0 in the order of the mesh; return the axis's digit.

    Raises:
      NotationError: the mesh has fewer axes.
    """
    start = reader.skip()
    number = reader.number("an axis")
    if number >= len(mesh.axes):
        fault = f"axis number {number} is not an axis of {mesh!r}, whose axes are numbered from 0"
        raise reader.error(fault, start)
    return mesh.digit(mesh.axis_names[number])


def _foreign(reader: Reader, mesh: Mesh, start: int) -> Digit:
    """Read the rest of a digit `d//stride%size` after `d//`; return the digit.

    The digit is `floor(position / stride) mod size` of a device's position. It need not be an axis
    of the mesh.

    Args:
      start: the place of `d//`, for the error.

    Raises:
      NotationError: the positions of the mesh have no such digit.
    """
    stride = reader.number("a stride")
    reader.expect("%")
    size = reader.number("a size")
    # A digit exists if stride * size divides the number of positions. Size 1 would split nothing.
    if stride < 1 or size < 2 or mesh.size % (stride * size):
        fault = f"d//{stride}%{size} is no digit of {mesh.size} positions"
        raise reader.error(fault, start)
    return Digit(stride, size)


def _known(reader: Reader, mesh: Mesh, ref: AxisRef, start: int) -> Digit:
    """Return the digit of an axis or sub-axis that was read.

    Raises:
      NotationError: the mesh does not have it; the message points at `start`.
    """
    try:
        return mesh.ref_digit(ref)
    except MeshError as error:
        raise reader.error(str(error), start) from None
