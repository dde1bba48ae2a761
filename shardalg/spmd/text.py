"""A program as text, in the notation `f32[16@X,128@Y]`: local sizes with the axes that cut them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from shardalg.algebra.digits import Digits
from shardalg.algebra.mesh import Mesh
from shardalg.graph.ir import SHORT, Graph
from shardalg.spmd.boxes import Places
from shardalg.spmd.control import bodies
from shardalg.spmd.program import (
    COLLECTIVES,
    AllGather,
    AllReduce,
    AllToAll,
    Apply,
    Attributes,
    Best,
    Block,
    Branches,
    Carry,
    Choose,
    CollectivePermute,
    Concatenate,
    Dilate,
    DynamicSlice,
    Extract,
    Fetch,
    FirstMember,
    Fold,
    Insert,
    Instruction,
    Join,
    Local,
    Loop,
    Manual,
    Mask,
    MaskAt,
    MaskIndexed,
    Offset,
    Pick,
    ReduceScatter,
    Resize,
    Slice,
    SliceAt,
    SpmdProgram,
    Start,
    Top,
    ValueAt,
    While,
)
from shardalg.spmd.regroup import Regroup


def axes_text(mesh: Mesh, digits: Digits) -> str:
    """Axes of `digits`, major first: `X`, `X,Y`, `X:(2)4`."""
    return ",".join(repr(mesh.axis_ref(d)) for d in digits)


def local_text(local: Local) -> str:
    """`bf16[8@X,1024]`, with `{U:Y}` for sums that are pending along Y."""
    mesh = local.sharding.mesh
    sizes = [str(n) for n in local.shape]
    if len(local.sharding.dims) == len(sizes):
        sizes = [
            size + (f"@{axes_text(mesh, digits)}" if digits else "")
            for size, digits in zip(sizes, local.sharding.dims, strict=True)
        ]
    pending = local.sharding.unreduced
    mark = f"{{U:{axes_text(mesh, pending)}}}" if pending else ""
    return f"{SHORT.get(local.dtype, local.dtype)}[{','.join(sizes)}]{mark}"


def start_text(mesh: Mesh, start: Start) -> str:
    """The closed form with `p(X)` for the partition id along X: `(6*p(X)-1)//4`."""
    names = {name: f"p({axes_text(mesh, digits)})" for name, digits in start.digits}
    renamed = tuple((names[name], coefficient) for name, coefficient in start.index.terms)
    tail = f"{start.more:+d}" if start.more else ""
    return str(replace(start.index, terms=renamed)) + tail


def places_text(mesh: Mesh, places: Places) -> str:
    """`dim 0 at t-p(Y)*b`: where a box at start `t` begins in blocks of `b` places."""
    return ", ".join(f"dim {dim} at t-p({axes_text(mesh, digits)})*b" for dim, digits, _ in places)


_TEXT: dict[type, Callable[..., str]] = {
    Apply: lambda a, m: (
        a.primitive
        + (f" [{', '.join(f'{n}@{axes_text(m, d)}' for n, d in a.loops)}]" if a.loops else "")
    ),
    AllGather: lambda a, m: f"all_gather dim={a.dim} axes={axes_text(m, a.digits)}",
    AllReduce: lambda a, m: f"all_reduce {a.combine} axes={axes_text(m, a.digits)}",
    ReduceScatter: lambda a, m: (
        f"reduce_scatter {a.combine} dim={a.dim} axes={axes_text(m, a.digits)}"
    ),
    AllToAll: lambda a, m: (
        f"all_to_all split={a.split_dim} concat={a.concat_dim} axes={axes_text(m, a.digits)}"
        + (f" as {axes_text(m, a.arriving)}" if a.arriving else "")
    ),
    CollectivePermute: lambda a, m: f"collective_permute axes={axes_text(m, a.digits)}",
    Fetch: lambda a, m: (
        f"fetch dim={a.dim} axes={axes_text(m, a.digits)} of p = "
        + " and ".join(start_text(m, reading.source) for reading in a.readings)
    ),
    Carry: lambda a, m: (
        f"carry {a.combine} dim={a.dim} axes={axes_text(m, a.digits)}"
        + (" in reverse" if a.reverse else "")
    ),
    Best: lambda a, m: f"best {a.combine} axes={axes_text(m, a.digits)} in blocks of {a.block}",
    Top: lambda a, m: f"top dim={a.dim} axes={axes_text(m, a.digits)} in blocks of {a.block}",
    Fold: lambda a, m: f"fold axes={axes_text(m, a.digits)}",
    DynamicSlice: lambda a, m: (
        f"dynamic_slice dim={a.dim} at p({axes_text(m, a.digits)})*{a.block}"
    ),
    Slice: lambda a, m: f"slice dim={a.dim} [{a.start}:{a.stop}]",
    SliceAt: lambda a, m: f"slice dim={a.dim} at {start_text(m, a.start)} size {a.size}",
    Concatenate: lambda a, m: f"concatenate dim={a.dim}",
    Regroup: lambda a, m: (
        "regroup "
        + ", ".join(
            f"{'*'.join('d' * count)} as {'*'.join(map(str, sizes))}" for count, sizes in a.groups
        )
    ),
    Resize: lambda a, m: f"resize dim={a.dim} to {a.size}",
    Mask: lambda a, m: (
        f"mask dim={a.dim} where p({axes_text(m, a.digits)})*{a.block}+x >= {a.size} with {a.fill}"
    ),
    Dilate: lambda a, m: f"dilate dim={a.dim} by {a.factor}, {a.low} before, {a.high} after",
    MaskAt: lambda a, m: (
        f"mask dim={a.dim} where {start_text(m, a.start)}+x is outside [0,{a.size})"
        + (f" with {a.fill}" if a.fill else "")
    ),
    Choose: lambda a, m: (
        f"choose dim={a.dim} by {start_text(m, a.start)}+x, ends {', '.join(map(str, a.ends))}"
    ),
    Pick: lambda a, m: f"pick dim={a.dim} element {a.index} of axes={axes_text(m, a.digits)}",
    Join: lambda a, m: f"join {a.combine} dim={a.dim}",
    ValueAt: lambda a, m: f"value_at dim={a.dim}",
    Offset: lambda a, m: (
        f"offset p({axes_text(m, a.digits)})*{a.scale}"
        + (f"{a.more:+d}" if a.more else "")
        + ("" if a.component is None else f" on component {a.component}")
    ),
    MaskIndexed: lambda a, m: (
        "mask_indexed " + ", ".join(f"component {c} in [0,{b})" for c, _, b, _ in a.components)
    ),
    Extract: lambda a, m: f"extract {places_text(m, a.places)}",
    Insert: lambda a, m: f"insert {places_text(m, a.places)}",
    FirstMember: lambda a, m: f"first_member axes={axes_text(m, a.digits)}",
    Loop: lambda a, m: f"loop {a.length} times" + (" in reverse" if a.reverse else ""),
    While: lambda a, m: "while",
    Branches: lambda a, m: f"one of {len(a.blocks)} blocks",
    Manual: lambda a, m: f"manual axes={axes_text(m, a.digits)}",
}


def instruction_text(program: SpmdProgram, instruction: Instruction) -> str:
    """`%7 = f32[8@X,256@Y] dot_general [m@Y] %2 %5`."""
    results = ", ".join(f"%{r}" for r in instruction.results)
    types = ", ".join(local_text(program.locals[r]) for r in instruction.results)
    operands = " ".join(f"%{o}" for o in instruction.operands)
    kind = _TEXT[type(instruction.attributes)](instruction.attributes, program.mesh)
    return f"{results} = {types} {kind} {operands}"


def program_text(program: SpmdProgram, graph: Graph | None = None) -> str:
    """The whole program; with the graph, names of arguments and source lines stand behind them."""
    head = [f"SpmdProgram on {program.mesh!r}, every device runs:"]
    for local in program.block.arguments:
        kind = local_text(program.locals[local])
        head.append(f"  %{local} = {kind} argument{_name(program, local, graph)}")
    return "\n".join([*head, *_lines(program, program.block, graph, "  ")])


def _name(program: SpmdProgram, local: int, graph: Graph | None) -> str:
    origin = program.locals[local].origin
    return f" {graph.values[origin].name}" if graph is not None and origin is not None else ""


def _lines(program: SpmdProgram, block: Block, graph: Graph | None, indent: str) -> Iterator[str]:
    for instruction in block.instructions:
        yield indent + instruction_text(program, instruction) + _comment(instruction, graph)
        for title, body in _titled(instruction.attributes):
            arguments = ", ".join(f"%{a}: {local_text(program.locals[a])}" for a in body.arguments)
            yield f"{indent}  {title}({arguments})"
            yield from _lines(program, body, graph, indent + "    ")
    yield indent + "return " + " ".join(f"%{r}" for r in block.results)


def _titled(attributes: Attributes) -> Iterator[tuple[str, Block]]:
    """The blocks inside an instruction, with what they are called."""
    blocks = bodies(attributes)
    numbered = tuple(f"block {k}" for k in range(len(blocks)))
    yield from zip(_TITLES.get(type(attributes), numbered), blocks, strict=True)


_TITLES: dict[type, tuple[str, ...]] = {
    Loop: ("body",),
    While: ("condition", "body"),
    Manual: ("body",),
}


def _comment(instruction: Instruction, graph: Graph | None) -> str:
    source = (
        "" if graph is None or instruction.node is None else graph.nodes[instruction.node].source
    )
    words = [w for w in (str(instruction.why) if _moves(instruction) else "", source) if w]
    return f"  # {'; '.join(words)}" if words else ""


def _moves(instruction: Instruction) -> bool:
    return isinstance(instruction.attributes, COLLECTIVES)
