"""The compiler of an absent chip: placement of positions, cached answers, refusals."""

import ast
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import jax
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.cli import main
from shardalg.costs.topology import Topology
from shardalg.errors import DeviceError, HardwareError, LoweringError
from shardalg.lab import table1_strategies as table1
from shardalg.models.training import part
from shardalg.models.transformer import Config
from shardalg.plan.running import executable
from shardalg.xla import aot, aot_process
from shardalg.xla import aot as aot_cache
from shardalg.xla.aot import (
    Compiled,
    Target,
    _places,
    compile_for,
    folder,
    key,
    load,
    store,
    target_of,
)
from shardalg.xla.aot_answer import BesideCompiler, Figures
from tests.test_layers import imported

NO_TPU = "libtpu, the TPU's compiler, is not installed: pip install 'shardalg[tpu]'"
needs_libtpu = pytest.mark.skipif(find_spec("libtpu") is None, reason=NO_TPU)
MESH = sa.Mesh({"X": 2, "Y": 4})
TARGET = Target("a compiler 1", "tpu", "v3:2x2", {}, {}, [(0, 0, 0, 0, 0)])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def no_libtpu(monkeypatch):
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(aot, "find_spec", lambda name: None)


def matmul(mesh=MESH):
    x, w = jax.ShapeDtypeStruct((16, 8), "float32"), jax.ShapeDtypeStruct((8, 32), "float32")
    return sa.plan(lambda x, w: x @ w, x, w, mesh=mesh, in_shardings=(P("X"), P(None, "Y")))


def train_step(config, mesh, attempt="finalized"):
    step = part("train_step")
    return sa.plan(
        step.function(config),
        *step.arguments(config),
        strategy=table1.STRATEGIES[attempt](mesh, config),
        roles=step.roles(),
        donate_argnums=step.donate_argnums(),
    )


# -- where positions lie ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sizes", "cores_of"),
    [("v3:8x8", (8, 16), "Y"), ("v3:8x4", (16, 4), "X"), ("v3:4x8", (4, 16), "Y")],
)
def test_every_position_has_a_core_of_its_own(text, sizes, cores_of):
    """Both cores of a chip are neighbours along the axis that is twice a side of the slice."""
    mesh, topology = sa.Mesh(dict(zip("XY", sizes, strict=True))), Topology.parse(text)
    places = [(*p["torus"], *p["chip"]) for p in _places(topology, mesh)]
    sides = (*topology.shape, 2)
    assert sorted(places) == sorted(
        (x, y, c) for x in range(sides[0]) for y in range(sides[1]) for c in range(2)
    )
    chips = {}
    for position, place in enumerate(places):
        chips.setdefault(place[:2], []).append(position)
    digit = mesh.digit(cores_of)
    for first, second in chips.values():
        rest = [p - digit.at(p) * digit.stride for p in (first, second)]
        assert rest[0] == rest[1]


def test_axes_are_lines_of_the_torus():
    """Along X one coordinate changes, whatever the position along Y, and the other is Y's."""
    mesh = sa.Mesh({"X": 8, "Y": 16})
    places = [tuple(p["torus"]) for p in _places(Topology.parse("v3:8x8"), mesh)]
    columns = {frozenset(places[x * 16 + y] for x in range(8)) for y in range(16)}
    assert len(columns) == 8
    for column in columns:
        assert 1 in {len({place[d] for place in column}) for d in (0, 1)}


def test_the_same_topology_twice_gives_the_same_places():
    mesh = sa.Mesh({"X": 8, "Y": 16})
    first, second = (_places(Topology.parse("v3:8x8"), mesh) for _ in range(2))
    assert first == second


# -- what is refused ----------------------------------------------------------------------------


def test_without_the_compiler_it_says_what_to_install(no_libtpu):
    with pytest.raises(DeviceError, match=r"pip install 'shardalg\[tpu\]'"):
        matmul().aot("v3:2x2")


def test_without_the_plugin_for_gpus_too(no_libtpu):
    with pytest.raises(DeviceError, match="pip install jax-cuda12-plugin"):
        matmul().aot("h100:1x8")


def test_a_gpu_of_which_xla_wants_to_know_more(monkeypatch):
    monkeypatch.setattr(aot, "_cuda", lambda: "jax_cuda12_plugin 1")
    assert target_of(Topology.parse("h100:1x8"), MESH).places == [(n,) for n in range(8)]
    with pytest.raises(LoweringError, match=r"description of b200, .* descriptions of h100"):
        matmul().aot("b200:1x8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v3:4x4", "does not tile"),
        ("v9:2x2", "no hardware 'v9'"),
        ("v3-8", "is no topology: write the chip and its shape, as in 'v3:8x8'"),
    ],
)
def test_topologies_that_are_none(text, message):
    with pytest.raises(HardwareError, match=message):
        matmul().aot(text)


def test_devices_by_their_ids_have_no_places():
    plan = matmul(sa.Mesh({"X": 2, "Y": 4}, device_ids=[7, 6, 5, 4, 3, 2, 1, 0]))
    with pytest.raises(LoweringError, match="names devices by their ids"):
        plan.aot("v3:2x2")


def answered(monkeypatch, files, returncode=0):
    """Return a compiler that writes these files."""

    class Run:
        stderr = "F1122 12:00:00.0 1 x.cc:1] Check failed: it is broken"

    Run.returncode, calls = returncode, []

    def run(script, where, longest_s, more):
        calls.append(json.loads((where / "request.json").read_text())["programs"])
        for name, content in files.items():
            (where / name).write_text(content)
        return Run

    monkeypatch.setattr(aot, "run_apart", run)
    return calls


def stages():
    return {"ours": executable(matmul(), matmul()._traced, None, "tpu").stage}


def test_a_program_that_does_not_fit_is_an_answer(monkeypatch):
    error = "RESOURCE_EXHAUSTED: Ran out of memory. Used 28.50G of 15.48G hbm. Exceeded by 13.0G."
    answered(monkeypatch, {"ours.json": json.dumps({"error": error, "compile_s": 1.0})})
    answers, _ = compile_for(TARGET, stages(), MESH)
    assert answers["ours"].peak_memory_bytes == round(28.5 * 2**30)
    assert "Used 28.50G" in answers["ours"].out_of_memory
    planned = Figures(10, 5, 2.0, 1.5, {("all_gather", "X"): (1, 4)})
    beside = BesideCompiler("here", planned, answers["ours"], Compiled(1.0, flops=4.0))
    assert "Out of memory: the lowered program" in repr(beside)
    rows = {(r["quantity"], r["mesh_axes"]): r for r in beside}
    assert rows["all_gather_count", "X"]["compiled"] is None
    assert rows["all_gather_count", "X"]["xla"] == 0
    assert rows["flops", ""]["xla_error"] == -0.5
    (told,) = [r["difference"] for r in beside.differences if r["kind"] == "flops"]
    assert told == "products: 1.5 flops; other operators: 0.5 planned, 2.5 compiled"


@pytest.mark.parametrize(
    ("files", "returncode", "message"),
    [
        ({"ours.json": '{"error": "INTERNAL: x", "compile_s": 1}'}, 0, "refuses the program .ours"),
        ({"failed.json": '{"message": "Invalid TPU"}'}, 0, "does not compile for v3:2x2 .Invalid"),
        ({}, -6, "ended without an answer .status -6.: .*Check failed: it is broken"),
    ],
)
def test_other_failures_are_errors(monkeypatch, files, returncode, message):
    answered(monkeypatch, files, returncode)
    with pytest.raises(LoweringError, match=message):
        compile_for(TARGET, stages(), MESH)
    assert not list(folder().glob("*")) if folder().exists() else True


# -- what is kept -------------------------------------------------------------------------------


def test_what_was_compiled_once_is_read_and_what_is_cut_short_compiled_again(monkeypatch):
    files = {"ours.json": json.dumps({"compile_s": 1.0, "flops": 8.0}), "ours.hlo": HLO}
    calls = answered(monkeypatch, files)
    first, _ = compile_for(TARGET, stages(), MESH)
    assert (compile_for(TARGET, stages(), MESH), calls) == ((first, []), [["ours"]])
    compile_for(replace(TARGET, topology="v3:4x4"), stages(), MESH)
    assert len(calls) == 2
    for kept in folder().glob("*.json"):
        kept.write_text(kept.read_text()[:-30])
    again, notes = compile_for(TARGET, stages(), MESH)
    assert (again, len(calls)) == (first, 3)
    assert len(notes) == 1
    assert "cut short or damaged" in notes[0]
    assert "compiled again" in notes[0]


def test_a_kept_answer_of_other_types_is_no_answer():
    notes = []
    store("a", Compiled(1.0, flops=2.0))
    path = folder() / "a.json"
    path.write_text(path.read_text().replace("2.0", '"many"'))
    assert load("a", notes) is None
    assert "many" in notes[0]
    assert load("b", notes) is None
    assert len(notes) == 1


def test_keys_tell_contents_apart():
    assert len({key("a", "b"), key("ab"), key("a", "b", ""), key(b"a", b"c")}) == 4
    assert aot_cache.SCHEMA.startswith("shardalg.aot/")


# -- the compiled text --------------------------------------------------------------------------

HLO = """HloModule jit_f, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%all-reduce-scatter.1 (p: f32[8,16]) -> f32[4,16] {
  %p = f32[8,16] parameter(0)
  %r = f32[8,16] all-reduce(%p), replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%add
  %z = s32[] constant(0)
  ROOT %d = f32[4,16] dynamic-slice(%r, %z, %z), dynamic_slice_sizes={4,16}
}

ENTRY %main (p0: f32[8,16], p1: f32[8,16]) -> f32[4,16] {
  %p0 = f32[8,16] parameter(0)
  %p1 = f32[8,16] parameter(1)
  %g = (f32[32,16], f32[32,16]) all-gather(%p0, %p1), replica_groups=mesh['X'=2,'Y'=4] {'Y'}
  %f = f32[4,16] fusion(%p0), kind=kCustom, calls=%all-reduce-scatter.1
  %w = f32[8,16] all-reduce(%p1), channel_id=2, replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add
  %k = s32[] constant(0)
  %c = f32[4,16] dynamic-slice(%w, %k, %k), dynamic_slice_sizes={4,16}
  ROOT %o = f32[4,16] add(%f, %c)
}
"""


def test_fused_scatters_combined_tuples_and_all_notations_of_groups(monkeypatch):
    answered(monkeypatch, {"ours.json": json.dumps({"compile_s": 1.0}), "ours.hlo": HLO})
    answers, _ = compile_for(TARGET, stages(), MESH)
    found = [(c.kind, c.axes, c.operand_bytes) for c in answers["ours"].collectives]
    assert found == [
        ("all_gather", ("Y",), 1024),
        ("reduce_scatter", ("X",), 512),
        ("all_reduce", ("X",), 512),  # compiled so, although it is cut right after
    ]
    planned = Figures(
        1, 1, 1.0, 0.5, {("all_gather", "Y"): (2, 3072), ("reduce_scatter", "X"): (2, 512)}
    )
    beside = BesideCompiler("here", planned, answers["ours"], answers["ours"])
    told = {(r["kind"], r["mesh_axes"]): r["difference"] for r in beside.differences}
    assert told == {
        ("all_gather", "Y"): "combined: 2 as 1",
        ("reduce_scatter", "X"): "all-reduced and then sliced: 1 reduce-scatters",
        ("all_reduce", "X"): "all-reduced and then sliced: 1 reduce-scatters",
    }
    # There are no more all-reduces than planned, because others of few bytes were combined.
    joined = replace(planned, moved=planned.moved | {("all_reduce", "X"): (2, 1)})
    beside = BesideCompiler("here", joined, answers["ours"], answers["ours"])
    assert {(r["kind"], r["mesh_axes"]): r["difference"] for r in beside.differences} == told


# -- the command --------------------------------------------------------------------------------


def test_the_command_says_in_one_line_what_is_wrong(tmp_path, capsys, no_libtpu):
    specs = tmp_path / "specs.py"
    specs.write_text(
        "import jax\nfrom jax.sharding import PartitionSpec as P\n"
        "def args():\n    return (jax.ShapeDtypeStruct((8, 8), 'float32'),)\n"
        "in_shardings = (P('X'),)\n"
    )
    asked = ["aot", "jax.numpy:tanh", "--mesh", "X=2", "--args", str(specs), "--hardware"]
    wrong = {
        "v3:1x1": "pip install 'shardalg[tpu]'",
        "v3:2x2": "does not tile",
        "tpu_v3": "is no topology",
    }
    for text, message in wrong.items():
        assert main([*asked, text]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


# -- the TPU's compiler -------------------------------------------------------------------------


@needs_libtpu
def test_small_train_step_against_the_tpu_compiler(show):
    config = Config(B=8, S=128, M=1024, H=2048, N=8, D=128, V=1024, L=2)
    found = train_step(config, MESH).aot("v3:2x2")
    show(found)
    rows = {(r["quantity"], r["mesh_axes"]): r for r in found}
    assert abs(rows["argument_bytes", ""]["error"]) <= 1e-4
    assert abs(rows["flops", ""]["error"]) <= 1e-2
    for axes in "XY":
        for kind in ("all_gather", "reduce_scatter"):
            assert rows[f"{kind}_count", axes]["error"] == 0
            assert abs(rows[f"{kind}_wire_bytes", axes]["error"]) <= 0.01
    assert found.compiled.peak_memory_bytes <= 1.02 * found.xla.peak_memory_bytes


@needs_libtpu
def test_a_topology_that_libtpu_does_not_know():
    with pytest.raises(LoweringError, match="does not compile for v3:3x3"):
        matmul(sa.Mesh({"X": 2, "Y": 9})).aot("v3:3x3")


def test_the_process_imports_nothing_of_ours():
    tree = ast.parse(Path(aot_process.__file__).read_text())
    names = [name for name, _ in imported(ast.walk(tree), "aot_process")]
    assert "jax.experimental" in names
    assert not [name for name in names if name.startswith("shardalg")]
