"""`sa.strategies`: ranked prices equal each plan's, fit, and can be verified and run."""

import json
import math
import random
import re
from dataclasses import replace
from itertools import combinations

import jax
import pytest
from scipy.stats import kendalltau

import shardalg as sa
from shardalg.algebra.mesh import Mesh
from shardalg.cli import main
from shardalg.costs.topology import Topology
from shardalg.lab.commands import rank_strategies
from shardalg.lab.evaluation.prediction import ANCHORS
from shardalg.lab.evaluation.published import columns
from shardalg.models.deeper import machine_for
from shardalg.models.ranking import ranked
from shardalg.models.ranking.candidate import NARROW, PIPELINED, Candidate
from shardalg.models.ranking.groups import CandidatePricing, by_step, price
from shardalg.models.ranking.space import meshes
from shardalg.show.html import Page

SMALL = sa.models.DenseTransformer(
    layers=4, model_dim=64, hidden_dim=128, heads=4, head_dim=16, vocab=128, seq=16, batch=16
)
CHOICES = {"microbatches": [4]}


@pytest.fixture(scope="module", autouse=True)
def one_process():
    """Use one process, because tests run in parallel; `test_workers` covers several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranked, "cores", lambda: 1)
        yield


@pytest.fixture(scope="module")
def small():
    return sa.strategies(SMALL, 4, "v5e", choices=CHOICES)


@pytest.mark.slow
def test_every_number_is_that_of_its_own_plan(small):
    """Drawn candidates agree with the model's `cost`, or with the whole plan of all layers."""
    assert len(small.ranked) == 6
    assert not small.left
    for one in random.Random(7).sample(small.ranked, 4):
        made = one.candidate
        if made.strategy == PIPELINED:
            own = made.cost(Topology("v5e", chips=4))
        else:
            own = made.model.cost(made.mesh, "v5e", strategy=made.strategy)
        # The ranking adds up the same seconds in another order.
        per_sample = float(own.step_time_s) / made.model.batch
        assert per_sample == pytest.approx(one.seconds_per_sample, rel=1e-12)
        assert own.peak_memory_bytes == one.peak_memory_bytes
        # memory that no plan can do without is what its arguments take
        assert made.argument_bytes() == made.plan().cost("v5e").memory.argument_bytes


@pytest.mark.slow
def test_devices_that_share_cores_are_ranked_as_they_are_priced():
    figures = {
        "hbm_bytes": 8e9,
        "hbm_bytes_per_s": 1e10,
        "link_bytes_per_s": 1e9,
        "latency_s": 1e-6,
    }
    machine = sa.Hardware("two cores", (("float32", 1e11), ("bfloat16", 1e11)), **figures, cores=2)
    model = replace(SMALL, layers=2)
    found = sa.strategies(model, 4, machine, choices={"strategy": ["fsdp"], "batch": [16]})
    (one,) = found.ranked
    assert one.price == price(one.cost)
    assert one.cost.hardware.hbm_bytes == 2e9


@pytest.mark.slow
def test_the_order_is_by_seconds_per_sample_and_the_front_is_pareto(small):
    times = [one.seconds_per_sample for one in small.ranked]
    assert times == sorted(times)
    points = [(t, one.peak_memory_bytes) for t, one in zip(times, small.ranked, strict=True)]
    front = {(one.seconds_per_sample, one.peak_memory_bytes) for one in small.pareto}
    better = {
        p for p in points if not any(a <= p[0] and b <= p[1] for a, b in points if (a, b) != p)
    }
    assert front == better
    for one in small.ranked[:10]:
        causes = one.cost.seconds_by_cause
        assert causes[one.limit] == max(causes.values())


@pytest.mark.slow
def test_each_strategy_is_ranked_verified_and_lowered(small):
    for strategy in ("finalized", PIPELINED):
        best = next(one for one in small.ranked if one.candidate.strategy == strategy)
        plan = best.candidate.plan()
        assert plan.verify().ok
        assert plan.lower(jax.devices()[:4])


@pytest.mark.slow
def test_a_program_is_listed_once_whatever_its_axes_are_called():
    """The strategies "fsdp" and "fsdp_tensor" equal "finalized" on one slice."""
    asked = {"strategy": ["finalized", "fsdp", "fsdp_tensor"]}
    found = sa.strategies(SMALL, 4, "v5e", choices=asked)
    assert [one.candidate.strategy for one in found.ranked] == ["finalized"] * 3
    for sizes, strategy in (({"fsdp": 4}, "fsdp"), ({"fsdp": 2, "tensor": 2}, "fsdp_tensor")):
        renamed = Candidate(SMALL, Mesh(sizes), strategy)
        same = [o for o in found.ranked if o.candidate.structure == renamed.structure]
        cost = renamed.cost("v5e")
        assert [o.price.step_time_s for o in same] == [cost.step_time_s]
        assert [o.peak_memory_bytes for o in same] == [cost.peak_memory_bytes]
    sliced = Candidate(SMALL, Mesh({"slice": 2, "fsdp": 2}), "fsdp")
    assert sliced.structure != Candidate(SMALL, Mesh({"X": 2, "Y": 2}), "finalized").structure


def test_meshes_are_all_of_so_many_devices():
    for strategy, count in (("finalized", 9), ("fsdp", 1), ("fsdp_tensor", 8), (PIPELINED, 33)):
        found = list(meshes(strategy, 256, 1, 64))
        assert all(mesh.size == 256 for mesh in found)
        assert len(set(found)) == len(found) == count
    assert {m.shape.get("L") for m in meshes(PIPELINED, 256, 1, 6)} == {2}
    sliced = next(meshes("fsdp", 16, 2, 4))
    assert dict(sliced.shape) == {"slice": 2, "fsdp": 8}


@pytest.mark.slow
def test_a_memory_prunes_with_the_reason():
    """The smaller of two peaks as limit rejects one candidate and ranks the other."""
    asked = {"strategy": ["fsdp"], "microbatches": [2, 4]}
    both = sa.strategies(SMALL, 4, "v5e", choices=asked)
    least, most = sorted(int(one.peak_memory_bytes) for one in both.ranked)
    assert least < most
    found = sa.strategies(SMALL, 4, "v5e", choices=asked, memory_bytes=least)
    assert [one.peak_memory_bytes for one in found.ranked] == [least]
    assert ["its peak is" in why for _, why in found.refused] == [True]


@pytest.mark.slow
def test_a_memory_below_the_parameters_says_the_smallest_that_fits(small):
    """The smallest peak counts, whichever candidate holds the fewest parameters."""
    least = min(int(one.peak_memory_bytes) for one in small.ranked)
    for memory, below in ((1000, "is below parameters"), (least - 1, "holds none of 6 candidates")):
        words = f"{below}.*smallest that fits is {least} bytes.* give a memory of {least} bytes or"
        with pytest.raises(sa.StrategyError, match=words):
            sa.strategies(SMALL, 4, "v5e", choices=CHOICES, memory_bytes=memory)
    fits = sa.strategies(SMALL, 4, "v5e", choices=CHOICES, memory_bytes=least)
    assert [one.peak_memory_bytes for one in fits.ranked] == [least]


BAD = {
    "devices": ({"devices": 0}, "give a number of at least 1"),
    "choice": ({"choices": {"stages": [2]}}, "choice 'stages': write one of strategy"),
    "strategy": ({"choices": {"strategy": ["fdsp"]}}, "strategy 'fdsp': write one of finalized"),
    "no list": ({"choices": {"batch": 16}}, "give a list"),
    "prime": ({"devices": 7, "hardware": "h100", "choices": {"strategy": [PIPELINED]}}, "no mesh"),
    "batch": ({"choices": {"strategy": ["fsdp"], "batch": [6]}}, "no mesh of 8 devices divides"),
    "rounds": ({"choices": {"rounds": ["circular"]}}, "rounds 'circular': write whole numbers"),
    "schedule": ({"choices": {"strategy": ["1f1b"]}}, "strategy '1f1b': write one of finalized"),
    "parts": (
        {"choices": {"microbatches": [0]}},
        "microbatches 0: write whole numbers of at least",
    ),
    "remat": ({"choices": {"remat": ["some"]}}, "remat 'some': write one of False, full"),
    "memory": ({"memory_bytes": -1}, "memory_bytes=-1: give a number above 0"),
    "order": ({"choices": {"order": ["any"]}}, "order 'any': write one of given, all"),
    "optimizer": ({"choices": {"optimizer": ["lion"]}}, "optimizer 'lion': write one of"),
    "no slice": ({"devices": 2, "hardware": "v5p"}, "no slice of tpu_v5p has so many"),
    "odd": ({"devices": 9}, "has 8 devices, not 9: give devices=8"),
    "topology": ({"hardware": "v3:4x8"}, "has 64 devices, not 8: give devices=64"),
    "chip": ({"hardware": "v99"}, "v99"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case):
    given, message = BAD[case]
    asked = {"model": SMALL, "devices": 8, "hardware": "v3", **given}
    with pytest.raises(sa.ShardalgError, match=message) as caught:
        sa.strategies(**asked)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_an_interrupt_keeps_what_is_ranked():
    """Candidates of one mesh and step come together."""

    def stop(number, count, what):
        assert "fsdp" in what
        if number == 3:
            raise KeyboardInterrupt

    choices = {"strategy": ["fsdp"], "batch": [16, 32], "remat": [False, "full"]}
    found = sa.strategies(SMALL, 8, "v3", choices=choices, progress=stop)
    assert (len(found.ranked), found.left) == (2, 2)
    assert found.to_json()["left"] == 2


SIZES = "layers=2,model_dim=64,hidden_dim=128,heads=4,head_dim=16,vocab=128,seq=16"
ASKED = ["strategies", "--sizes", SIZES, "--devices", "8", "--hardware", "v3"]
ASKED += ["--batch", "16,32", "--strategy", "fsdp", "--remat", "none,full"]


@pytest.mark.slow
def test_an_interrupted_command_writes_whole_files_or_none(capsys, tmp_path, monkeypatch):
    """Ctrl-C in the search keeps what is ranked; while the page is made it leaves the old file."""
    page = tmp_path / "ranking.html"
    page.write_text("of yesterday")

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Page, "to_html", stop)
        with pytest.raises(KeyboardInterrupt):
            main([*ASKED, "--html", str(page)])
    assert page.read_text() == "of yesterday"
    assert list(tmp_path.iterdir()) == [page]
    monkeypatch.setattr(rank_strategies, "_say", lambda number, *_: stop() if number > 1 else None)
    assert main([*ASKED, "--html", str(page), "--json"]) == rank_strategies.INTERRUPTED
    read = json.loads(capsys.readouterr().out.split("left\n")[-1])
    assert (len(read["ranked"]), read["left"]) == (2, 2)
    assert "interrupted with 2 left" in page.read_text()
    assert page.read_text().rstrip().endswith("</html>")


DRAWN = {
    "v3": {"strategy": ["finalized"], "batch": [32, 40, 64], "remat": ["full"]},
    "h100": {"strategy": [PIPELINED], "batch": [36, 72], "microbatches": [9]},
}


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["v3", "h100"])
def test_what_is_priced_together_is_exactly_what_each_plan_says(chip):
    """Time, memory and limit of drawn candidates, by plans of their own, one by one."""
    found = sa.strategies(SMALL, 8, chip, choices=DRAWN[chip])
    assert found.planned > 0
    if chip == "v3":  # pipelines share less than they run again
        assert found.planned <= len(found.ranked)
    for one in random.Random(11).sample(found.ranked, 3):
        assert price(one.cost) == one.price, one.candidate


@pytest.mark.slow
def test_sizes_at_which_two_scalars_are_one_are_planned_together():
    """4 sequences of 16 tokens are as many as the model has features: traced with those 4."""
    mesh, pricing = Mesh({"X": 4}), CandidatePricing()
    found = [
        Candidate(replace(SMALL, batch=4 * q, microbatches=q), mesh, "finalized") for q in (3, 5)
    ]
    on = machine_for(mesh, "h100")
    for one, made in pricing.prices(found, on):
        assert made == price(one.cost(on)), one
    assert (pricing.planned, pricing.alone) == (1, 0)
    assert {held for _, held in pricing.templates} == {(), (("b", 4),)}


@pytest.mark.slow
def test_pipelines_that_part_late_are_priced_as_alone():
    """Points leave the step of the others after numbers were met that differ at those alone."""
    mesh, pricing = Mesh({"L": 2, "X": 2}), CandidatePricing()
    on = machine_for(mesh, "h100")
    models = [replace(SMALL, batch=b, microbatches=q) for b in (24, 32, 64, 96) for q in (4, 8)]
    (group,) = by_step(Candidate(replace(m, remat="full"), mesh, PIPELINED) for m in models)
    for one, made in pricing.prices(group, on):
        assert made == price(one.cost(on)), one
    assert not pricing.alone


@pytest.mark.slow
def test_two_hundred_drawn_of_the_narrow_model():
    """All candidates that divide are drawn, also too large ones: fewer than 200 fit."""
    choices = {"batch": [192, 256, 512, 768, 1024], "microbatches": [8, 16, 32], "remat": ["full"]}
    found = sa.strategies(NARROW, 256, "v3", choices=choices, memory_bytes=1e15)
    for one in random.Random(12).sample(found.ranked, 200):
        assert price(one.cost) == one.price, one.candidate


def test_a_ranking_prints_as_a_table():
    found = sa.strategies(SMALL, 8, "v3", choices={"strategy": ["finalized"], "batch": [16]})
    assert repr(found).startswith(found.summary())
    assert "seconds_per_sample" in repr(found)
    assert "<table" in found._repr_html_()


@pytest.mark.slow
def test_a_page_says_what_it_leaves_out():
    asked = {"strategy": ["fsdp"], "batch": [8, 16, 3, 5, 7]}
    found = sa.strategies(SMALL, 8, "v3", choices=asked)
    assert (len(found.ranked), len(found.refused)) == (2, 3)
    page = found.page(2).to_html()
    assert page.count("The first ") == page.count("The first 2 of 3.") == 1
    assert "The first " not in found.page().to_html()


@pytest.mark.slow
def test_the_best_of_each_batch_and_of_each_order():
    asked = {"strategy": ["finalized"], "batch": [16, 32, 64], "order": ["all"]}
    found = sa.strategies(SMALL, 8, "v3", choices=asked)
    meshes = {tuple(one.candidate.mesh.shape.items()) for one in found.ranked}
    assert {(("X", 4), ("Y", 2)), (("Y", 2), ("X", 4))} <= meshes
    table = found.by_batch()
    assert list(table["batch"]) == [16, 32, 64]
    for batch, seconds in zip(table["batch"], table["seconds_per_sample"], strict=True):
        same = [o.seconds_per_sample for o in found.ranked if o.candidate.model.batch == batch]
        assert seconds == min(same)
    assert all(since <= batch for since, batch in zip(table["since"], table["batch"], strict=True))


@pytest.mark.slow
def test_the_command_prints_a_table_and_plain_data(capsys, tmp_path):
    page = tmp_path / "ranking.html"
    assert main([*ASKED, "--html", str(page), "--verify", "1"]) == 0
    printed = capsys.readouterr().out
    assert "4 fit, 0 do not fit or divide" in printed.splitlines()
    assert "proved" in printed
    assert "The fastest of each batch" in page.read_text()
    assert main([*ASKED, "--json", "--verify", "1"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert [row["batch"] for row in read["ranked"]].count(16) == 2
    (proof,) = read["verified"]
    assert "ok" in proof["verdict"]
    assert proof["seconds_per_sample"] == read["ranked"][0]["seconds_per_sample"]


WRONG = {
    "model": (["--model", "broad"], "model 'broad': write one of narrow-16b"),
    "chip": (["--hardware", "v99"], "no hardware 'v99': the names are"),
    "schedule": (["--strategy", "1f1b"], "strategy '1f1b': write one of finalized"),
    "memory": (["--memory", "1000"], "below parameters and optimizer state.*smallest that fits is"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_word_or_budget_on_the_command_line_is_one_line(case, capsys):
    given, message = WRONG[case]
    assert main([*ASKED, "--remat", "full", "--batch", "16", *given]) == 2
    *_, said = capsys.readouterr().err.splitlines()
    assert re.search(f"^shardalg strategies: error: .*{message}", said)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--batch", "16,"], "'16,': write whole numbers with commas between them, such as 16,32"),
        (["--verify", "-1"], "-1: write a number above 0"),
    ],
)
def test_a_word_that_is_no_number_on_the_command_line_is_one_line(given, message, capsys):
    with pytest.raises(SystemExit):
        main([*ASKED, *given])
    assert f"argument {given[0]}: {message}" in capsys.readouterr().err


def test_a_model_that_has_no_pipelined_plan_is_refused_by_name():
    gated = replace(SMALL, gated=True, microbatches=4)
    with pytest.raises(sa.StrategyError, match="no pipelined plan is made of a model with gated"):
        Candidate(gated, Mesh({"L": 2, "X": 2}), PIPELINED).argument_bytes()


def columns_at_256():
    """Return the seven columns of Tables 3 and 4 on 256 devices, with measurements."""
    for column in (*columns(3), *columns(4)):
        if math.prod(column.mesh.values()) != 256:
            continue
        facts, piped = column.facts, column.table == 4
        assert [getattr(NARROW.config, n) for n in "SMHNDVL"] == [facts[n] for n in "SMHNDVL"]
        parts = facts["num_microbatches"] if piped else 1
        remat = "full" if piped else False
        model = replace(NARROW, batch=facts["B"], microbatches=parts, remat=remat)
        made = Candidate(model, Mesh(column.mesh), PIPELINED if piped else "finalized")
        yield column, made, column.measured["step_time_s"] / facts["B"]


@pytest.mark.slow
def test_the_paper_order_of_2d_and_pipelines(show):
    """Seconds per sample as users see them: Kendall's tau, and every pair that differs by 5 %.

    One constant of TPU v3 is for pipelines, from one column; the other four are held out.
    """
    found = [
        (column, float(made.cost("v3").step_time_s) / made.model.batch, measured)
        for column, made, measured in columns_at_256()
    ]
    assert len(found) == 7
    tau = kendalltau([p for _, p, _ in found], [m for *_, m in found]).statistic
    errors = {column.id: p / m - 1 for column, p, m in found}
    show(f"tau {tau:.2f}; {', '.join(f'{name} {e:+.1%}' for name, e in errors.items())}")
    assert tau >= 0.8
    apart = [(a, b) for a, b in combinations(found, 2) if not 1 / 1.05 <= a[2] / b[2] <= 1.05]
    assert len(apart) > 10
    assert all((a[1] < b[1]) == (a[2] < b[2]) for a, b in apart)
    pipes = {c.id: errors[c.id] for c, *_ in found if c.table == 4}
    assert abs(pipes.pop(ANCHORS[4])) < 1e-4
    held_out = sorted(map(abs, pipes.values()))
    assert held_out[1] + held_out[2] <= 2 * 0.05
    assert held_out[-1] <= 0.10
