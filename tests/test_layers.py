"""The imports follow the data flow, third parties stay in their place, the code keeps its shape."""

import ast
import statistics
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "shardalg"

# A module imports only from rows above its own, or from its own row's folder.
LAYERS = (
    ("errors", "pause", "drafts"),
    ("io",),
    ("algebra",),
    ("merge",),
    ("sizes",),
    ("graph",),
    ("ops",),
    ("propagate",),
    ("symbolic",),
    ("spmd",),
    ("costs",),
    ("reshard",),
    ("partition",),
    ("verify",),
    ("lower",),
    ("models",),
    ("planning",),
    ("report",),
    ("explain",),
    ("xla",),
    ("plan",),
    ("paper",),
    ("examples",),
    ("commands",),
    ("cli",),
    # what stands outside the flow: the face and its tools
    ("testing", "__init__", "__main__"),
)
LEVEL = {folder: level for level, row in enumerate(LAYERS) for folder in row}

# third party -> the path prefixes inside the package that may import it
PLACES = {
    "jax": (
        "algebra/jax_types.py",
        "graph/abstract.py",
        "graph/tracing/trace.py",
        "graph/annotate.py",
        "graph/arguments.py",
        "graph/evaluate.py",
        "graph/judged.py",
        "graph/tracing/opened.py",
        "graph/tracing/float0.py",
        "graph/tracing/random.py",
        "graph/tracing/written.py",
        "lower/",
        "models/",
        "paper/",
        "examples/",
        "xla/dump.py",
        "xla/xla_process.py",
    ),
    "jaxlib": (
        "graph/tracing/trace.py",
        "graph/annotate.py",
        "graph/evaluate.py",
        "lower/",
        "xla/",
    ),
    "z3": ("merge/",),
    "pandas": ("io/",),
    "matplotlib": ("report/", "paper/"),
}
HEAVY = ("jax", "jaxlib", "sympy", "z3", "pandas", "matplotlib")

MAX_FUNCTION_LINES = 80
MAX_FILE_LINES = 400
MAX_PARAMETERS = 6
# The face of the library: keyword arguments as in `jax.jit`.
MANY_PARAMETERS = {"plan"}


def sources():
    return sorted(p for p in PACKAGE.rglob("*.py") if "__pycache__" not in p.parts)


def module_name(path, package=PACKAGE):
    parts = [package.name, *path.relative_to(package).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree, module, is_package=False):
    """(module, names taken from it) of every import statement, those inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")
            base = base[: len(base) - node.level + is_package] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            yield name, tuple(alias.name for alias in node.names)


def edges(path, known, package=PACKAGE):
    """The modules of the package that `path` imports; a name from a folder may be a module."""
    module = module_name(path, package)
    tree = ast.parse(path.read_text())
    for name, taken in imported(tree, module, path.name == "__init__.py"):
        if name.split(".")[0] != package.name:
            continue
        modules = [f"{name}.{t}" for t in taken if f"{name}.{t}" in known]
        others = not modules or len(modules) < len(taken)
        yield from modules
        if others and name != package.name:
            yield name


def folder(module):
    """`shardalg.algebra.mesh` -> `algebra`; the package itself -> `__init__`."""
    return ([*module.split(".")[1:], "__init__"])[0]


def upward(module, target):
    here, there = folder(module), folder(target)
    return here != there and LEVEL[there] >= LEVEL[here]


def test_every_folder_has_a_layer():
    unknown = {folder(module_name(p)) for p in sources()} - set(LEVEL)
    assert not unknown, f"give {unknown} a place in LAYERS and in docs/architecture.md"


def test_no_upward_import():
    known = {module_name(p) for p in sources()}
    bad = [
        f"{p.relative_to(ROOT)} imports {target}"
        for p in sources()
        for target in edges(p, known)
        if upward(module_name(p), target)
    ]
    assert not bad, "\n".join(bad)


def cycle(graph):
    """The modules of one import cycle, empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_import_cycle():
    known = {module_name(p) for p in sources()}
    graph = {module_name(p): set(edges(p, known)) - {module_name(p)} for p in sources()}
    assert not cycle(graph), "modules import each other: " + " -> ".join(cycle(graph))
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}})


def misplaced(relative, names):
    tops = {name.split(".")[0] for name in names}
    return sorted(t for t in tops & set(PLACES) if not relative.startswith(PLACES[t]))


def test_third_parties_stay_in_their_place():
    bad = []
    for path in sources():
        names = [name for name, _ in imported(ast.parse(path.read_text()), module_name(path))]
        relative = path.relative_to(PACKAGE).as_posix()
        bad += [f"shardalg/{relative} imports {name}" for name in misplaced(relative, names)]
    assert not bad, "\n".join(bad)


def test_import_loads_nothing_heavy():
    code = f"import sys, shardalg; print(*(m for m in {HEAVY} if m in sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == []


@pytest.mark.parametrize(
    ("module", "target", "is_upward"),
    [
        ("shardalg.algebra.mesh", "shardalg.errors", False),
        ("shardalg.algebra.mesh", "shardalg.algebra.digits", False),
        ("shardalg.ops.rule", "shardalg.partition.emit.node", True),
        ("shardalg.errors", "shardalg.io.table", True),
        ("shardalg.plan.plan", "shardalg.cli", True),
        ("shardalg.cli", "shardalg.plan.plan", False),
    ],
)
def test_the_order_is_read_as_the_design_has_it(module, target, is_upward):
    assert upward(module, target) == is_upward


def test_the_checks_see_what_they_must(tmp_path):
    """Imports inside functions, relative ones, and modules taken from a folder all count."""
    package = tmp_path / "shardalg"
    (package / "ops").mkdir(parents=True)
    (package / "ops" / "rule.py").write_text(
        "from . import rows\n"
        "def f():\n    from shardalg.partition.emit import node\n    import jax.numpy\n"
    )
    known = {"shardalg.ops.rule", "shardalg.ops.rows", "shardalg.partition.emit.node"}
    path = package / "ops" / "rule.py"
    found = set(edges(path, known, package))
    assert found == {"shardalg.ops.rows", "shardalg.partition.emit.node"}
    names = [name for name, _ in imported(ast.parse(path.read_text()), "shardalg.ops.rule")]
    assert misplaced("ops/rule.py", names) == ["jax"]
    assert misplaced("lower/jit.py", names) == []


def functions():
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path.relative_to(ROOT), node


def body_lines(function):
    """Lines from `def` to the end, without the docstring."""
    first = function.body[0]
    text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    doc = isinstance(first.value.value, str) if text else False
    lines = function.end_lineno - function.lineno + 1
    return lines - (first.end_lineno - first.lineno + 1) if doc else lines


def parameters(function):
    a = function.args
    names = [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    return len([n for n in names if n not in ("self", "cls")])


def file_lines(path):
    """Lines of a module that are not docstring."""
    tree = ast.parse(path.read_text())
    docs = 0
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node):
            docs += node.body[0].end_lineno - node.body[0].lineno + 1
    return len(path.read_text().splitlines()) - docs


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def test_shape(show):
    """The figures of the style's first table."""
    lengths = {(str(p), f.name, f.lineno): body_lines(f) for p, f in functions()}
    files = {str(p.relative_to(ROOT)): file_lines(p) for p in sources()}
    values = list(lengths.values())
    show(
        f"{len(values)} functions: median {statistics.median(values):.0f} lines, "
        f"95th percentile {percentile(values, 0.95)}, "
        f"over 50: {sum(v > 50 for v in values) / len(values):.1%}\n"
        f"{len(files)} files: median {statistics.median(files.values()):.0f} lines, "
        f"largest {max(files.values())}"
    )
    bad = [f"{k[0]}:{k[2]} {k[1]}: {v} lines" for k, v in lengths.items() if v > MAX_FUNCTION_LINES]
    bad += [f"{name}: {v} lines" for name, v in files.items() if v > MAX_FILE_LINES]
    bad += [
        f"{path}:{f.lineno} {f.name}: {parameters(f)} parameters"
        for path, f in functions()
        if parameters(f) > MAX_PARAMETERS and f.name not in MANY_PARAMETERS
    ]
    assert not bad, "\n".join(bad)
    assert statistics.median(values) <= 8
    assert percentile(values, 0.95) <= 40


def test_shape_measures_without_the_docstring():
    source = 'def f(self, a, *, b):\n    """Two\n    lines."""\n    return a\n'
    function = ast.parse(source).body[0]
    assert (body_lines(function), parameters(function)) == (2, 2)
