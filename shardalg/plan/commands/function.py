"""A function of the user's own, named on the command line, and its plan."""

from __future__ import annotations

import argparse
import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shardalg.algebra.notation.read import mesh_of
from shardalg.costs.matrix_unit import check_products
from shardalg.costs.topology import machine
from shardalg.errors import CommandError
from shardalg.plan.commands.messages import UserProgramError, plain

if TYPE_CHECKING:
    from shardalg.algebra.mesh import Mesh
    from shardalg.costs.cost import Cost
    from shardalg.plan.plan import Plan

SPECS = ("in_shardings", "out_shardings", "strategy", "roles", "donate_argnums", "kwargs")
EXAMPLE = """\
example of a specs.py; it may also define out_shardings, strategy, roles, donate_argnums, kwargs:

  import jax
  from jax.sharding import PartitionSpec as P

  def args():
      shapes = (4096, 1024), (64, 4096)
      return tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)

  in_shardings = (P("model", None), P("data", "model"))
"""
CHIP = "tpu_v3"
"""The chip whose rates decide, and whose prices are printed, if none is given."""


def add_function(parser: argparse.ArgumentParser) -> None:
    """Add the options for the function, its arguments, the mesh, the chip and the policy."""
    from shardalg.planner.propagate.options import JIT, POLICIES

    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLE
    option = parser.add_argument
    option(
        "function",
        metavar="module:function",
        help="a function, as my.model:train_step or step.py:step",
    )
    option(
        "--mesh",
        metavar="data=8,model=4",
        help="mesh axes and their sizes (default: the mesh of the arguments)",
    )
    option(
        "--args", type=Path, metavar="FILE",
        help="Python file with args(), which returns shapes or arrays "
        "(default: the function's own module)",
    )  # fmt: skip
    option("--hardware", help=f"chip, as h100, or topology, as tpu_v3:8x8; default {CHIP}")
    option(
        "--policy", choices=(*POLICIES, JIT), default="paper",
        help="how shardings are completed; default %(default)s",
    )  # fmt: skip


def planned(options: argparse.Namespace) -> Plan:
    """Return the plan of the function that the options name.

    Raises:
      CommandError: no such module, function or specs, or the user's code fails.
    """
    # Planning needs no accelerator, and starting one takes seconds.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return plan_of(*loaded(options), options)


def loaded(options: argparse.Namespace) -> tuple[Callable[..., Any], ModuleType]:
    """Return the function that the options name, and the module that defines `args()`.

    Raises:
      CommandError: no such module, function or file, or the user's code fails.
    """
    module, function = _function(options.function)
    return function, module if options.args is None else _run_file(options.args)


def plan_of(function: Callable[..., Any], specs: ModuleType, options: argparse.Namespace) -> Plan:
    """Return the plan of a loaded function.

    Args:
      specs: the module of the user that defines `args()` and, if needed, shardings and roles.

    Raises:
      CommandError: the specs have a misspelt name, or their strategy has another mesh than --mesh.
      HardwareError: the chip has no peak for the item type of a product.
    """
    import shardalg as sa

    _check_names(specs)
    mesh = None if options.mesh is None else mesh_of(options.mesh)
    plan_arguments = {name: getattr(specs, name) for name in SPECS if hasattr(specs, name)}
    strategy_mesh = getattr(plan_arguments.get("strategy"), "mesh", None)
    if None not in (strategy_mesh, mesh) and strategy_mesh != mesh:
        raise CommandError(
            f"--mesh {options.mesh} differs from the mesh of the strategy, {strategy_mesh!r}. "
            "Omit --mesh."
        )
    chip = {"hardware": options.hardware} if options.hardware else {}
    plan_options = sa.Options(policy=options.policy, **chip)
    # `sa.plan` refuses a mesh beside a strategy, which has its own.
    mesh = mesh if strategy_mesh is None else None
    plan = sa.plan(function, *arguments(specs), mesh=mesh, options=plan_options, **plan_arguments)
    # The default chip is not checked, so that every plan can be printed.
    if options.hardware:
        check_products(plan.graph, machine(options.hardware).chip)
    return plan


def _check_names(specs: ModuleType) -> None:
    """Raise an error if the specs have a name that is nearly one of `SPECS`, and not that one.

    Otherwise "in_sharding = ..." would be ignored, and the plan would have other layouts.

    Raises:
      CommandError: such a name.
    """
    for name in SPECS:
        near = difflib.get_close_matches(name, vars(specs), 1, cutoff=0.9)
        if near and not hasattr(specs, name) and near[0] not in SPECS:
            raise CommandError(f"{specs.__file__} defines {near[0]}: write {name}, or rename it.")


def machine_data(cost: Cost, mesh: Mesh) -> dict[str, Any]:
    """Return the chip, its origin, its capacity, and whether the plan fits, as plain data."""
    return {
        "hardware": cost.hardware.name,
        "machine": cost.machine_text,
        "devices": mesh.size,
        "mesh": dict(mesh.shape),
        "fits": bool(cost.at_hints.fits),
        "capacity_bytes": plain(cost.hardware.hbm_bytes),
        "peak_memory_bytes": plain(cost.at_hints.peak_memory_bytes),
    }


def arguments(specs: ModuleType, name: str = "args") -> tuple[Any, ...]:
    """Return the result of `args()`, or of another function of the user's module, as a tuple.

    Raises:
      CommandError: there is no such function, or it fails.
    """
    make = getattr(specs, name, None)
    if not callable(make):
        raise CommandError(
            f"{specs.__file__} defines no {name}(). Define it there, or in a file given as --args; "
            "it returns the arguments as shapes or arrays."
        )
    made = _run_user_code(make, f"{name}() of {specs.__file__}")
    return made if isinstance(made, tuple) else (made,)


def _function(text: str) -> tuple[ModuleType, Callable[..., Any]]:
    """Return the module and the function that a text such as `model.py:step` names.

    The module is a path that ends in .py, or a name as in an import statement; it is run.

    Raises:
      CommandError: no such module or function.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        raise CommandError(f"{text!r} is not a function: write module:function, as model:step.")
    if place.endswith(".py"):
        module = _run_file(Path(place))
    elif all(part.isidentifier() for part in place.split(".")):
        # As with `python -m`, modules of the working directory can be imported.
        sys.path.insert(0, str(Path.cwd()))
        module = _run_user_code(lambda: importlib.import_module(place), f"module {place}")
    else:
        raise CommandError(f"{place!r} is not a module: write package.model, or a .py file.")
    if not callable(getattr(module, name, None)):
        near = difflib.get_close_matches(name, [n for n in dir(module) if n[:1] != "_"], 3)
        hint = f"; did you mean {' or '.join(near)}" if near else ""
        raise CommandError(f"{place} has no function {name!r}{hint}. Name one that it defines.")
    return module, getattr(module, name)


def _run_file(path: Path) -> ModuleType:
    """Run a Python file of the user, and return it as a module.

    Raises:
      CommandError: no such file, or its code fails.
    """
    if not path.is_file():
        raise CommandError(f"{path}: no such file. Give the path of a Python file.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CommandError(f"{path} is not a Python file: its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    # As with `python FILE`, the file can import its neighbours.
    sys.path.insert(0, str(path.resolve().parent))
    _run_user_code(lambda: spec.loader.exec_module(module), str(path))  # type: ignore[union-attr]
    return module


def _run_user_code(run: Callable[[], Any], what: str) -> Any:
    """Return the result of the user's own code, and report its error in one line.

    Args:
      what: names the code in messages, such as `module my.model`.

    Raises:
      CommandError: the module does not exist. UserProgramError: the code fails.
    """
    try:
        return run()
    except SystemExit as error:
        raise UserProgramError(f"{what} ends the process with {error!r}") from error
    except Exception as error:
        # ModuleNotFoundError has two causes. If the named module itself or one of its packages is
        # missing, the option is wrong; a missing import inside it is an error of the user's code.
        missing = f"module {error.name}" if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{what}.".startswith(f"{missing}."):
            words = f"{what}: there is no {missing}. Write the name as in an import statement."
            raise CommandError(words) from None
        raise UserProgramError(f"{what} fails; run it in Python first") from error
