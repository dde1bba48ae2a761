"""The imports follow the data flow, third parties stay in their place, the code keeps its shape."""

import ast
import statistics
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "shardalg"

# A module imports only from rows above its own, or from its own row's folder.
LAYERS = (
    ("errors",),
    ("pause", "renamed", "palette"),
    ("files",),
    ("dataframe",),
    ("tables",),
    ("svg",),
    ("pictures",),
    ("drawing",),
    ("algebra",),
    ("merge",),
    ("graph",),
    ("sizes",),
    ("spmd",),
    ("costs",),
    ("planner",),
    ("verify",),
    ("lower",),
    ("show",),
    ("xla",),
    ("plan",),
    ("models",),
    ("lab",),
    ("cli",),
    # outside the data flow: the public names and what tests share
    ("testing", "__init__", "__main__"),
)
LEVEL = {folder: level for level, row in enumerate(LAYERS) for folder in row}

# third party -> the path prefixes inside the package that may import it
PLACES = {
    "jax": (
        "algebra/jax_meshes.py",
        "algebra/notation/jax_specs.py",
        "graph/abstract.py",
        "graph/tracing/attention.py",
        "graph/tracing/grouped.py",
        "graph/tracing/trace.py",
        "graph/annotate.py",
        "graph/arguments.py",
        "graph/evaluate.py",
        "graph/ops/judged.py",
        "graph/tracing/manual.py",
        "graph/tracing/parts.py",
        "graph/tracing/remat.py",
        "graph/tracing/opened.py",
        "graph/tracing/written.py",
        "graph/tracing/refused.py",
        "graph/tracing/subgroups.py",
        "graph/tracing/symbolic_trace.py",
        "lower/",
        "models/",
        "lab/",
        "plan/patching/edits.py",
        "plan/patching/explicit_trace.py",
        "plan/patching/probes.py",
        "plan/patching/user_code.py",
        "plan/rules/logical_rules.py",
        "plan/rules/named_arrays.py",
        "planner/calls/",
        "xla/stablehlo/",
        "xla/audit/audit_calls.py",
        "xla/dump.py",
        "xla/xla_process.py",
        "xla/aot_process.py",
    ),
    "jaxlib": (
        "graph/tracing/trace.py",
        "graph/annotate.py",
        "graph/evaluate.py",
        "lower/",
        "xla/",
    ),
    "z3": ("merge/",),
    "pandas": ("dataframe.py",),
    "matplotlib": (
        "drawing.py",
        "pictures.py",
        "algebra/draw_halos.py",
        "algebra/draw_layouts.py",
        "show/",
        "lab/",
    ),
}
HEAVY = ("jax", "jaxlib", "sympy", "z3", "pandas", "matplotlib")

MAX_FUNCTION_LINES = 80
MAX_FILE_LINES = 400
MAX_PARAMETERS = 6
# The face of the library: keyword arguments as in `jax.jit`.
MANY_PARAMETERS = {"plan", "pipeline", "strategies", "compare", "search", "sweep", "at_most"}


def sources():
    return sorted(p for p in PACKAGE.rglob("*.py") if "__pycache__" not in p.parts)


def parsed(path):
    """Return the file's syntax tree, which nobody changes."""
    return tree_of(path.read_text())


@cache
def tree_of(text):
    return ast.parse(text)


def module_name(path, package=PACKAGE):
    parts = [package.name, *path.relative_to(package).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# What imports by a string; its uses here are the lazy public names, and a user's own module.
BY_STRING = ("import_module", "__import__")
LAZY = (
    "shardalg/__init__.py",
    "shardalg/lab/__init__.py",
    "shardalg/plan/commands/function.py",
)


def imported(nodes, module, is_package=False):
    """Yield (module, names) of every import, also inside functions and strings."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")
            base = base[: len(base) - node.level + is_package] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            yield name, tuple(alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and called(node) in BY_STRING and node.args:
            yield from ((name, ()) for name in stated(node.args[0]))


def called(node):
    """Return the last name of a called function: `import_module` of `importlib.import_module`."""
    return getattr(node.func, "attr", None) or getattr(node.func, "id", None)


def stated(node):
    """Return the module that a string names; nothing if it is computed."""
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def computed(tree):
    """Lines that import what a string computed at run time names."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and called(n) in BY_STRING]
    return [n.lineno for n in calls if not (n.args and stated(n.args[0]))]


def runtime(tree):
    """Return all nodes except those below `if TYPE_CHECKING:`."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        typing = isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        waiting += node.orelse if typing else ast.iter_child_nodes(node)


@cache
def imports_in(text, module, is_package, keep):
    """Return the imports of a file's text; `keep` says which of its nodes count."""
    return tuple(imported(keep(tree_of(text)), module, is_package))


def edges(path, known, package=PACKAGE, *, keep=ast.walk):
    """Return the modules of the package that `path` imports; names of folders may be modules."""
    module = module_name(path, package)
    for name, taken in imports_in(path.read_text(), module, path.name == "__init__.py", keep):
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
    """Return the modules of one import cycle, empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def imports(paths, package=PACKAGE):
    """Per module, the modules of the package that it imports when it runs."""
    known = {module_name(p, package) for p in paths}
    found = {module_name(p, package): set(edges(p, known, package, keep=runtime)) for p in paths}
    return {module: targets - {module} for module, targets in found.items()}


def test_no_import_cycle():
    found = cycle(imports(sources()))
    assert not found, "modules import each other: " + " -> ".join(found)
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}})


def test_no_import_by_a_computed_string():
    """The listed exceptions have no edge that a test could follow."""
    places = {p.relative_to(ROOT).as_posix(): computed(parsed(p)) for p in sources()}
    assert {place for place, lines in places.items() if lines} == set(LAZY)


def test_cycles_in_strings_are_seen(tmp_path):
    """A module name given to importlib is an import; one below TYPE_CHECKING is none."""
    package = tmp_path / "shardalg"
    package.mkdir()
    hidden = "def f():\n    return importlib.import_module('shardalg.mesh')\n"
    (package / "mesh.py").write_text("from shardalg import jax_types\n")
    (package / "jax_types.py").write_text(f"import importlib\n{hidden}")
    paths = sorted(package.glob("*.py"))
    assert set(cycle(imports(paths, package))) == {"shardalg.mesh", "shardalg.jax_types"}
    (package / "jax_types.py").write_text(
        f"{hidden.replace('importlib.import_module', '__import__')}"
    )
    assert cycle(imports(paths, package))
    (package / "jax_types.py").write_text("if TYPE_CHECKING:\n    from shardalg import mesh\n")
    assert not cycle(imports(paths, package))
    tree = ast.parse("import_module(f'shardalg.{name}')\nimport_module('shardalg.mesh')\n")
    assert computed(tree) == [1]


MAX_FILES = 15


def crowded(paths):
    """Folders with more files than a reader takes in at a glance."""
    counts = Counter(path.parent for path in paths)
    return {folder: count for folder, count in counts.items() if count > MAX_FILES}


def test_no_folder_is_crowded():
    assert not crowded(sources()), f"a room is missing: {crowded(sources())}"
    assert crowded([Path(f"room/{n}.py") for n in range(MAX_FILES + 1)])


# Names that two files bear, and the one meaning that they share.
SAME_MEANING = {
    "collectives": "collectives: their prices; as calls of jax",
    "digits": "digits of a partition id; lemmas of them",
    "explore": "the exploration of a Transformer; its command",
    "manual": "a manual region (`shard_map`): traced; as instructions",
    "pipeline": "stages in their order: the passes over a program; the layers of a model",
    "limits": "the parts of a step's time; the paper's columns by what limits them",
    "loops": "loops of an operator's row; loops that are pipelines",
    "run": "a program on the host; the command that runs one on devices",
    "tables": "the type of every table; the tables of a plan",
    "window": "a window over a dimension; the operators that have one",
    "windows": "a dimension that is read through a window: its row; planned",
}


def test_a_name_stands_twice_only_for_one_meaning():
    counts = Counter(p.name for p in sources() if p.name != "__init__.py")
    twice = {name.removesuffix(".py") for name, count in counts.items() if count > 1}
    # a family of instructions: what it is; simulated; run; proved
    families = {p.stem for p in (PACKAGE / "spmd/instructions").glob("*.py")}
    assert not twice - families - set(SAME_MEANING), "another meaning wants another name"


def reached(graph, module):
    """All modules that importing one brings in, itself among them."""
    found, left = set(), {module}
    while left:
        found |= left
        left = {target for each in left for target in graph.get(each, ())} - found
    return found


EMITS = ("shardalg.planner.partition.emit", "shardalg.planner.partition.partition")


def test_what_decides_imports_nothing_that_emits():
    """Not through others either: a choice and a path are values, `planner.partition.emit` writes
    them."""
    graph = imports(sources())
    pure = [
        m
        for m in graph
        if m.startswith(("shardalg.planner.partition.choose", "shardalg.planner.reshard"))
    ]
    bad = {m: sorted(t for t in reached(graph, m) if t.startswith(EMITS)) for m in pure}
    assert len(pure) > 10
    assert not any(bad.values()), {m: targets for m, targets in bad.items() if targets}
    assert reached({"a": {"b"}, "b": {"c", "a"}}, "a") == {"a", "b", "c"}


def misplaced(relative, names):
    tops = {name.split(".")[0] for name in names}
    return sorted(t for t in tops & set(PLACES) if not relative.startswith(PLACES[t]))


def test_third_parties_stay_in_their_place():
    bad = []
    for path in sources():
        is_package = path.name == "__init__.py"
        found = imports_in(path.read_text(), module_name(path), is_package, runtime)
        names = [name for name, _ in found]
        relative = path.relative_to(PACKAGE).as_posix()
        bad += [f"shardalg/{relative} imports {name}" for name in misplaced(relative, names)]
    assert not bad, "\n".join(bad)


def test_import_loads_nothing_heavy():
    code = f"import sys, shardalg; print(*(m for m in {HEAVY} if m in sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == []


LATER = (
    "sympy", "mpmath", "z3", "pandas", "matplotlib", "scipy", "shardalg.planner.trials",
    "shardalg.plan.explain.decisions", "shardalg.costs.cost", "shardalg.costs.memory",
    "shardalg.costs.step_time",
)  # fmt: skip
FIRST_ANSWERS = f"""
import sys, jax, shardalg as sa
from jax.sharding import PartitionSpec as P
x = jax.ShapeDtypeStruct((16, 8), "float32")
plan = sa.plan(lambda x: (x @ x.T).sum(), x, mesh=sa.Mesh({{"X": 4}}), in_shardings=(P("X"),))
print("plan:", *(m for m in {LATER} if m in sys.modules))
plan.replan(mesh=sa.Mesh({{"X": 2}}))
print("replan:", *(m for m in {LATER} if m in sys.modules))
"""


def test_the_first_plan_and_replan_load_only_what_they_need():
    command = [sys.executable, "-c", FIRST_ANSWERS]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["plan:", "replan:"]


@pytest.mark.parametrize(
    ("module", "target", "is_upward"),
    [
        ("shardalg.algebra.mesh", "shardalg.errors", False),
        ("shardalg.algebra.mesh", "shardalg.algebra.digits", False),
        ("shardalg.graph.ops.rule", "shardalg.planner.partition.emit.node", True),
        ("shardalg.errors", "shardalg.tables", True),
        ("shardalg.plan.plan", "shardalg.cli", True),
        ("shardalg.cli", "shardalg.plan.plan", False),
    ],
)
def test_the_order_is_read_as_the_design_has_it(module, target, is_upward):
    assert upward(module, target) == is_upward


def test_the_checks_see_what_they_must(tmp_path):
    """Imports inside functions, relative ones, and modules taken from a folder all count."""
    package = tmp_path / "shardalg"
    (package / "graph" / "ops").mkdir(parents=True)
    (package / "graph" / "ops" / "rule.py").write_text(
        "from . import rows\n"
        "def f():\n    from shardalg.planner.partition.emit import node\n    import jax.numpy\n"
    )
    known = {
        "shardalg.graph.ops.rule",
        "shardalg.graph.ops.rows",
        "shardalg.planner.partition.emit.node",
    }
    path = package / "graph" / "ops" / "rule.py"
    found = set(edges(path, known, package))
    assert found == {"shardalg.graph.ops.rows", "shardalg.planner.partition.emit.node"}
    names = [name for name, _ in imported(ast.walk(parsed(path)), "shardalg.graph.ops.rule")]
    assert misplaced("graph/ops/rule.py", names) == ["jax"]
    assert misplaced("lower/jit.py", names) == []


def offered(body):
    """Functions, or methods, that others may call."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [n for n in body if isinstance(n, kinds) and not n.name.startswith("_")]


def undocumented(trees):
    """Return public objects without a docstring; a method may inherit it."""
    trees = list(trees)
    classes = {n.name: n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}

    def said(name, owner):
        own = [m for m in offered(owner.body) if m.name == name]
        above = [classes[n] for b in owner.bases if (n := getattr(b, "id", "")) in classes]
        return any(map(ast.get_docstring, own)) or any(said(name, base) for base in above)

    for tree in trees:
        yield from (f for f in offered(tree.body) if not ast.get_docstring(f))
        for owner in (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)):
            yield from (f for f in offered(owner.body) if not said(f.name, owner))


def test_what_others_call_is_documented():
    trees = {p: parsed(p) for p in sources()}
    place = {f: p for p, tree in trees.items() for f in ast.walk(tree)}
    found = list(undocumented(trees.values()))
    bad = [f"{place[f].relative_to(ROOT)}:{f.lineno} {f.name}" for f in found]
    assert not bad, "\n".join(bad)
    source = "def f(): pass\nclass C:\n    def g(self): pass\n    def _h(self): pass\n"
    assert [f.name for f in undocumented([ast.parse(source)])] == ["f", "g"]
    below = ast.parse("class C:\n  def g(self): 'Said.'\nclass D(C):\n  def g(self): pass\n")
    assert not list(undocumented([below]))


def functions():
    for path in sources():
        for node in ast.walk(parsed(path)):
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
    tree = parsed(path)
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
    long = [f"{name}: {v} lines" for name, v in files.items() if v > MAX_FILE_LINES]
    bad += long if len(long) > 0.05 * len(files) else []
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
