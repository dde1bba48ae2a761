"""Tracing of StableHLO text, or of a file of it, so that it can be planned."""

from __future__ import annotations

import re
from collections.abc import Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

import jax
from jax.extend.mlir import ir
from jax.interpreters import mlir

from shardalg.algebra.mesh import Mesh
from shardalg.errors import NotationError, ShardingError, StrategyError, TraceError
from shardalg.planner.calls.jitted import STATED, Stated
from shardalg.xla.stablehlo.interpret import StablehloProgram
from shardalg.xla.stablehlo.text_layouts import (
    HLO,
    INLINED,
    SHARDY,
    hlo_mesh,
    shardy_mesh,
    split_axes,
)
from shardalg.xla.stablehlo.text_places import shown
from shardalg.xla.stablehlo.text_step import border_type

_NO_PATH = "text.mlir"
_DONATED = ("tf.aliasing_output", "jax.buffer_donor")


def read_stablehlo(text: str | Path) -> Any:
    """Trace StableHLO text; `plan` takes the result as it takes `jax.jit(f).trace(...)`.

    The mesh, the shardings of arguments and results, the donated arguments and the constraints
    inside are read from the text. Shardings are Shardy's (`sdy.sharding`) or HLO's
    (`mhlo.sharding`). HLO's have the mesh of fewest axes on which all can be expressed, with axes
    `d0`, `d1`, ... The plan names the source lines of the text's locations, if it was exported with
    `as_text(debug_info=True)`.

    Args:
      text: text of `jax.jit(f).lower(...).as_text()` or of
        `jax.export.export(...)(...).mlir_module()`, or the path of a file with such text.

    Raises:
      TraceError: there is no such file, the text does not parse, the module has no function `main`,
        or an operator cannot be read.
      NotationError, ShardingError: a sharding does not fit.

    >>> import jax, shardalg as sa
    >>> x = jax.ShapeDtypeStruct((8, 4), "float32")
    >>> text = jax.jit(lambda x: x.sum(0)).lower(x).as_text()
    >>> sa.plan(sa.read_stablehlo(text), mesh=sa.Mesh({"x": 4}), in_shardings=("[x, None]",))
    Plan on Mesh(x=4) for 4 x tpu_v3 (the default chip; devices of the mesh), ...

    Source: the StableHLO specification; Shardy's dialect.
    """
    text, path = _text(text)
    with mlir.make_ir_context():
        try:
            module = ir.Module.parse(text)
        except ir.MLIRError as error:
            raise TraceError(
                f"{path} is no StableHLO that jaxlib reads: {str(error).strip()}\nPass what "
                "jax.jit(f).lower(...).as_text() prints, or the path of a file of it."
            ) from None
        return _traced(module, path)


def _text(text: str | Path) -> tuple[str, str]:
    """Return the text and its path; the path is "text.mlir" if the text itself is given."""
    if not isinstance(text, str | Path):
        raise TraceError(
            f"{text!r:.80} is no text: pass what jax.jit(f).lower(...).as_text() prints, or a path."
        )
    # Every module has a brace, and no path has a line break.
    if isinstance(text, str) and ("\n" in text or "{" in text):
        return text, _NO_PATH
    try:
        return Path(text).read_text(), str(text)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(
            f"{text} is no file of StableHLO text: {error}. Pass the text, or the path of a file."
        ) from None


def _traced(module: Any, path: str) -> Any:
    """Trace the function `main` of a parsed module; `path` names the text in messages.

    The result of `jax.jit(...).trace` also has the layouts that the text states for its arguments
    and results, as the attribute `STATED`.

    Raises:
      TraceError: the module has no function `main`.
    """
    operators = [op.operation for op in module.body.operations]
    functions = {op.attributes["sym_name"].value: op for op in operators if op.name == "func.func"}
    if "main" not in functions:
        function_names = ", ".join(functions) or "no functions"
        raise TraceError(
            f"{path} has {function_names}, and no function 'main'. Name the one to plan so."
        )
    program = StablehloProgram(functions, *_meshes(module, operators, path))
    main = functions["main"]
    block = main.regions[0].blocks[0]
    types = [jax.ShapeDtypeStruct(*border_type(value.type)) for value in block.arguments]
    result_types = [
        border_type(kind)
        for kind in ir.FunctionType(main.attributes["function_type"].value).results
    ]
    attributes = _attributes(main, "arg_attrs", len(types))

    def run(*args: Any) -> Any:
        results = program.call("main", *args)
        return results[0] if len(results) == 1 else results

    # An argument's location has the form `loc("x")` if the exporter kept its name. If two names are
    # equal or no identifiers, all arguments are numbered.
    names = [re.sub(r"\W+", "_", str(v.location)[4:-1]).strip("_") for v in block.arguments]
    if len({*names}) < len(names) or not all(name.isidentifier() for name in names):
        names = [f"arg{i}" for i in range(len(names))]
    # `shardalg.plan` takes the names of arguments from the signature.
    parameters = [Parameter(name, Parameter.POSITIONAL_ONLY) for name in names]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__name__ = Path(path).stem.replace("-", "_")
    *_, return_op = block.operations
    argument_places = [(f"argument {i}", str(v.location)) for i, v in enumerate(block.arguments)]
    argument_layouts = _layouts(
        program, attributes, [kind.shape for kind in types], argument_places
    )
    result_places = [
        (f"result {i}", str(return_op.operation.location)) for i in range(len(result_types))
    ]
    result_attributes = _attributes(main, "res_attrs", len(result_types))
    result_layouts = _layouts(
        program, result_attributes, [shape for shape, _ in result_types], result_places
    )
    traced = jax.jit(
        run,
        donate_argnums=[i for i, each in enumerate(attributes) if any(n in each for n in _DONATED)],
        keep_unused=True,
    ).trace(*types)
    # JAX has no layouts with open axes, priorities or uneven blocks at the border of a function.
    setattr(traced, STATED, Stated(program.mesh, argument_layouts, result_layouts))
    return traced


def _attributes(main: Any, name: str, count: int) -> list[Any]:
    """Return the attributes of each argument or result of a function.

    Args:
      name: "arg_attrs" or "res_attrs". count: number of arguments or results.
    """
    return [*main.attributes[name]] if name in main.attributes else [{}] * count


def _layouts(
    program: StablehloProgram,
    attributes: Sequence[Any],
    shapes: Sequence[Any],
    places: Sequence[tuple[str, str]],
) -> Any:
    """Return the sharding of each argument or result; None if the text does not give one.

    Args:
      attributes: per argument or result, the dictionary of its attributes.
      places: per argument or result, its name and its location.

    Raises:
      NotationError, ShardingError: a sharding that does not fit, or that has partial sums.
    """
    shardings = []
    for attribute, shape, (value_name, location) in zip(attributes, shapes, places, strict=True):
        # A text exported with Shardy may have both kinds of shardings; Shardy's say more.
        layout = (
            attribute[SHARDY]
            if SHARDY in attribute
            else attribute[HLO].value
            if HLO in attribute
            else None
        )
        place = f"{shown(location, program.path)}: {value_name} of shape {tuple(shape)}"
        try:
            sharding = None if layout is None else program.layout(layout, shape)
        except (NotationError, ShardingError, StrategyError) as error:
            raise type(error)(f"{place}: {error}") from None
        if sharding is not None and sharding.unreduced:
            raise NotationError(
                f"{place}: {layout} has partial sums at the border of the program. A plan supports "
                "partial sums only inside the program. Leave out unreduced=: an argument is then "
                "the sum, and a result is reduced before it is returned."
            )
        shardings.append(sharding)
    return tuple(shardings)


def _meshes(
    module: Any, operators: Sequence[Any], path: str
) -> tuple[Mesh | None, str, dict[str, Mesh]]:
    """Return (mesh, path, Shardy's meshes by name).

    The mesh is the one of Shardy's that the shardings name, else HLO's common mesh, or None.
    """
    # JAX may state meshes that no sharding names. If some are named, the others do not count. A
    # sharding of Shardy names its mesh (`<@mesh`), or contains it as text (`<mesh<...`, INLINED).
    text = str(module)
    mesh_attributes = [op.attributes for op in operators if op.name == "sdy.mesh"]
    meshes_by_name = {each["sym_name"].value: shardy_mesh(each["mesh"]) for each in mesh_attributes}
    inlined_meshes = {
        found: ir.Attribute.parse(f"#sdy.{found}") for found in re.findall(f"<({INLINED})", text)
    }
    used_names = {
        name for name in meshes_by_name if re.search(rf"<@{re.escape(name)}\b", text)
    } | inlined_meshes.keys()
    meshes_by_name |= {found: shardy_mesh(attribute) for found, attribute in inlined_meshes.items()}
    shardy_meshes = [
        mesh
        for name, mesh in meshes_by_name.items()
        if mesh.axes and (name in used_names or not used_names)
    ]
    if len({mesh.size for mesh in shardy_meshes}) > 1:
        raise TraceError(
            f"{path} has meshes of {sorted({mesh.size for mesh in shardy_meshes})} devices: "
            f"{shardy_meshes}. Meshes of one program have the same devices; remove the others from "
            "the text."
        )
    if shardy_meshes:
        return split_axes(shardy_meshes[0], text), path, meshes_by_name
    texts = re.findall(r'mhlo\.sharding = "(\{[^"]*\})"', text)
    return (hlo_mesh(texts) if texts else None), path, meshes_by_name
