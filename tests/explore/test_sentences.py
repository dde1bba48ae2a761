"""Each sentence of the explore report with a figure or a comparison equals its source."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from shardalg.lab.explore import paper_section, runs, strategies
from shardalg.lab.explore.settings import PAPER, TINY, Settings
from shardalg.lab.explore.strategies import (
    COLUMN,
    LAYER,
    MEASURED,
    NAME,
    PLACE,
    TRAIN_STEP,
    parameters_text,
    plans_of,
)
from shardalg.models.transformer import WIDE_64B
from shardalg.tables import Table, bytes_text, seconds_text

CHIP = "tpu_v3"


def one_line(text):
    return " ".join(text.split())


@pytest.fixture(scope="module")
def priced():
    return plans_of(PAPER, TRAIN_STEP)


def fake(peak_bytes, step_time_s, fits):
    cost = SimpleNamespace(fits=fits, step_time_s=step_time_s, peak_memory_bytes=peak_bytes)
    return SimpleNamespace(cost=lambda chip: cost)


def test_the_model_and_the_measurements_are_those_of_the_named_column():
    assert f"Table {COLUMN.table}, first column" == PLACE == "Table 2, first column"
    assert {letter: COLUMN.facts[letter] for letter in "BSMHNDVL"} == {
        letter: getattr(WIDE_64B, letter) for letter in "BSMHNDVL"
    }
    assert COLUMN.mesh == dict(PAPER.mesh.shape)
    assert not COLUMN.facts["remat"]
    assert MEASURED == {"peak_memory_gb": 15.3, "step_time_s": 5.74, "flops_utilization": 0.627}


def test_no_sentence_gives_the_model_another_table(priced):
    for words in (strategies.price_section(priced).parts[0], paper_section.INTRODUCTION):
        assert not re.findall(r"Table (?!2)\d, first|Table [3-8]", words)
    assert PLACE in strategies.price_section(priced).parts[0]


def test_both_numbers_of_parameters_are_explained():
    counts = WIDE_64B.parameter_counts()
    words = one_line(parameters_text(WIDE_64B))
    whole, layers, paper, embedding = re.fullmatch(
        r"([\d.]+) billion parameters: ([\d.]+) billion in the layers, which the paper calls "
        r"(\d+)B because its billion is 2\*\*30, and ([\d.]+) billion in the embedding",
        words,
    ).groups()
    assert float(whole) == round(sum(counts.values()) / 1e9, 2)
    assert float(whole) == pytest.approx(float(layers) + float(embedding))
    assert int(paper) * 2**30 == sum(counts.values()) - counts["embedding"]
    assert f"{paper}B" == COLUMN.facts["param_count"] == NAME.split()[0]


@pytest.mark.slow
def test_both_step_times_are_explained(priced):
    scanned = priced["finalized"].cost(CHIP)
    section = paper_section.section(scanned=scanned)
    words = one_line(section.parts[1])
    table = next(part for part in section.parts if type(part) is Table)
    ours = dict(zip(table["quantity"], table["estimated"], strict=True))
    (price,) = (p for p in strategies.price_section(priced).parts if type(p) is Table)
    beside = next(row for row in price if row["strategy"] == "finalized")
    said = [float(n) for n in re.findall(r"([\d.]+) (?:s|GB)\b", words)]
    assert said == [
        beside["step_time_s"], round(ours["step_time_s"], 2),
        beside["peak_memory_gb"], round(ours["peak_memory_gb"], 2),
    ]  # fmt: skip
    assert f'"{strategies.AT_SIZE}"' in words
    assert said[0] > said[1]
    assert said[2] < said[3]
    (times,) = re.findall(r"executes ([\d.]+) times the flops", words)
    assert 1.2 < float(times) < 4 / 3  # the layers' forward pass once more, of three
    assert "The paper's program rematerialises nothing" in one_line(
        strategies.price_section(priced).parts[0]
    )


def test_the_fastest_is_chosen_of_all_when_all_fit(priced):
    costs = {name: made.cost(CHIP) for name, made in priced.items()}
    said = strategies.price_section(priced).conclusion
    best = min(costs, key=lambda name: costs[name].step_time_s)
    assert all(cost.fits for cost in costs.values())
    assert said == (
        f"The paper's 64B model on tpu_v3, layers rematerialised: all 3 strategies fit; the "
        f"fastest is {best}, {seconds_text(costs[best].step_time_s)} a step and "
        f"{bytes_text(costs[best].peak_memory_bytes)} a device."
    )


@pytest.mark.parametrize(
    ("plans", "said"),
    [
        ({"a": (9, 1.0, False), "b": (3, 3.0, True), "c": (2, 2.0, True)},
         "2 of 3 strategies fit (b, c); of these the fastest is c, 2"),
        ({"a": (9, 1.0, False), "b": (8, 3.0, False)}, "no strategy fits; the fastest is a, 1"),
        ({"a": (1, 1.0, True)}, ": a fits, 1"),
        ({"a": (1, 2.0, True), "b": (1, 1.0, True)}, "all 2 strategies fit; the fastest is b, 1"),
    ],
)  # fmt: skip
def test_the_choice_is_described_as_it_is(plans, said):
    made = {name: fake(*figures) for name, figures in plans.items()}
    assert said in strategies._priced_as(made, "any")


def test_the_least_bytes_are_the_least_of_the_totals():
    found = plans_of(Settings(config=TINY, quick=True), LAYER)
    totals, *each = strategies.sections(found)
    sent = {
        name: sum(section.parts[0]["executions"][i] * b
                  for i, b in enumerate(section.parts[0]["wire_bytes"]))
        for name, section in zip(found, each, strict=True)
    }  # fmt: skip
    table = next(part for part in totals.parts if type(part) is Table)
    assert dict(zip(table["strategy"], table["wire_bytes_per_step"], strict=True)) == sent
    least = min(sent, key=sent.get)
    assert totals.conclusion.startswith(
        f"A layer and its gradient send {bytes_text(sent[least])} a device under {least} ("
    )
    rest = re.findall(r"(attempt \d|finalized) ([\d.]+ \wB)", totals.conclusion.split("(")[1])
    assert rest == [(n, bytes_text(sent[n])) for n in found if n != least]


def test_columns_named_in_the_words_are_columns_of_the_tables():
    assert set(re.findall(r"`(\w*wire_bytes\w*)`", runs.INTRODUCTION)) <= set(runs.SUMMARY)
    assert {"error", "xla_error"} <= set(runs.SUMMARY)
    for words, columns in ((runs.TIMES, runs.TIMED), (runs.MEMORY, runs.HELD)):
        named = set(re.findall(r"`(\w+)`", words))
        assert named <= set(columns), named - set(columns)
    named = set(re.findall(r"`(\w+)`", strategies.INTRODUCTION))
    assert named <= {*strategies.SHOWN, *strategies.SENT}


def test_the_words_of_a_run_are_the_worst_error_and_the_share_of_bytes():
    total = {"wire_bytes_per_step": 30, "xla_wire_bytes_per_step": 40}

    def ran(error, **changed):
        beside = SimpleNamespace(where=lambda kind: iter([{**total, **changed}]))
        return SimpleNamespace(compared=SimpleNamespace(relative_error=error), beside=beside)

    found = [ran(1e-6), ran(3e-7)]
    assert runs._ran(8, found) == (
        "On 8 CPU devices: errors of at most 1e-06 against one device; 75% of the bytes that XLA "
        "sends."
    )
    assert runs._ran(4, [ran(0.0, xla_wire_bytes_per_step=0)]).endswith("XLA sends nothing.")


def test_words_of_fewer_layers_are_of_those_layers():
    few = replace(paper_section.UNROLLED, config=replace(WIDE_64B, L=2))
    words = one_line(paper_section.section(few).parts[0])
    assert "2 unrolled layers" in words
    assert "which the paper calls 4B" in words
