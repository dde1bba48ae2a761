"""One quick exploration in a process of its own, as a user starts it, and its omissions."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

import shardalg as sa
from shardalg.algebra.notation.read import mesh_of
from shardalg.lab.explore import foreign_section as foreign
from shardalg.lab.explore import paper_section as paper
from shardalg.lab.explore import proofs_section as proofs
from shardalg.lab.explore import runs
from shardalg.lab.explore import table1_section as table1
from shardalg.lab.explore.explore import Exploration, write_figures
from shardalg.lab.explore.settings import PAPER, SMALL, TINY, Settings, config_of
from shardalg.lab.explore.strategies import (
    LAYER,
    TRAIN_STEP,
    of_measured,
    plans_of,
    price_section,
    sections,
)
from shardalg.lab.table1 import costs_of, layer_costs
from shardalg.models.transformer import WIDE_64B
from shardalg.tables import Table

STRATEGIES = ("attempt 1", "attempt 2", "finalized")
QUICK = Settings(config=TINY, quick=True)
PICTURES = ("wire_bytes.png", "feed_forward.png", "scaling.png", "times.png")


@pytest.fixture(scope="module")
def explored(tmp_path_factory, own_devices):
    """Return the folder and the output of `shardalg explore` without devices set outside."""
    out = tmp_path_factory.mktemp("explore")
    options = ["--quick", "--model", "tiny", "--strategy", "finalized", "--out", str(out)]
    run = subprocess.run(
        [sys.executable, "-m", "shardalg", "explore", *options],
        env=own_devices, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return out, run.stdout


@pytest.mark.slow
def test_it_says_what_it_does_and_what_it_wrote(explored):
    out, screen = explored
    progress = re.findall(r"^\[ *([\d.]+) s\] (.*)$", screen, re.MULTILINE)
    assert len(progress) >= 8
    seconds = [float(s) for s, _ in progress]
    assert seconds == sorted(seconds)
    assert str(out / "report.html") in progress[-1][1]
    written = {path.name for path in out.iterdir()}
    assert written == {"report.html", "report.md", "tables.tex", "plan.json", *PICTURES}


def test_the_report_is_one_file_with_its_pictures(explored):
    page = (explored[0] / "report.html").read_text()
    assert page.count("data:image/png;base64,") == len(PICTURES)
    assert not re.search(r"(src|href)=\"https?:", page)


def test_the_screen_is_two_screens_and_ends_in_five_sentences(explored):
    """Each of which the report ends in too, and its own section bears out."""
    out, screen = explored
    lines = screen.splitlines()
    assert len(lines) <= 80
    ended = "\n".join(lines[lines.index("Conclusion") + 1 :]).replace("\n  ", " ").splitlines()
    assert len(ended) == 5
    assert all(line.startswith("- ") for line in ended)
    report = (out / "report.md").read_text()
    assert report.endswith("## Conclusion\n\n" + "\n".join(ended) + "\n")
    assert ended[0] == "- Table 1: 4 of 4 orders of the planned layers are the paper's."
    assert report.count("| yes |") >= 4


def test_the_report_has_its_sections(explored):
    titles = re.findall(r"^## (.*)$", (explored[0] / "report.md").read_text(), re.MULTILINE)
    assert [t for t in titles if t.startswith("Collectives of")] == ["Collectives of finalized"]
    assert "Run on 8 CPU devices" in titles


def test_the_run_equals_one_device(explored):
    report = (explored[0] / "report.md").read_text()
    (errors,) = re.findall(r"^\| layer, finalized \| (\S+e-\S+) \| (\S+) \|", report, re.MULTILINE)
    assert all(0 < float(error) < 1e-5 for error in errors)


def test_table_1_is_derived_in_every_format(explored):
    """MathML in HTML, text in Markdown, booktabs in LaTeX; quick, for one strategy."""
    folder = explored[0]
    report = (folder / "report.md").read_text()
    derived = "| finalized | activation_communication | 20*B*M*S*(Y - 1)/(X*Y) | 1258291200 |"
    assert f"{derived} O(1/X) | O(1/X) | yes |" in report
    page = (folder / "report.html").read_text()
    assert "<mi>O</mi><mo>(</mo><mfrac><mn>1</mn><mi>X</mi></mfrac><mo>)</mo>" in page
    tex = (folder / "tables.tex").read_text()
    assert r"$\frac{20 B M S \left(Y - 1\right)}{X Y}$" in tex
    begun, ended = (tex.count(rf"\{side}{{table}}") for side in ("begin", "end"))
    assert begun == ended == tex.count(r"\toprule")
    assert r"\caption{Table 1, derived}" in tex


def test_the_plan_can_be_loaded(explored):
    path = explored[0] / "plan.json"
    assert json.loads(path.read_text())
    loaded = sa.load_plan(path)
    strategy = replace(QUICK, config=replace(TINY, scan=True), strategies=("finalized",))
    planned = plans_of(strategy, TRAIN_STEP)["finalized"]
    assert loaded.collectives_table == planned.collectives_table


@pytest.fixture(scope="module")
def layers():
    return plans_of(QUICK, LAYER)


def is_text(part):
    return type(part) is str


def tables(section):
    return [part for part in section.parts if type(part) is Table]


def test_collectives_are_listed_with_kind_axes_bytes_role_reason_and_line(layers):
    totals, *each = sections(layers)
    assert [s.title for s in each] == [f"Collectives of {name}" for name in STRATEGIES]
    for name, section in zip(STRATEGIES, each, strict=True):
        (table,) = tables(section)
        assert len(table) == len(layers[name].collectives_table) > 0
        assert set(table["phase"]) == {"forward", "backward"}
        assert all(source.startswith("transformer.py:") for source in table["source"])
        assert all(table["why"])
    assert tables(totals)[0]["strategy"] == STRATEGIES


def test_the_totals_are_the_sums_of_the_lists(layers):
    totals, *each = sections(layers)
    for row, section in zip(tables(totals)[0], each, strict=True):
        (table,) = tables(section)
        sent = sum(a * b for a, b in zip(table["executions"], table["wire_bytes"], strict=True))
        assert row["wire_bytes_per_step"] == sent
        assert row["collectives"] == len(table)


@pytest.mark.slow
def test_pictures_are_written_without_a_run(tmp_path, capsys):
    write_figures(QUICK, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(PICTURES[:3])
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in tmp_path.iterdir())


@pytest.mark.slow
def test_a_mesh_with_too_many_devices_is_planned_and_not_run():
    settings = Settings(config=TINY, mesh=mesh_of("X=4,Y=16"), quick=True)
    lines = []
    page = Exploration(settings, lines.append).page()
    titles = {section.title: section for section in page.sections}
    (reason,) = titles["Not run"].parts
    assert "the mesh has 64 devices and --devices allows 8" in reason
    assert not [line for line in lines if "running" in line]
    (table,) = tables(titles["Memory of a train step"])
    peaks = dict(zip(table["strategy"], table["peak_bytes"], strict=True))
    assert peaks["attempt 1"] > peaks["attempt 2"] > peaks["finalized"]


def test_a_plan_too_large_for_this_machine_is_not_run():
    plans = plans_of(PAPER, "ffn")
    allowed = replace(PAPER, devices=128)
    assert "more than" in runs.why_not(allowed, plans)
    assert runs.why_not(PAPER, plans).startswith("the mesh has 128 devices")
    assert runs.why_not(QUICK, plans_of(QUICK, "ffn")) == ""


def test_missing_packages_are_named(monkeypatch):
    found = foreign.find_spec
    monkeypatch.setattr(foreign, "find_spec", lambda name: None if name == "flax" else found(name))
    reason = foreign.why_not(replace(QUICK, quick=False))
    assert reason.startswith("it needs flax, not installed here")
    monkeypatch.setattr(foreign, "find_spec", found)
    assert foreign.why_not(replace(QUICK, quick=False)) == ""


@pytest.mark.slow
def test_the_foreign_step_on_other_axes_is_run_and_equals_one_device():
    mesh = mesh_of("data=4,model=2")
    settings = Settings(config=TINY, mesh=mesh)
    found = foreign.trained(replace(settings, steps=3))
    section = foreign.section(settings, found)
    assert len(found.losses) == 3
    assert 0 <= found.error < 1e-5
    assert "no values inside are annotated" in section.parts[0]
    assert "send 0 of" in section.parts[0]
    arrays = len(found.plan.traced.donated)
    assert f"{arrays} of its {arrays} arrays in the layout" in section.parts[2]
    assert set(tables(section)[0]["mesh_axes"]) <= {"data", "model", "data,model"}


class Priced:
    step_time_s = 6.0


def test_a_price_is_a_share_of_what_was_measured():
    assert of_measured(Priced) == "105% of the measured time"


def test_an_open_claim_is_said_above_all_tables(layers):
    name, made = next(iter(layers.items()))
    report = made.verify()
    opened = replace(report, claims=(replace(report.claims[0], status="unknown"), *report.claims))
    made = SimpleNamespace(verify=lambda: opened)
    assert f"**Open or refuted: claims of {name}.**" in proofs.section({name: made}).parts[0]


@pytest.mark.parametrize(("more", "reduced", "said"), [(2, 3, True), (0, 3, False), (2, 4, False)])
def test_gathering_again_is_said_of_the_runs_that_do(layers, more, reduced, said):
    kinds = [("all_gather", 6 + more, 6), ("all_reduce", reduced, 3), ("all", 9 + more, 9)]
    columns = ("kind", "executions", "xla_executions")
    beside = [dict(zip(columns, row, strict=True)) for row in kinds]
    run = SimpleNamespace(name="layer", plan=layers["finalized"], beside=beside)
    start = "layer: the same collectives as XLA's but for more all-gathers."
    kept = len(layers["finalized"].gathers())
    assert [f"{start} {kept} values" in text for text in runs.regathered([run])] == [True] * said


def test_what_a_layer_adds_is_said_from_its_formulas():
    parts = layer_costs(strategies=("finalized",))
    (found,) = parts.values()
    changed = {"finalized": replace(found, orders=found.orders[::-1])}
    assert table1._orders(parts, parts) == table1.UNCHANGED
    assert table1._orders(parts, changed) == "It changes orders of finalized"
    assert "and of D, H, M, N" in table1._statistics({"finalized": found.scaling})
    apart = found.scaling - found.scaling
    assert table1._statistics({"": apart}).startswith("statistics of (B, S)")


def test_settings_are_read_as_written():
    assert config_of("small", "B=3, H=9") == replace(SMALL, B=3, H=9)
    assert mesh_of("Y=4,X=2") == sa.Mesh({"Y": 4, "X": 2})
    assert QUICK.dim_names == {4: "B", 12: "S", 16: "M", 32: "H"}
    assert replace(QUICK, config=replace(TINY, M=12)).dim_names == {4: "B", 32: "H"}


def test_every_merge_is_counted_and_proved(layers):
    (summary, by_kind, trusted, slowest) = tables(section := proofs.section(layers))
    assert summary["plan"] == STRATEGIES
    assert summary["merges"] == summary["merges_proved"]
    assert "merge" in by_kind["claim"]
    assert f"Every claim of {', '.join(STRATEGIES)} is proved, or trusted." in section.parts[0]
    assert len(trusted) == sum(by_kind["trusted"]) > 0
    assert all(trusted["statement"])
    assert set(slowest["status"]) == {"proved"}
    assert list(slowest["ms"]) == sorted(slowest["ms"], reverse=True)


def test_the_paper_s_model_in_numbers():
    """At two layers: the parts of each table are the whole."""
    few = replace(paper.UNROLLED, config=replace(WIDE_64B, L=2))
    section = paper.section(few)
    beside, classes, alive, moved = tables(section)
    peak = dict(zip(beside["quantity"], beside["estimated"], strict=True))["peak_memory_gb"]
    assert beside["measured"] == (15.3, 5.74, 0.627)
    assert sum(classes["gb"]) == pytest.approx(peak, abs=1e-3)
    assert sum(alive["gb"]) == pytest.approx(peak, abs=1e-3)
    assert len(alive) == paper.MOST_LINES + 1
    sent = re.search(r"in one step, ([\d.]+) GB", " ".join(filter(is_text, section.parts)))
    assert sum(moved["gb"]) == pytest.approx(float(sent[1]), abs=0.06)
    assert moved["gb"][0] == max(moved["gb"])


def test_costs_of_a_plan_in_numbers_have_no_orders(layers):
    with pytest.raises(sa.StrategyError, match=r"no named sizes.*symbolic=True"):
        costs_of(layers["finalized"])


def test_the_paper_s_size_is_priced_as_the_story_has_it():
    steps = plans_of(PAPER, TRAIN_STEP)
    (table,) = tables(section := price_section(steps))
    words = section.parts[0].replace("\n", " ")
    assert "32 layers, a batch of 64, Mesh(X=8, Y=16)" in words
    measured = r"5.74 s per step, 15.3 GB and 62.7% of the peak flops"
    assert re.search(rf"{measured}; here \d\d+% of the measured time", words)
    peaks = dict(zip(table["strategy"], table["peak_memory_gb"], strict=True))
    assert peaks["attempt 1"] > peaks["attempt 2"] > peaks["finalized"]
    times = dict(zip(table["strategy"], table["step_time_s"], strict=True))
    assert times["finalized"] < times["attempt 2"] * 1.05 < times["attempt 1"]
    assert 3 < times["finalized"] < 8  # the paper measured 5.74
