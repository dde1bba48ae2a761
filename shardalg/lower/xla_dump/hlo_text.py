"""XLA's HLO text as data: computations, instructions, how often each runs. No jax here.

Replica groups of HLO text, in all three of its forms, and the mesh axes that they run along.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardalg.algebra.digits import Digit, Digits
from shardalg.algebra.mesh import Mesh
from shardalg.errors import MeshError, NotationError
from shardalg.spmd.host.blocks import groups as digit_groups

Groups = list[list[int]]


def parse_groups(text: str, n_devices: int) -> Groups:
    """Parse lists of partition ids; an empty list is one group of all.

    >>> parse_groups("{{0,1},{2,3}}", 4), parse_groups("[2,2]<=[2,2]T(1,0)", 4)
    ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
    >>> parse_groups("mesh['a'=2,'b'=2] {'a'}", 4)
    [[0, 2], [1, 3]]

    Raises:
      NotationError: groups in none of these forms.
    """
    try:
        return _parse_groups(text.strip(), n_devices)
    except ValueError as error:
        raise NotationError(
            f"replica groups {text[:120]!r} cannot be read: {error}. XLA writes them as "
            "{{0,1},{2,3}}, [2,2]<=[4] or mesh['a'=2,'b'=2] {'a'}."
        ) from None


def _parse_groups(text: str, n_devices: int) -> Groups:
    """Return the groups of partition ids that the text of a `replica_groups` attribute lists.

    XLA has three forms: `{{0,1},{2,3}}`, `[2,2]<=[4]` and `mesh['a'=2,'b'=2] {'a'}`.
    ValueError for any other form.
    """
    # Without a list, XLA means one group of all devices.
    if text in ("", "{}"):
        return [list(range(n_devices))]
    # Form 1 lists the members of each group.
    if text.startswith("{{"):
        return [[int(n) for n in g.split(",")] for g in re.findall(r"\{([\d,]+)\}", text)]
    # Form 2 lists all devices after `<=`, and before it the number and the size of the groups. For
    # example, `[2,4]<=[8]` cuts the list 0 to 7 into 2 groups of 4 devices.
    iota = re.match(r"\[(\d+),(\d+)\]<=(.*)$", text)
    if iota:
        return _device_list(iota[3]).reshape(int(iota[1]), int(iota[2])).tolist()
    # Form 3 names the axes of a mesh along which the members of a group differ.
    named = re.match(r"@?mesh\[([^\]]*)\](.*)$", text)
    if not named:
        raise ValueError("the form is unknown")
    return _groups_along_axes(named[1], named[2])


def _device_list(text: str) -> np.ndarray:
    """Return the devices, in order, that a text such as `[2,4]T(1,0)` lists.

    The text means the numbers 0, 1, ... as an array of the given shape, transposed and then
    flattened. For example, `[2,3]T(1,0)` -> 0, 3, 1, 4, 2, 5.
    """
    match = re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if not match:
        raise ValueError(f"{text[:40]!r} is no list of devices")
    shape = [int(n) for n in match[1].split(",")]
    device_grid = np.arange(np.prod(shape)).reshape(shape)
    # The part `T(...)` is optional: without it the dimensions keep their order.
    dim_order = [int(n) for n in match[2].split(",")] if match[2] else range(len(shape))
    return device_grid.transpose(dim_order).reshape(-1)


def _groups_along_axes(axes: str, rest: str) -> Groups:
    """Return groups along axes and sub-axes: `mesh['a'=2,'b'=4], device_ids=([8]) {'b':(1)2}`.

    The members of a group differ along these axes only. They are device numbers.

    Args:
      axes: text inside of `mesh[...]`. rest: text after it.
    """
    mesh = Mesh([(name, int(size)) for name, size in re.findall(r"'([^']+)'=(\d+)", axes)])
    # The device ids say which device has each position of the mesh; by default it is the position.
    ids = re.search(r"device_ids=\(?(\[[\d,]+\](?:T\([\d,]+\))?)", rest)
    devices = _device_list(ids[1]) if ids else np.arange(mesh.size)
    # The last braces name the axes of the groups.
    axes_text = re.findall(r"\{([^}]*)\}", rest)[-1]
    digits = []
    for name, pre_size, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", axes_text):
        digit = mesh.digit(name)
        # The sub-axis 'b':(2)4 has 2 parts above it and the size 4. In a 'b' of size 16, one step
        # along it is 16/(2*4) = 2 steps of 'b'.
        if pre_size:
            digit = Digit(digit.stride * digit.size // (int(pre_size) * int(size)), int(size))
        digits.append(digit)
    # The digits give groups of positions in the mesh, which become device numbers.
    position_groups = digit_groups(tuple(digits), mesh.size)
    return [[int(devices[position]) for position in group] for group in position_groups]


def group_axes(groups: Sequence[Sequence[int]], mesh: Mesh) -> tuple[str, ...] | None:
    """Return the axes, major first, along which the groups run; None if they are no axes.

    >>> group_axes([[0, 2], [1, 3]], Mesh({"x": 2, "y": 2}))
    ('x',)
    """
    # Axes give all groups the same form, so the group of device 0 determines the digits. The other
    # groups are then compared with those that the digits give.
    members = sorted(next((g for g in groups if 0 in g), ()))
    digits = _digits_of(members)
    same = {frozenset(g) for g in digit_groups(digits, mesh.size)} == set(map(frozenset, groups))
    try:
        # A digit of the groups may span several axes, so it is cut where an axis ends.
        found = [repr(mesh.axis_ref(d)) for digit in digits for d in _split_at_axes(digit, mesh)]
    except MeshError:
        return None
    return tuple(found) if same else None


def _digits_of(members: Sequence[int]) -> Digits:
    """Return the digits, major first, that count through the positions `members`, sorted from 0.

    For example, the members 0, 1, 4, 5 give two digits of size 2, with the strides 4 and 1. If no
    digits give exactly these members, the result is meaningless: the caller compares.
    """
    digits: list[Digit] = []
    covered = 1
    # The digits found so far give the first `covered` members. The next member is one step of the
    # next digit, whose size is the number of equal steps that follow.
    while covered < len(members):
        stride = members[covered]
        size = 1
        while covered * size < len(members) and members[covered * size] == stride * size:
            size += 1
        digits.append(Digit(stride, size))
        covered *= size
    return tuple(reversed(digits))


def _split_at_axes(digit: Digit, mesh: Mesh) -> list[Digit]:
    """Return `digit` cut at the borders of the mesh axes that it covers, major first.

    A digit covers the strides from its own stride to stride * size. For example, the mesh
    X=2, Y=4 has the digits X = (stride 4, size 2) and Y = (stride 1, size 4). The digit
    (stride 2, size 4) covers 2 to 8, and is cut at 4: (4, 2) of X and (2, 2) of Y.
    """
    pieces = []
    for name in mesh.axis_names:
        axis = mesh.digit(name)
        low = max(digit.stride, axis.stride)
        high = min(digit.stride * digit.size, axis.stride * axis.size)
        # The digit and the axis have the range from `low` to `high` in common; it may be empty.
        if low < high:
            pieces.append(Digit(low, high // low))
    return pieces


def moved_axes(pairs: Sequence[tuple[int, int]], mesh: Mesh) -> tuple[str, ...]:
    """Return the axes along which source and target of a permute differ.

    >>> moved_axes([(0, 1), (1, 0)], Mesh({"x": 2, "y": 2}))
    ('y',)
    """
    return tuple(
        name
        for name in mesh.axis_names
        if any(
            mesh.digit(name).at(source) != mesh.digit(name).at(target) for source, target in pairs
        )
    )


_BYTES = {
    "pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "s32": 4, "u32": 4,
    "s64": 8, "u64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8, "c64": 8, "c128": 16,
    "f8e4m3fn": 1, "f8e5m2": 1, "token": 0, "opaque": 0,
}  # fmt: skip
_OPEN, _CLOSE = "([{", ")]}"
_MARKS = re.compile(r'"(?:[^"\\]|\\.)*(?:"|$)|[,()\[\]{}]')
_NO_OPERANDS = ("constant", "parameter", "iota", "partition-id", "replica-id")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([^\s(]+)\s*\(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([^\s=]+) = ")
_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\]")

Leaf = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class HloInstruction:
    """One line of HLO text.

    Attributes:
      leaves: (item type, dimensions) of the result, or of each element of a tuple.
      attributes: text of each attribute by name.
      computation: name of the computation that has the instruction.
      literal: text in the parentheses of a constant or a parameter; "" for other operators.
    """

    name: str
    opcode: str
    leaves: tuple[Leaf, ...]
    operands: tuple[str, ...]
    attributes: Mapping[str, str]
    computation: str
    literal: str = ""

    @property
    def op_name(self) -> str:
        """JAX's name for the operation that it came from; "" if none."""
        match = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes.get("metadata", ""))
        return match[1] if match else ""

    @property
    def bytes(self) -> int:
        """Bytes of the result."""
        return leaves_bytes(self.leaves)


Computation = dict[str, HloInstruction]


@dataclass(frozen=True)
class HloModule:
    """A program in HLO.

    Attributes:
      computations: per computation, its instructions by name, in order.
      roots: per computation, the instruction that is its result.
      entry: name of the computation with which the program starts.
    """

    computations: dict[str, Computation]
    roots: dict[str, HloInstruction]
    entry: str


def leaves_bytes(leaves: tuple[Leaf, ...]) -> int:
    """Return the bytes of arrays, given as pairs (item type, dimensions).

    >>> leaves_bytes((("bf16", (2, 3)), ("f32", ())))
    16
    """
    return int(sum(_BYTES.get(dtype, 4) * math.prod(dims) for dtype, dims in leaves))


def split_top(text: str) -> list[str]:
    """Return `text` cut at the commas that are outside of brackets and quotes.

    >>> split_top('a, f(b, c), "d,e"')
    ['a', 'f(b, c)', '"d,e"']
    """
    pieces, start = [], 0
    for index, char, depth in _depths(text):
        # At depth 0 no bracket is open, so the comma ends a piece.
        if char == "," and depth == 0:
            pieces.append(text[start:index].strip())
            start = index + 1
    # An empty text has no pieces, and a comma at the end starts none.
    last = text[start:].strip()
    return [*pieces, last] if last else pieces


def _depths(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield (index, character, bracket depth after it) of commas and brackets outside of quotes.

    For example, "a(b,c)" -> (1, "(", 1), (3, ",", 1), (5, ")", 0).
    """
    depth = 0
    for match in _MARKS.finditer(text):
        char = match[0]
        # A match that begins with a quote is a whole string; brackets inside of it do not count.
        if char[0] != '"':
            depth += (char in _OPEN) - (char in _CLOSE)
            yield match.start(), char, depth


def _bracket_end(text: str) -> int:
    """Return the index after the bracket that closes the one at the start of `text`."""
    for index, char, depth in _depths(text):
        if depth == 0 and char in _CLOSE:
            return index + 1
    raise ValueError("a bracket stays open")


def parse_leaves(text: str) -> tuple[Leaf, ...]:
    """Return (item type, dimensions) of each array in the HLO text of a type.

    Memory layouts, such as `{1,0}`, are left out. A tuple, also a nested one, gives its arrays in
    order.

    >>> parse_leaves("(bf16[2,3]{1,0:T(8,128)}, s32[])")
    (('bf16', (2, 3)), ('s32', ()))
    """
    text = text.strip()
    # Parentheses mean a tuple, whose elements may be tuples again.
    if text.startswith("("):
        return tuple(leaf for part in split_top(text[1:-1]) for leaf in parse_leaves(part))
    match = _ARRAY.match(text)
    # A type without dimensions, such as `token`, counts as a scalar.
    if not match:
        return ((text.split("[")[0], ()),)
    # A dimension of dynamic size is written as its upper bound: `f32[<=8]`.
    dims = tuple(int(n.lstrip("<=")) for n in match[2].split(",") if n.strip())
    return ((match[1], dims),)


def parse(text: str) -> HloModule:
    """Parse the HLO text of a dump or of `Compiled.as_text()`, for CPU, GPU or TPU.

    Raises:
      NotationError: text without an entry computation, or with an instruction cut short.
    """
    computations: dict[str, Computation] = {}
    # `roots` has the instruction that each computation returns. `shapes` has the text behind the
    # name of each instruction, from which `_add_element` reads the shape of an operand as
    # `param#1`.
    roots: dict[str, HloInstruction] = {}
    shapes: dict[tuple[str, str], str] = {}
    entry = current = ""
    for number, line in enumerate(text.splitlines(), 1):
        # A computation begins with a line that is not indented; its instructions follow, indented.
        header = _COMPUTATION.match(line)
        if header and not line.startswith(("HloModule", " ")):
            current = header[2]
            computations[current] = {}
            entry = current if header[1] else entry
        match = _INSTRUCTION.match(line)
        if match and current:
            # Long tuples have comments such as /*index=5*/ between their elements.
            rest = re.sub(r"/\*.*?\*/", "", line[match.end() :])
            try:
                instruction = _instruction(match[2], rest, current)
            except ValueError as error:
                raise NotationError(
                    f"line {number} of the HLO text cannot be read, {error}: {line.strip()[:120]}\n"
                    "Pass the whole of compiled.as_text(), or of a dump."
                ) from None
            # An operand `param#1` is an element that no line defines; it is added before its user.
            for operand in instruction.operands:
                _add_element(computations[current], operand, shapes)
            computations[current][instruction.name] = instruction
            shapes[current, instruction.name] = rest
            # The first group of `_INSTRUCTION` is the word ROOT.
            if match[1]:
                roots[current] = instruction
    if not entry:
        raise NotationError(
            f"HLO text of {len(text)} characters without an ENTRY computation, it begins with "
            f"{text[:40]!r}. Pass the whole of compiled.as_text(), or of a dump."
        )
    return HloModule(computations, roots, entry)


def _add_element(found: Computation, name: str, shapes: Mapping[tuple[str, str], str]) -> None:
    """Add the element of a tuple that an operand such as `param#1` names, as an instruction.

    Newer versions of XLA write it in place of a `get-tuple-element`, which is added here. Nothing
    is added for an operand of another form.

    Args:
      found: the instructions of the computation so far, by name; the element is added to it.
      name: name of the operand.
      shapes: text that begins with an instruction's type, by (computation, name).
    """
    base, mark, index = name.partition("#")
    # Other operands have no "#". An element that another operand names too is in `found` already.
    if not mark or name in found or base not in found or not index.isdigit():
        return
    computation = found[base].computation
    # The type of the element is one of the types in the parentheses of the tuple's type.
    text = shapes[computation, base]
    element_types = split_top(text[1 : _bracket_end(text) - 1]) if text.startswith("(") else []
    if int(index) < len(element_types):
        leaves, attributes = parse_leaves(element_types[int(index)]), {"index": index}
        found[name] = HloInstruction(
            name, "get-tuple-element", leaves, (base,), attributes, computation
        )


def _instruction(name: str, text: str, computation: str) -> HloInstruction:
    """Return the instruction of a line of HLO text, such as `f32[8] add(%a, %b), metadata={..}`.

    Args:
      name: the instruction's name.
      text: the line after `name =`: type, opcode, operands in parentheses, attributes.
      computation: name of the computation with the line.

    Raises:
      ValueError: the line is cut short.
    """
    # The type of a tuple is in parentheses and has spaces; any other type ends at the first space.
    end = _bracket_end(text) if text.startswith("(") else text.index(" ")
    shape, text = text[:end], text[end:].strip()
    opcode, rest = text[: text.index("(")], text[text.index("(") :]
    end = _bracket_end(rest)
    inner = rest[1 : end - 1]
    # The parentheses of a constant or a parameter have its literal instead of operands.
    has_operands = opcode not in _NO_OPERANDS
    return HloInstruction(
        name,
        opcode,
        parse_leaves(shape),
        # An operand may have its type before its name: `f32[8] %a`.
        tuple(re.sub(r"^.*%", "", o) for o in split_top(inner)) if has_operands else (),
        _attributes(rest[end:].lstrip(", ")),
        computation,
        "" if has_operands else inner,
    )


def _attributes(text: str) -> dict[str, str]:
    """Return the text of each attribute by name; `text` is the line after the operands."""
    attributes: dict[str, str] = {}
    for part in split_top(text):
        key, _, value = part.partition("=")
        if key == "device_ids" and "replica_groups" in attributes:
            # Groups `mesh[..], device_ids=(..) {..}` have a comma inside, and are one value.
            attributes["replica_groups"] += f", device_ids={value}"
        else:
            attributes[key] = value
    return attributes


Told = Callable[[HloInstruction], int | None]
"""Returns the trip count of a `while` instruction if it is known without its text, else None."""


def walk(
    module: HloModule, told: Told = lambda loop: None
) -> Iterator[tuple[HloInstruction, int, bool]]:
    """Yield every instruction that runs, its number of executions, and whether that is exact.

    A loop of n iterations tests its condition n + 1 times; one of unknown length counts as one
    iteration of its body, and one test.
    """
    yield from _walk(module, told, module.entry, (1, True))


def _walk(
    module: HloModule, told: Told, name: str, runs: tuple[int, bool]
) -> Iterator[tuple[HloInstruction, int, bool]]:
    """Yield (instruction, executions, whether this number is exact) for a computation.

    The instructions of the computations that it calls follow each call.

    Args:
      told: returns the iterations of a `while` instruction, or None if they are not known.
      name: the name of the computation.
      runs: executions of the computation, and whether that number is exact.
    """
    count, exact = runs
    for instruction in module.computations[name].values():
        yield instruction, count, exact
        is_loop = instruction.opcode == "while"
        # A number that the caller knows precedes the one in the text. If neither is known, the body
        # counts once, and the number is not exact.
        trips = told(instruction) if is_loop else 1
        if trips is None:
            trips = trip_count(module, instruction)
        body_runs = (count, False) if trips is None else (count * trips, exact)
        for callee in _callees(instruction):
            if callee in module.computations:
                yield from _walk(module, told, callee, body_runs)
        condition = instruction.attributes.get("condition", "").lstrip("%") if is_loop else ""
        # The condition of a loop is tested once more than the body runs, to end the loop.
        if condition in module.computations:
            tests = body_runs if trips is None else (count * (trips + 1), exact)
            yield from _walk(module, told, condition, tests)


def _callees(instruction: HloInstruction) -> list[str]:
    """Return the names of the computations that an instruction runs.

    The condition of a loop is left out: it runs once more than the body.
    """
    attributes = instruction.attributes
    # XLA stores the names under other attributes for each opcode. A conditional has either a pair
    # of branches or a list of them. Fusions and asynchronous calls have `calls`.
    keys = {
        "while": ("body",),
        "call": ("to_apply",),
        "conditional": ("true_computation", "false_computation", "branch_computations"),
    }.get(instruction.opcode, ("calls",))
    # A list is written as `{%first, %second}`.
    names = ",".join(attributes[key] for key in keys if key in attributes)
    return [name.strip().lstrip("%") for name in names.strip("{}").split(",") if name.strip()]


def trip_count(module: HloModule, loop: HloInstruction) -> int | None:
    """Return a while loop's trip count; None if it is unknown.

    It is the compiler's note, or else the constant with which the condition compares.
    """
    config = loop.attributes.get("backend_config", "")
    noted = re.search(r'known_trip_count"?:\s*\{"n":\s*"?(\d+)', config)
    if noted:
        return int(noted[1])
    name = loop.attributes.get("condition", "").lstrip("%")
    root = module.roots.get(name)
    # XLA may fuse the comparison with other operators. The bound is then the largest constant in
    # the condition or in the fusion.
    if root is not None and root.opcode == "fusion":
        inner = root.attributes.get("calls", "").lstrip("%")
        bounds = _constants(module, name) + _constants(module, inner)
        return max(bounds, default=None)
    # A scan of JAX counts from 0 while the counter is less than the number of iterations. Any other
    # comparison does not count so.
    if root is None or root.attributes.get("direction") != "LT":
        return None
    return _constant(module, name, root.operands[1], loop)


def _constants(module: HloModule, computation: str) -> list[int]:
    """Return all constants of a computation that are integers from 0 on."""
    body = module.computations.get(computation, {}).values()
    literals = [i.literal for i in body if i.opcode == "constant"]
    return [int(text) for text in literals if text.isdigit()]


def _constant(
    module: HloModule, computation: str, name: str, loop: HloInstruction | None
) -> int | None:
    """Return the number of a value in a computation if it is constant, else None.

    Args:
      computation, name: the value's computation, and its name there.
      loop: the `while` instruction whose body or condition is `computation`; None outside of loops.
    """
    instruction = module.computations[computation].get(name)
    if instruction is None:
        return None
    if instruction.opcode == "constant":
        return int(instruction.literal) if instruction.literal.lstrip("-").isdigit() else None
    # These operators do not change the number.
    if instruction.opcode in ("copy", "convert", "bitcast", "reshape"):
        return _constant(module, computation, instruction.operands[0], loop)
    # A loop has one parameter, its tuple. An element of it has the number that the tuple has before
    # the loop starts, so the search continues there. Only one loop is left in this way.
    if instruction.opcode == "get-tuple-element" and loop is not None:
        start = module.computations[loop.computation].get(loop.operands[0])
        if start is not None and start.opcode == "tuple":
            index = int(instruction.attributes["index"])
            return _constant(module, loop.computation, start.operands[index], None)
    return None
