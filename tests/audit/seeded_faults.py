"""Faults in the text of a partitioned program: eight kinds, as XLA's own miscompilations have them.

Each fault is one edited instruction (three for an accumulation type). A fault need not change what
the program computes; the referee decides this.
"""

import random
import re
from dataclasses import dataclass

from shardalg.lower.xla_dump.hlo_text import parse_groups

LINE = re.compile(r"^\s+(?:ROOT )?%(\S+) = (\S+) ([\w-]+)\((.*)$")
NUMBERS = re.compile(r"-?\d+")
KINDS = (
    "group", "slice start", "missing reduction", "mask", "dimension", "permutation pair",
    "stale halo", "accumulation type",
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A faulty text: the kind of the fault, the edited instruction and the whole text."""

    kind: str
    name: str
    text: str


def faults(text, devices, seed, each=2):
    """Return at most `each` faults of every kind, chosen at random."""
    chance = random.Random(seed)
    lines = text.splitlines()
    found = []
    for kind in KINDS:
        places = []
        for at, line in enumerate(lines):
            if match := LINE.match(line):
                new = EDITS[kind](line, match, text, devices, chance)
                if new and new != line:
                    places.append((at, match[1], new))
        for at, name, new in chance.sample(places, min(each, len(places))):
            found.append(Fault(kind, name, "\n".join((*lines[:at], new, *lines[at + 1 :]))))
    return found


def operand(match):
    return re.match(r"\s*%?([^\s,()]+)", match[4])[1]


def dims_of(shape):
    return [int(n) for n in NUMBERS.findall(re.search(r"\[([\d,]*)\]", shape)[1])]


def swapped(values, chance):
    """Return a copy of a list with two different entries swapped, or None."""
    pairs = [(i, j) for i in range(len(values)) for j in range(i) if values[i] != values[j]]
    if not pairs:
        return None
    i, j = chance.choice(pairs)
    values = list(values)
    values[i], values[j] = values[j], values[i]
    return values


def group(line, match, text, devices, chance):
    found = re.search(r"replica_groups=(.*?)(?=, (?:[a-z_]+=)|$)", line)
    if not found or match[3] not in ("all-reduce", "all-gather", "all-to-all"):
        return None
    named = re.search(
        r"replica_groups=(.*?\}?)(?=, (?:use_global|dimensions|to_apply|channel|metadata))", line
    )
    given = named[1] if named else found[1]
    try:
        groups = parse_groups(given, devices)
    except Exception:
        return None
    size = len(groups[0])
    if size in (1, devices):
        return None
    ids = list(range(devices))
    rows = [ids[i : i + size] for i in range(0, devices, size)]
    columns = [ids[i :: devices // size] for i in range(devices // size)]
    now = sorted(map(sorted, groups))
    other = next((g for g in (rows, columns) if sorted(map(sorted, g)) != now), None)
    if other is None:
        return None
    new = ",".join("{" + ",".join(map(str, g)) + "}" for g in other)
    return line.replace(given, "{" + new + "}")


def slice_start(line, match, text, devices, chance):
    name, shape, opcode, rest = match.groups()
    if opcode == "slice":
        source = re.search(rf"%{re.escape(operand(match))} = \w+\[([\d,]+)\]", text)
        ranges = re.findall(r"\[(\d+):(\d+)\]", line)
        for (low, high), size in zip(
            ranges, NUMBERS.findall(source[1]) if source else (), strict=False
        ):
            low, high, size = int(low), int(high), int(size)
            if high - low < size:
                step = 1 if high < size else -1
                return line.replace(f"[{low}:{high}]", f"[{low + step}:{high + step}]", 1)
    if opcode == "constant" and re.match(r"s32\[\d+\]", shape) and "{" in rest:
        read = re.search(rf"dynamic-slice\(%{re.escape(name)}, %partition-id", text)
        inner = re.match(r"\{([^}]*)\}", rest)
        values = swapped(inner[1].split(", "), chance) if read and inner else None
        return line.replace(inner[1], ", ".join(values)) if values else None
    return None


def missing_reduction(line, match, text, devices, chance):
    if match[3] == "all-reduce" and match[2].startswith(("f", "bf")):
        return f"{line[: line.index(match[3] + '(')]}copy(%{operand(match)})"
    return None


def mask(line, match, text, devices, chance):
    found = re.search(r"direction=(LT|LE|GE|GT)", line)
    other = {"LT": "LE", "LE": "LT", "GE": "GT", "GT": "GE"}
    reads = found and re.search(rf"%{re.escape(operand(match))} = s32", text)
    return line.replace(found[0], f"direction={other[found[1]]}") if reads else None


def dimension(line, match, text, devices, chance):
    _, shape, opcode, _ = match.groups()
    if opcode not in ("transpose", "broadcast", "all-to-all", "iota", "all-gather"):
        return None
    sizes = dims_of(shape)
    found = re.search(r"dimensions=\{([\d,]+)\}", line)
    if not found:
        return None
    dims = [int(d) for d in found[1].split(",")]
    if opcode in ("transpose", "broadcast") and len(dims) > 1:
        same = [
            (i, j) for i in range(len(dims)) for j in range(i)
            if sizes[dims[i] if opcode == "broadcast" else i]
            == sizes[dims[j] if opcode == "broadcast" else j] > 1
        ]  # fmt: skip
        if same:
            i, j = chance.choice(same)
            dims[i], dims[j] = dims[j], dims[i]
            return line.replace(found[0], f"dimensions={{{','.join(map(str, dims))}}}")
    if len(dims) == 1:
        others = [d for d, n in enumerate(sizes) if d != dims[0] and n == sizes[dims[0]] > 1]
        if others:
            return line.replace(found[0], f"dimensions={{{chance.choice(others)}}}")
    return None


def permutation_pair(line, match, text, devices, chance):
    if match[3] != "collective-permute":
        return None
    pairs = [p.split(",") for p in re.findall(r"\{(\d+,\d+)\}", line)]
    targets = swapped([t for _, t in pairs], chance)
    if targets is None:
        return None
    new = ",".join(f"{{{s},{t}}}" for (s, _), t in zip(pairs, targets, strict=True))
    return re.sub(r"source_target_pairs=\{.*?\}\}", f"source_target_pairs={{{new}}}", line)


def stale_halo(line, match, text, devices, chance):
    if match[3] != "collective-permute":
        return None
    return f"{line[: line.index(match[3] + '(')]}copy(%{operand(match)})"


def accumulation_type(line, match, text, devices, chance):
    name, shape, opcode, rest = match.groups()
    if opcode != "all-reduce" or not shape.startswith("f32"):
        return None
    narrow, source = shape.replace("f32", "bf16"), operand(match)
    rest = rest.replace(source, f"{source}.narrow", 1)
    head = line[: line.index(shape + " " + opcode)]
    return (
        f"  %{source}.narrow = {narrow} convert(%{source})\n"
        f"  %{name}.wide = {narrow} all-reduce({rest}\n{head}{shape} convert(%{name}.wide)"
    )


EDITS = dict(
    zip(
        KINDS,
        (group, slice_start, missing_reduction, mask, dimension, permutation_pair, stale_halo,
         accumulation_type), strict=True,
    )
)  # fmt: skip


def mutations(text, seed):
    """Yield texts with one random change each: a number, an operand, an opcode or a direction.

    The texts stay valid as far as one line shows it: a value is read after it is computed and in
    its own computation, and the parameters of a computation keep their numbers and shardings.
    """
    chance = random.Random(seed)
    lines = text.splitlines()
    # A computation begins with a line that is not indented.
    computation, first = [], 0
    for at, line in enumerate(lines):
        first = at if line and not line.startswith((" ", "}")) else first
        computation.append(first)
    places = [
        at for at, line in enumerate(lines)
        if (match := LINE.match(line)) and match[3] not in ("parameter", "tuple")
    ]  # fmt: skip
    while True:
        at = chance.choice(places)
        change = chance.choice((changed_number, changed_operand, changed_opcode))
        new = change(lines[at], chance, lines[computation[at] : at])
        if new and new != lines[at]:
            yield "\n".join((*lines[:at], new, *lines[at + 1 :]))


def changed_number(line, chance, earlier):
    """Return a line with another number outside of the type, the names and the metadata."""
    head, _, rest = line.partition("(")
    body, mark, tail = rest.partition(", metadata=")
    # The number of a channel has no meaning for the results.
    found = list(re.finditer(r"(?<![\w.%-])(?<!channel_id=)\d+(?![\w.])", body))
    if not found:
        return None
    number = chance.choice(found)
    value = max(0, int(number[0]) + chance.choice((-1, 1)))
    return f"{head}({body[: number.start()]}{value}{body[number.end() :]}{mark}{tail}"


def changed_operand(line, chance, earlier):
    """Return a line that reads another value of the same type, computed on an earlier line."""
    match = LINE.match(line)
    types = {m[1]: m[2] for m in map(LINE.match, earlier) if m}
    operands = re.findall(r"%([\w.-]+)", match[4].split(")")[0])
    if not operands:
        return None
    old = chance.choice(operands)
    others = [name for name, kind in types.items() if kind == types.get(old) and name != old]
    if not others:
        return None
    return re.sub(rf"%{re.escape(old)}(?![\w.-])", f"%{chance.choice(others)}", line, count=1)


def changed_opcode(line, chance, earlier):
    """Return a line with another operator, or another direction of a comparison."""
    others = {
        " add(": " subtract(", " subtract(": " add(", " multiply(": " add(",
        " maximum(": " minimum(", " minimum(": " maximum(", " negate(": " copy(",
        "direction=LT": "direction=LE", "direction=GE": "direction=GT",
        "direction=GT": "direction=GE", "direction=LE": "direction=LT", " divide(": " multiply(",
        "direction=EQ": "direction=NE", " exponential(": " tanh(", " and(": " or(",
        " all-reduce(": " copy(", " collective-permute(": " copy(",
    }  # fmt: skip
    found = [old for old in others if old in line]
    if not found:
        return None
    new = line.replace(found[0], others[found[0]])
    return new.split("), ")[0] + ")" if " copy(" in new and " copy(" not in line else new
