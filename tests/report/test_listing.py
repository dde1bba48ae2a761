"""Pointing at a value of a program's listing shows why it is sharded so."""

import re

import jax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.plan.explain.disagreements import MOST_STEPS, chain_text, program_listing
from shardalg.plan.explain.explained import explanation
from shardalg.show.html import Listing, Page, Section
from tests.report.planned import planned
from tests.report.test_html import Checker


def listed(name):
    program, graph, sharded = planned(name, "2D finalized")
    return program, graph, sharded, program_listing(program, sharded)


def spans(listing):
    """(title, text) of every span of the HTML."""
    page = Checker()
    page.feed(listing._repr_html_())
    assert not page.open
    return [dict(attrs)["title"] for tag, attrs in page.tags if tag == "span"], "".join(page.text)


def test_the_text_is_the_program():
    program, graph, _, listing = listed("ffn")
    assert repr(listing) == program.text(graph)
    assert spans(listing)[1] == repr(listing)


def test_every_mention_of_a_value_tells_its_chain():
    program, _, sharded, listing = listed("ffn_gradient")
    mentions = [int(number) for number in re.findall("%([0-9]+)", repr(listing))]
    seen, told = set(), []
    for local in mentions:
        if program.locals[local].origin is not None:
            lines = chain_text(sharded, program.locals[local].origin).splitlines()
            told.append("\n".join(lines[: 2 if local in seen else None]))
            seen.add(local)
    # Behind the chain of what a collective makes stand the sides that disagree.
    chains = [title.split("\ncollective ")[0] for title in spans(listing)[0]]
    assert [chain for chain in chains if not chain.startswith("collective ")] == told
    assert len(told) > len(program.block.instructions)


def test_a_title_ends_at_the_annotation_that_explain_names():
    _, graph, sharded, _ = listed("ffn_gradient")
    for value in graph.values:
        lines = chain_text(sharded, value.index).splitlines()
        steps = explanation(sharded, value.name).steps
        assert lines[0] == f"{value.name} {sharded.shardings[value.index].text()}"
        assert len(lines) == 1 + min(len(steps), MOST_STEPS) + (len(steps) > MOST_STEPS)
        if len(steps) <= MOST_STEPS and steps["annotation"][-1]:
            assert "annotated" in lines[-1] or "border" in lines[-1]


def test_titles_are_escaped_and_need_no_script():
    html = Page(
        "t", "l", (Section("s", (Listing("%1 = %12", (("%1", 'a "b" <c>\nd'),)),)),)
    ).to_html()
    assert '<span title="a &quot;b&quot; &lt;c&gt;&#10;d">%1</span> = %12' in html
    assert "<script" not in html


def test_what_a_collective_makes_tells_the_sides_that_disagree():
    x = jax.ShapeDtypeStruct((8, 16), "float32")
    plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 4}), in_shardings=(P("X"),))
    (made,) = plan._stages.traffic.collectives[0].step.instruction.results
    title = dict(plan.listing().titles)[f"%{made}"]
    assert "collective 0, see plan.explain(0):" in title
    assert "is a sum that is pending: [None]{U:X} (argument x)" in title
    assert title.index("collective 0") > 0
