from shardalg.costs import estimate
from shardalg.costs.hardware import load
from shardalg.report.explore import Entry, page
from shardalg.table import Table
from tests.report.planned import DIM_NAMES, STRATEGIES, planned

TIMES = Table(
    ("executable", "median_s", "quartile_1_s", "quartile_3_s"),
    (("shardalg", 1e-3, 0.9e-3, 1.4e-3), ("xla", 2e-3, 1.9e-3, 2.2e-3)),
)
CLAIMS = Table(
    ("node", "claim", "status", "ms", "smt2"), (("dot", "merge", "proved", 2.0, "(assert p)"),)
)


def entry(strategy, **known):
    program, graph, _ = planned("ffn", strategy)
    return Entry(strategy, program, graph, **known)


def known(strategy):
    bare = entry(strategy)
    cost = estimate(bare.program, bare.graph, load("tpu_v3"))
    return entry(
        strategy, cost=cost, measured=TIMES, xla=bare.collectives, claims=CLAIMS
    )


def test_a_full_page_has_every_section_and_writes_its_files(tmp_path):
    entries = [known(strategy) for strategy in STRATEGIES]
    made = page("Three", "a layer", entries=entries, drawn=entries, dim_names=DIM_NAMES)
    titles = [section.title for section in made.sections]
    assert titles[:6] == [
        "What each strategy sends", "The partitioned program, drawn", "Run on this machine",
        "Beside XLA's collectives", "Estimated time and memory", "What is proved",
    ]  # fmt: skip
    assert titles[6:9] == [f"{strategy}: every collective" for strategy in STRATEGIES]
    names = {path.name for path in made.write(tmp_path)}
    assert names == {
        "report.html", "report.md", "wire_bytes.png", "partitioned.png", "measured.png",
    }  # fmt: skip
    text = (tmp_path / "report.md").read_text()
    assert "| 2D attempt 1 | 2 |" in text
    assert "reduce_scatter" in text


def test_ours_beside_itself_is_equal():
    made = page("One", "", entries=[known("2D finalized")])
    beside = next(s for s in made.sections if s.title.startswith("Beside"))
    (table,) = (part for part in beside.parts if type(part) is Table)
    assert table["wire_bytes"] == table["xla_wire_bytes"]
    assert table["wire_bytes"][-1] == sum(table["wire_bytes"][:-1]) > 0


def test_what_is_not_known_is_left_out():
    made = page("One", "", entries=[entry("2D finalized")])
    assert [section.title for section in made.sections] == [
        "What each strategy sends",
        "2D finalized: every collective",
        "2D finalized: the program of each device",
    ]
