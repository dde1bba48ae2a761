"""Patches of a user's source, compared with XLA's own program of the patched functions."""

import doctest
import importlib.util
import re
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.plan.patching.edits import Edit, applied
from shardalg.plan.patching.user_code import user_files
from tests.patching import programs

SOURCE = Path(programs.__file__)
ROUTED = (
    programs.expert_step,
    programs.EXPERT_ARGS,
    {"expert": 8},
    (programs.EXPERTS, P("expert")),
    (P(), programs.EXPERTS),
)
CUT = (
    programs.language_step,
    programs.CUT_ARGS,
    {"data": 2, "model": 4},
    (programs.CUT, P("data")),
    (P(), programs.CUT),
)
SUM = (
    programs.two_layouts,
    programs.SUM_ARGS,
    {"x": 4, "y": 2},
    (programs.PILLARS, programs.PILLARS, programs.SLAB),
    programs.SLAB,
)


def plan_of(fn, args, mesh, entering, leaving=None):
    layouts = {"in_shardings": entering, "out_shardings": leaving}
    return sa.plan(fn, *args, mesh=sa.Mesh(mesh), **layouts)


def patched(case, **more):
    return plan_of(*case).patch(hardware="h100", partitioner="shardy", progress=False, **more)


def loaded(text, folder):
    """Return the module of a source text."""
    path = folder / "programs.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("patched_programs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ran(fn, args, mesh, entering, leaving):
    """Return the results of `jax.jit` on eight CPU devices."""
    auto = (jax.sharding.AxisType.Auto,) * len(mesh)
    mesh = jax.make_mesh(tuple(mesh.values()), tuple(mesh), axis_types=auto)
    random = np.random.default_rng(0)

    def drawn(a):
        if a.dtype == np.int32:
            return random.integers(0, 8, a.shape, dtype=np.int32)
        return (random.normal(size=a.shape) * 0.05).astype(a.dtype)

    def placed(tree):
        is_leaf = lambda s: isinstance(s, P)  # noqa: E731
        return jax.tree.map(lambda s: NamedSharding(mesh, s), tree, is_leaf=is_leaf)

    shardings = {"in_shardings": placed(entering), "out_shardings": placed(leaving)}
    with jax.set_mesh(mesh):
        return jax.tree.map(np.asarray, jax.jit(fn, **shardings)(*jax.tree.map(drawn, args)))


def check_whole(case, tmp_path):
    """Check a patch: git, the figures, every line, the values, and a second run."""
    found = patched(case)
    assert found.is_reached
    assert found.chosen
    for row in found.lines:
        assert row["worth_bytes"] > 0 or row["worth_s"] > 0
    answer = found.check()
    assert answer.ok
    assert answer.after.wire_bytes == found.after.wire_bytes < answer.before.wire_bytes
    # `git apply` takes the diff, and gives the text that was checked.
    folder = tmp_path / "repository"
    target = folder / "tests" / "patching" / "programs.py"
    target.parent.mkdir(parents=True)
    target.write_text(SOURCE.read_text())
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    file = found.write(tmp_path / "fix.patch")
    subprocess.run(["git", "apply", str(file)], cwd=folder, check=True)
    (text,) = found.texts.values()
    assert target.read_text() == text
    # The patched module computes the same values, and needs no patch.
    module = loaded(text, tmp_path)
    fn, args, *rest = case
    new = getattr(module, fn.__name__)
    for before, after in zip(
        *(jax.tree.leaves(ran(each, args, *rest)) for each in (fn, new)), strict=True
    ):
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-6)
    second = patched((new, args, *rest))
    assert not second.chosen
    assert "Nothing to add" in str(second)
    return found


@pytest.mark.slow
def test_a_line_between_two_layouts_of_a_sum(tmp_path):
    found = check_whole(SUM, tmp_path)
    assert found.before.wire_bytes > 4 * found.plan_bytes
    assert [row["place"] for row in found.lines] == ["programs.py:59"]
    assert "+    total = jax.lax.with_sharding_constraint(total, P(" in found.diff
    assert "jax.set_mesh(mesh)" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("case", [ROUTED, CUT], ids=["experts", "vocabulary"])
def test_patches_of_training_steps(case, tmp_path):
    check_whole(case, tmp_path)


def test_nothing_to_add_where_xla_agrees():
    x, w = programs.array(64, 32), programs.array(32, 64)
    found = patched((programs.agreeing, (x, w), {"x": 8}, (P("x"), P())))
    assert not found.chosen
    assert found.diff == ""
    assert "Nothing to add: XLA sends 0 B" in str(found)
    with pytest.raises(sa.PatchError, match="nothing to write: Nothing to add"):
        found.write("unused.patch")


def test_no_patch_is_an_answer():
    """XLA gathers the batch of a grouped convolution under every constraint."""
    x, w = programs.array(16, 32, 32, 16), programs.array(3, 3, 4, 16)
    found = patched((programs.grouped, (x, w), {"data": 8}, (P("data"), P()), P("data")))
    assert not found.is_reached
    assert not found.chosen
    assert "No patch was found" in str(found)
    assert not found.check().ok


HALVES = (programs.halves, (programs.array(64, 512),), {"data": 8}, (P("data"),))


@pytest.mark.slow
def test_a_sharding_that_the_plan_does_not_have_may_help():
    """The plan exchanges rows in pairs of devices, which no PartitionSpec can say."""
    found = patched(HALVES)
    assert found.is_reached
    assert found.lines["place"] == ("programs.py:74",)
    assert "P(None, None, " in found.diff
    assert found.check().ok


def test_open_arguments_and_results_count_as_a_line():
    found = patched(HALVES, trials=2)
    assert found.lines["place"] == ("jax.jit",)
    assert found.after.wire_bytes < found.before.wire_bytes
    assert set(found.jit_kwargs) == {"in_shardings", "out_shardings", "donate_argnums"}
    assert "jax.jit(fn, **plan.jit_kwargs())" in str(found)


def test_functions_are_as_before_afterwards():
    before = programs.two_layouts.__code__
    plan = plan_of(*SUM)
    plan.patch(hardware="h100", partitioner="shardy", trials=2, progress=False)
    assert programs.two_layouts.__code__ is before
    assert not [name for name in vars(programs) if name.startswith("_shardalg")]


def test_only_functions_of_the_user_that_run_are_found():
    plan = plan_of(*SUM)
    _, files = user_files(lambda: plan._traced.changed(lambda fn: fn))
    found = {Path(file.path).name: [f.__name__ for f in file.functions] for file in files}
    assert found["programs.py"] == ["two_layouts"]


def test_plans_that_have_no_source(tmp_path):
    plan = plan_of(*SUM)
    plan.save(tmp_path / "plan.json")
    with pytest.raises(sa.PatchError, match="loaded from a file and has no function"):
        sa.load_plan(tmp_path / "plan.json").patch()
    with pytest.raises(sa.PatchError, match="trials is 0"):
        plan.patch(trials=0)
    space = {}
    exec("def typed(x): return x + 1.0", space)
    at_prompt = plan_of(space["typed"], (programs.array(8),), {"x": 8}, (P("x"),))
    with pytest.raises(sa.PatchError, match="no function with source"):
        at_prompt.patch(hardware="h100")
    (B,) = sa.dims("B", hint=64)
    named = plan_of(
        programs.agreeing, (programs.array(B, 32), programs.array(32, 8)), {"x": 8}, None
    )
    with pytest.raises(sa.PatchError, match="has named sizes"):
        named.patch()


def test_edits_at_one_place_nest():
    edits = [
        Edit(1, 4, 12, "outer("), Edit(1, 4, 13, "inner("),
        Edit(1, 5, 8, ", inner)"), Edit(1, 8, 7, ", outer)"),
    ]  # fmt: skip
    assert applied("y = x.T\n", [*edits[:3], Edit(1, 7, 9, ", outer)")]) == (
        "y = outer(inner(x, inner).T, outer)\n"
    )


@pytest.mark.slow
def test_the_page_about_patches_runs(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs/patch.md"
    files = re.findall(r"<!-- file: (\S+) -->\n```\n(.*?)```", page.read_text(), re.DOTALL)
    assert [name for name, _ in files] == ["summed.py", "product.py"]
    for name, text in files:
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert found.attempted >= 10
    assert not found.failed


HEAD = "import jax\nfrom jax.sharding import PartitionSpec as P\n\n\n"
BODY = (
    "def f(a, b, c):\n    t = a + b\n"
    '    return jax.lax.with_sharding_constraint(t, P(None, ("x", "y"))) + c'
)
SOURCES = {
    "windows": (HEAD + BODY + "\n").replace("\n", "\r\n"),
    "form feed": HEAD + "X = 'a\u2028b\x0bc\x85d'\n\x0c\n" + BODY + "\n",
    "no last line": HEAD + BODY,
    "augmented": HEAD + BODY.replace("t = a + b", "t = a\n    t += b") + "\n",
    "tuple": HEAD + BODY.replace("t = a + b", "t, _ = (a + b), None") + "\n",
    "latin": "# -*- coding: latin-1 -*-\n" + HEAD + "# \xfcber\n" + BODY + "\n",
    "hidden names": "import jax\n\nQ = jax.sharding.PartitionSpec\n" + BODY.replace(
        "    t = a + b", "    P = jax = a\n    t = jax + b", 1
    ).replace("jax.lax", "__import__('jax').lax").replace("P(None", "Q(None"),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", SOURCES)
def test_sources_of_every_form(kind, tmp_path):
    """The diff keeps the bytes of the file, and `git apply` takes it."""
    folder = tmp_path / "repository"
    folder.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    path = folder / "summed.py"
    path.write_bytes(SOURCES[kind].encode("latin-1" if kind == "latin" else "utf-8"))
    spec = importlib.util.spec_from_file_location(f"summed_{kind.replace(' ', '_')}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = patched((module.f, *SUM[1:]), trials=12)
    assert found.is_reached
    assert found.check().ok
    file = found.write(tmp_path / "fix.patch")
    before = path.read_bytes()
    subprocess.run(["git", "apply", str(file)], cwd=folder, check=True)
    after = path.read_bytes()
    assert len(after) > len(before)
    assert after.count(b"\r\n") in (0, after.count(b"\n"))
    exec(compile(after, str(path), "exec"), {"__name__": "patched"})


def test_a_file_that_changed_since_it_was_loaded(tmp_path):
    module = loaded(HEAD + BODY + "\n", tmp_path)
    plan = plan_of(module.f, *SUM[1:])
    (tmp_path / "programs.py").write_text(HEAD + BODY.replace("a + b", "a * b * b") + "\n")
    with pytest.raises(sa.PatchError, match="its file changed since it was loaded"):
        plan.patch(hardware="h100", progress=False)
