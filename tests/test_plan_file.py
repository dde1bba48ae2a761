"""Saved plans: they come back whole, need their function again to run, and refuse every edit."""

import json
import os
import stat
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.costs import hardware
from shardalg.errors import LoweringError, PlanFileError
from shardalg.plan import plan_file, planning
from tests import plan_edits, small_step
from tests.small_step import MESH

X, W = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((7, 16), (16, 6)))


def matmul(x, w):
    return jnp.tanh(sa.annotate(x @ w, "hidden"))


def tree(params, x):
    return {"y": x @ params["w"]}


def matmul_plan():
    sites = {"hidden": P("X", "Y")}
    specs = (P("X", "Y"), P("Y", None))
    return sa.plan(matmul, X, W, strategy=sa.Strategy(MESH, in_shardings=specs, sites=sites))


@pytest.fixture
def path(tmp_path):
    matmul_plan().save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


@pytest.fixture(scope="module")
def step_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("step") / "step.json"
    small_step.plan().save(path)
    return path


@pytest.fixture(scope="module")
def loaded_step(step_file):
    return sa.load_plan(step_file)


def test_a_train_step_comes_back_whole(loaded_step):
    plan, loaded = small_step.plan(), loaded_step
    assert loaded.text() == plan.text()
    assert repr(loaded).split(",")[:3] == repr(plan).split(",")[:3]
    for table in ("shardings", "collectives", "warnings"):
        assert getattr(loaded, table)().equals(getattr(plan, table)())
    assert loaded.cost("tpu_v3").table() == plan.cost("tpu_v3").table()
    assert loaded.cost("tpu_v3").peak_memory_bytes == plan.cost("tpu_v3").peak_memory_bytes
    assert loaded.verify().summary() == plan.verify().summary()
    assert list(loaded.explain("ffn_hidden")) == list(plan.explain("ffn_hidden"))


def test_a_loaded_plan_saves_to_the_same_file(loaded_step, step_file, tmp_path):
    loaded_step.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == step_file.read_bytes()


def test_a_loaded_plan_replans(path):
    loaded = sa.load_plan(path)
    again = loaded.replan(sa.Strategy(MESH, in_shardings=(P("X"), P())))
    assert again.collectives()["kind"].tolist() == ["all_gather"]


def test_a_loaded_plan_runs_its_function(path):
    loaded = sa.load_plan(path)
    x, w = np.ones((7, 16), np.float32) / 32, np.ones((16, 6), np.float32)
    np.testing.assert_allclose(loaded.lower(fn=matmul)(x, w), matmul(x, w), rtol=1e-5)
    with pytest.raises(LoweringError, match=r"no function to run.*plan.lower\(fn=train_step\)"):
        loaded.lower()


def test_another_function_is_not_run(path):
    with pytest.raises(LoweringError, match=r"graph is \w{12}, the plan was made for \w{12}"):
        sa.load_plan(path).lower(fn=lambda x, w: jnp.sin(x @ w))


def test_a_jitted_function_donates_what_the_plan_donates(path):
    loaded = sa.load_plan(path)
    assert loaded.lower(fn=jax.jit(matmul)) is not None
    with pytest.raises(LoweringError, match=r"donates its flat arguments \[1\].*to donate \[\]"):
        loaded.lower(fn=jax.jit(matmul, donate_argnums=1))


def test_a_function_of_pytrees_needs_its_arguments(tmp_path):
    arguments = {"w": W}, X
    specs = (P("Y", None), P("X", "Y"))
    sa.plan(tree, *arguments, mesh=MESH, in_shardings=specs).save(tmp_path / "tree.json")
    loaded = sa.load_plan(tmp_path / "tree.json")
    with pytest.raises(LoweringError, match=r"params\['w'\] is an array inside.*args=\(params,"):
        loaded.lower(fn=tree)
    x, w = np.ones((7, 16), np.float32), np.ones((16, 6), np.float32)
    np.testing.assert_allclose(loaded.lower(fn=tree, args=arguments)({"w": w}, x)["y"], x @ w)


def test_everything_that_was_annotated_is_kept(tmp_path):
    mesh = sa.Mesh({"X": 2, "Y": 4}, device_ids=(3, 1, 2, 0, 7, 6, 5, 4))
    options = sa.Options(keep_gathers=True, switches=sa.Switches(priorities=False))
    specs = (P("X", P.UNCONSTRAINED), P("Y"))
    strategy = sa.Strategy(mesh, in_shardings=specs, out_shardings=P("X"))
    plan = sa.plan(matmul, X, W, strategy=strategy, options=options, roles=("data", "parameters"))
    plan.save(tmp_path / "plan.json")
    loaded = sa.load_plan(tmp_path / "plan.json")
    assert loaded.annotations == plan.annotations
    assert loaded.options == options
    assert loaded.mesh.device_ids == mesh.device_ids
    assert loaded.traced.argument_roles == ("data", "parameters")


SHORT = jax.ShapeDtypeStruct((8, 12), "bfloat16")
REWRITTEN = {
    "a slice of a slice": lambda x: x[1::2][::2],
    "a slice of a pad": lambda x: jnp.pad(x, ((2, 0), (0, 0)))[1:],
    "a pad of a pad": lambda x: jnp.pad(jnp.pad(x, 1), 1),
    "a known start": lambda x: jax.lax.dynamic_slice(x, (2, 0), (4, 12)),
    "a known update": lambda x: jax.lax.dynamic_update_slice(x, x[:2] + 1, (3, 0)),
    "a gathered row": lambda x: x[jnp.array(3)],
    "a scattered row": lambda x: x.at[3].set(0),
    "a rotation": lambda x: jnp.roll(x, 3, 0),
    "a scan of pairs": lambda x: jax.lax.associative_scan(jnp.add, x),
    "a wide sum": lambda x: (x * x).sum(0) @ x.T,
    "a split": lambda x: jnp.concatenate(jnp.split(x, 2, 1)[::-1], 1),
    "a gradient": jax.grad(lambda x: (jnp.cumsum(x[2:], 0)[:, 1:] ** 2).sum()),
    "unread taps": lambda x: jax.lax.conv_general_dilated(
        x[None, None], x[None, None, :3, :3], (1, 1), ((-2, -2), (4, 0))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REWRITTEN)
def test_a_graph_that_was_rewritten_comes_back(name, tmp_path):
    """Slices that planning joins are operators like those that JAX traces."""
    plan = sa.plan(REWRITTEN[name], SHORT, mesh=MESH, in_shardings=(P("X", "Y"),))
    plan.save(tmp_path / "plan.json")
    assert sa.load_plan(tmp_path / "plan.json").text() == plan.text()


def test_a_failed_save_leaves_the_old_file(path, monkeypatch):
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", _fail)
    with pytest.raises(PlanFileError, match=r"plan\.json cannot be written: disk full"):
        matmul_plan().save(path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["plan.json"]


def _fail(*_):
    raise OSError("disk full")


def test_no_such_file(tmp_path):
    with pytest.raises(PlanFileError, match=r"none\.json cannot be read: .*No such file.*Save"):
        sa.load_plan(tmp_path / "none.json")
    with pytest.raises(PlanFileError, match="cannot be read"):
        sa.load_plan(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_cut_short(path, share):
    text = path.read_text()
    path.write_text(text[: int(len(text) * share)])
    with pytest.raises(PlanFileError, match=r"plan\.json is not JSON from line 1.*cut short"):
        sa.load_plan(path)


def test_bytes_that_are_no_text(path):
    path.write_bytes(b"\xff\xfe" + path.read_bytes())
    with pytest.raises(PlanFileError, match=r"plan\.json cannot be read"):
        sa.load_plan(path)


@pytest.mark.parametrize("text", ["[]", "3", '{"schema": "other/1"}', '{"plan": {}}', "null"])
def test_other_files(path, text):
    path.write_text(text)
    with pytest.raises(PlanFileError, match=r"its schema is .*, not 'shardalg\.plan/5'"):
        sa.load_plan(path)


def test_a_later_schema(path):
    path.write_text(path.read_text().replace("shardalg.plan/5", "shardalg.plan/9", 1))
    with pytest.raises(PlanFileError, match=r"'shardalg\.plan/9', .*: install a later shardalg"):
        sa.load_plan(path)


def resigned(path, change):
    """Return the file with changed inputs and the digest that fits it."""
    content = json.loads(path.read_text())
    change(content["inputs"])
    write(path, content)


def write(path, content):
    """Write a file of some parts with the digest that fits them."""
    parts = {part: content[part] for part in plan_file.PARTS}
    plan_file.write(path, plan_file.PlanFile(**parts))


def edits():
    """name: a change of the content that keeps it JSON."""
    return {
        "graph gone": lambda c: c.pop("graph"),
        "axes gone": lambda c: c["annotations"].pop("axes"),
        "axis of size 0": lambda c: c["annotations"].update(axes=[["X", 0], ["Y", 4]]),
        "spec of another rank": lambda c: c["annotations"]["arguments"][0].update(dims=[[[4, 2]]]),
        "axis used twice": lambda c: c["annotations"]["arguments"][0].update(
            dims=[[[4, 2]], [[4, 2]]]
        ),
        "too few arguments": lambda c: c["annotations"]["arguments"].pop(),
        "unknown option": lambda c: c["options"].update(colour="red"),
        "unknown policy": lambda c: c["options"].update(policy="best"),
        "text for a list": lambda c: c.update(argument_roles=3),
        "a node of nothing": lambda c: c["graph"].update(nodes=[{}]),
        "another primitive": lambda c: _rename(c["graph"], "tanh", "no_such_primitive"),
        "an operand too far": lambda c: c["graph"]["nodes"][2].__setitem__(1, [99]),
        "an operand that comes later": lambda c: c["graph"]["nodes"][0].__setitem__(1, [0, 4]),
        "an operand of another type": lambda c: c["graph"]["nodes"][0].__setitem__(1, [1, 0]),
        "a result that is not there": lambda c: c["graph"].update(results=[99]),
        "a region that is not there": lambda c: c["graph"]["nodes"][1].__setitem__(5, 3),
        "a role that is none": lambda c: c.update(argument_roles=["boss", None]),
        "a donated argument that is not there": lambda c: c.update(donated=[99]),
    }


def _rename(graph, old, new):
    text = json.dumps(graph)
    assert old in text
    graph.clear()
    graph.update(json.loads(text.replace(f'"{old}"', f'"{new}"')))


def test_an_edit_is_seen(path):
    path.write_text(path.read_text().replace("[16, 6]", "[16, 7]"))
    with pytest.raises(PlanFileError, match=r"plan\.json was edited: its content has digest"):
        sa.load_plan(path)


@pytest.mark.parametrize("name", edits())
def test_an_edit_that_is_signed_again_is_refused(path, name):
    resigned(path, edits()[name])
    with pytest.raises(PlanFileError, match=r"plan\.json.*(is not a plan|was edited)"):
        sa.load_plan(path)


def of_version(path, **versions):
    """Return the file as another version would write it, with other shardings and figures."""
    content = json.loads(path.read_text())
    content["versions"].update(versions)
    summary = content["summary"]
    summary["seal"] = "0" * 64
    summary["shardings"]["[Y, X]"] = summary["shardings"].pop("[X, Y]")
    summary["collectives"] = summary["collectives"][:-1]
    summary["peak_bytes"]["results"] += 1
    summary["step_time_s"] *= 2
    write(path, content)


def test_a_version_that_plans_otherwise_is_a_warning(path):
    plan = sa.load_plan(path)
    of_version(path, shardalg="0.0.9", jax="0.1.2")
    with pytest.warns(UserWarning, match=r"plan\.json: shardings: .*Save the plan again") as seen:
        loaded = sa.load_plan(path)
    assert seen[0].filename == __file__
    assert loaded.text() == plan.text()
    told = loaded.warnings()
    rows = told[told["op"] == "plan file"]["warning"].tolist()
    assert [row.split(":")[0] for row in rows] == [
        "shardings", "collectives", "peak memory", "step time",
    ]  # fmt: skip
    assert all(f"shardalg 0.0.9 in the file, {sa.__version__} here" in row for row in rows)
    assert all("jax 0.1.2 in the file" in row for row in rows)
    assert "x [Y, X] in the file, [X, Y] here" in rows[0]
    assert "all_gather Y:(1)2 none in the file, 1 x, 84 B here" in rows[1]
    assert "results 169 B in the file, 168 B here" in rows[2]
    assert "plan file" not in loaded.replan().warnings()["op"].tolist()


def test_the_same_version_that_plans_otherwise_is_an_error(path):
    of_version(path)
    with pytest.raises(PlanFileError, match=r"was edited.*x \[Y, X\] in the file, \[X, Y\] here"):
        sa.load_plan(path)


def test_another_version_that_plans_the_same_says_nothing(path):
    content = json.loads(path.read_text())
    content["versions"]["shardalg"] = "0.0.9"
    write(path, content)
    assert "plan file" not in sa.load_plan(path).warnings()["op"].tolist()


def test_a_setting_that_another_version_did_not_have_is_its_default(path):
    resigned(path, lambda content: content["options"].pop("turn_products"))
    with pytest.raises(PlanFileError, match=r"not an object with.*turn_products"):
        sa.load_plan(path)
    content = json.loads(path.read_text())
    content["versions"]["shardalg"] = "0.0.9"
    write(path, content)
    assert plan_edits.restored(path).options == sa.Options()


FILES = Path(__file__).with_name("plan_files")


@pytest.mark.parametrize("name", plan_edits.BASES)
def test_files_of_the_earlier_schema_load(name):
    """Earlier files hold all inputs, and a digest of the program with its comments."""
    loaded, now = sa.load_plan(FILES / f"{name}-4.json"), plan_edits.BASES[name][0]()
    # No warning: the program of the loaded graph has the digest in the file.
    assert "plan file" not in loaded.warnings()["op"].tolist()
    assert loaded.options == now.options
    traces = [[node.primitive for node in plan.graph.walk()] for plan in (loaded, now)]
    if traces[0] != traces[1]:
        pytest.skip("this jax traces other operators than the one that saved the file")
    assert loaded.program.text(comments=False) == now.program.text(comments=False)


def test_a_file_of_the_earlier_schema_with_another_program_is_a_warning(tmp_path):
    content = json.loads((FILES / "matmul-4.json").read_text())
    content["plan"]["program"] = "0" * 64
    content["sha256"] = plan_file.digest(plan_file.body(content["plan"]))
    (tmp_path / "old.json").write_text(json.dumps(content))
    with pytest.warns(UserWarning, match=r"files of shardalg\.plan/4 have no summary.*Save the"):
        loaded = sa.load_plan(tmp_path / "old.json")
    assert loaded.warnings()["op"].tolist()[0] == "plan file"
    loaded.save(tmp_path / "new.json")
    assert sa.load_plan(tmp_path / "new.json").text() == loaded.text()


def test_a_chip_with_other_figures_is_named(tmp_path):
    chip = Path(sa.__file__).parent / "costs/chips/tpu_v3.json"
    own, path = tmp_path / "own.json", tmp_path / "plan.json"
    own.write_text(chip.read_text())
    small_step.plan().replan(options=sa.Options(hardware=str(own))).save(path)
    figures = json.loads(chip.read_text())
    figures["figures"]["hbm_bytes_per_s"] = [{"value": 1e9, "source": "slower"}]
    own.write_text(json.dumps(figures))
    hardware._read.cache_clear()
    with pytest.warns(UserWarning, match=r"step time: .*own\.json \(figures \w{12}\) in the file"):
        sa.load_plan(path)
    own.unlink()
    hardware._read.cache_clear()
    with pytest.raises(PlanFileError, match=r"HardwareError: no hardware .*own\.json"):
        sa.load_plan(path)


def test_the_jits_partitioner_is_part_of_the_versions():
    assert plan_file.versions(sa.Options(policy="jit"))["partitioner"] in ("gspmd", "shardy")
    assert "partitioner" not in plan_file.versions(sa.Options())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("seal"), "summary is .*not an object with seal"),
        (lambda s: s.update(seal=3), r"summary\['seal'\] is 3, not a text"),
        (
            lambda s: s.update(shardings={"[X]": [0]}),
            r"summary\['shardings'\]\['\[X\]'\]\[0\] is 0",
        ),
        (lambda s: s["collectives"][0].pop(), r"summary\['collectives'\]\[0\] is .*not 5 values"),
        (lambda s: s.update(peak_bytes={"data": "x"}), r"summary\['peak_bytes'\]\['data'\] is 'x'"),
        (lambda s: s.update(step_time_s=None), r"summary\['step_time_s'\] is None"),
    ],
)
def test_a_summary_that_is_none_is_refused(path, change, message):
    content = json.loads(path.read_text())
    change(content["summary"])
    write(path, content)
    with pytest.raises(PlanFileError, match=message):
        sa.load_plan(path)


def test_an_error_inside_planning_is_one_of_the_file(path, monkeypatch):
    def broken(*_):
        raise KeyError("inside")

    monkeypatch.setattr(planning, "planned_annotations", broken)
    with pytest.raises(PlanFileError, match=r"plan\.json: its content is not a plan \(KeyErr"):
        sa.load_plan(path)


def test_no_text_of_a_file_is_evaluated(path):
    """A parameter that looks like Python stays text, or is refused."""
    danger = "__import__('os').abort()"
    resigned(path, lambda content: _rename(content["graph"], "tanh", danger))
    with pytest.raises(PlanFileError):
        sa.load_plan(path)


def test_the_file_is_plain_json_of_its_owner(path):
    content = json.loads(path.read_text())
    assert list(content) == ["schema", "sha256", "inputs", "summary", "versions"]
    assert stat.S_IMODE(path.stat().st_mode) & stat.S_IRUSR
