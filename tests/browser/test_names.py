"""Names that a user chooses are text in every page, drawing and trace, whatever they contain.

Each output is made twice: with harmless names and with hostile ones. The elements of both must be
the same, once as a parser sees them and once as a browser does after it has run the page.
"""

import ast
import io
import json
import re
import subprocess
import warnings
from functools import cache
from html.parser import HTMLParser
from typing import NamedTuple
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import matplotlib as mpl
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.algebra.affine import Index
from shardalg.drawing import Drawing
from shardalg.lower.three_ways import Comparison
from shardalg.models.ranking.ranked import Ranking
from shardalg.plan.page.plan_html import plan_document as page
from shardalg.show.html import Page, Section, tables_tex
from shardalg.tables import Table
from tests.browser.test_program_view import CHROMIUM, FLAGS, browser
from tests.test_layers import parsed, sources

RUNS = "document.title=1"
HOSTILE = {
    "markup": f"\"'><script>{RUNS}</script><img src=x onerror={RUNS}>",
    "characters": "$\\no{_<$ & % # {_}^~ |\n--> ]]> &lt; größe",
}


def plan_of(name):
    """Return a plan whose axes, arguments, modules, sites and chip contain a name."""

    def step(params, x):
        with jax.named_scope(module_of(name)):
            y = sa.annotate(jnp.tanh(x @ params[f"first {name}"]), f"site {name}")
        return (y @ params[f"second {name}"]).sum()

    w = jax.ShapeDtypeStruct((16, 16), "float32")
    axes = (f"axis {name}", "Y")
    given = {f"first {name}": P(*axes), f"second {name}": P(*axes)}
    return sa.plan(
        jax.grad(step), dict.fromkeys(given, w), w, mesh=sa.Mesh(dict.fromkeys(axes, 2)),
        in_shardings=(given, P(axes[0])), out_shardings=given,
    )  # fmt: skip


def module_of(name):
    """Return a module's name; `/` joins modules, and JAX itself makes scopes with `->`."""
    return f"module {name}".replace("/", "").replace("->", "")


def chip(name, folder):
    """Write a file with a chip of that name."""
    names = ("peak_flops_per_s.float32", "hbm_bytes", "hbm_bytes_per_s", "link_bytes_per_s")
    figures = dict.fromkeys(names, 1e12) | {"latency_s": 1e-6}
    data = {
        "schema": "shardalg.hardware/1",
        "name": f"chip {name}",
        "figures": {key: [{"value": v, "source": name}] for key, v in figures.items()},
    }
    path = folder / f"chip_{abs(hash(name))}.json"  # a file is read once
    path.write_text(json.dumps(data))
    return str(path)


def explained_recipe(name):
    """Return the explanation of a recipe for a function whose arguments have the name."""
    x = jax.ShapeDtypeStruct((4, 4), "float32")
    given = {f"weight {name}": x}
    recipe = sa.recipes.fsdp(f"axis {name}")
    mesh = sa.Mesh({f"axis {name}": 2})
    return recipe.explain(
        lambda w, x: x @ w[f"weight {name}"], given, x, mesh=mesh, roles=("parameters", "data")
    )


def found_rules(name):
    """Return the findings of rules with the name; one rule has no array."""
    mesh = sa.Mesh({f"axis {name}": 2})
    rules = sa.logical_rules([(f"rule {name}", f"axis {name}"), (f"embed {name}", None)], mesh)
    arrays = {f"weight {name}": ((4, 4), "float32", (f"embed {name}", None))}
    return rules.lint(arrays)


class Times(NamedTuple):
    """The median of runs, which a page shows."""

    median_s: float


class Runs(NamedTuple):
    """Measured times of both programs."""

    ours: Times = Times(1e-3)
    xla: Times = Times(2e-3)


def compared(name, hardware):
    """Return a comparison of two strategies with the name."""
    x = jax.ShapeDtypeStruct((8, 8), "float32")
    axes = (f"axis {name}", "Y")
    mesh = sa.Mesh(dict.fromkeys(axes, 2))
    ways = {f"way {axis} {name}": sa.Strategy(mesh, (P(axis),)) for axis in axes}
    return sa.compare(lambda x: x.sum(0), x, hardware=hardware, strategies=ways)


@cache
def outputs(name, folder):
    """Every kind of HTML that the library makes: the object's class to its HTML, or a page."""
    plan = plan_of(name)
    mesh, hardware = plan.mesh, chip(name, folder)
    axis = mesh.axis_names[0]
    sharding = plan.program.argument_shardings[-1]
    merged = sa.merge(sharding, sharding)
    strategy = sa.Strategy(mesh, in_shardings=(P(axis),), sites={f"site {name}": P(axis)})
    table = Table((f"column {name}", "n"), ((name, 1),))
    objects = [
        plan, plan.overview(hardware), plan.explain(0), plan.cost(hardware),
        plan.cost(hardware).limits, plan.verify(),
        plan.timeline(hardware), plan.listing(), plan.collectives(), plan.collectives(by="module"),
        plan.warnings(), plan.shardings(), plan.cost(hardware).table(by="module"),
        mesh, sharding, merged, sa.prove(merged), strategy, table, Ranking((), ((name, name),), 0),
        sa.halo(sa.Window(3), size=16, parts=4),
        sa.exchange(sa.Interval(Index.of("p") * 3 - 1, 4), size=12, count=4),
        plan.memory, compared(name, hardware), Comparison(Runs(), 0.0, 0.0, (), (name, 3)),
        explained_recipe(name), found_rules(name),
    ]  # fmt: skip
    shown = {}
    for place, each in enumerate(objects):
        shown[f"{place} {type(each).__name__}"] = (type(each), each._repr_html_())
    pages = {
        "page of a plan": page(plan, f"function {name}"),
        "page of tables": Page(name, name, (Section(name, (name, table)),)).to_html(),
        "page of a ranking": Ranking((), ((name, name),), 0).page().to_html(),
    }
    return shown, pages


class Elements(HTMLParser):
    """The elements of a page with the names of their attributes, and all its text."""

    VOID = ("meta", "img", "br", "link", "input", "hr")

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.text = [], [], []
        self.feed(text)
        self.close()
        assert not set(self.open) - {"meta", "html", "body"}, self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.text += [value for _, value in attrs if value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def kinds(elements):
    """Return the number of elements of each kind; the lengths of texts may fold a table."""
    return {tag: sum(e[0] == tag for e in elements) for tag in {e[0] for e in elements}}


def squeezed(text):
    return re.sub(r"\s+", " ", text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("names")


def test_every_class_that_makes_html_is_tried(folder):
    shown, _ = outputs("name", folder)
    tried = {base.__name__ for kind, _ in shown.values() for base in kind.__mro__}
    makers = {
        one.name
        for path in sources()
        for one in ast.walk(parsed(path))
        if isinstance(one, ast.ClassDef)
        and any(getattr(member, "name", "") == "_repr_html_" for member in one.body)
    }
    assert len(makers) >= 15
    assert makers <= tried, makers - tried


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", HOSTILE)
def test_names_make_no_elements(kind, folder):
    (ours, pages), (harmless, harmless_pages) = (
        outputs(HOSTILE[kind], folder),
        outputs("name", folder),
    )
    named = 0
    for place, (_, text) in ours.items():
        found, plain = Elements(text), Elements(harmless[place][1])
        assert found.elements == plain.elements, place
        said = squeezed(" ".join(found.text))
        named += squeezed(HOSTILE[kind]) in said or repr(HOSTILE[kind])[1:-1] in said
    assert named >= len(ours) / 2, "the names are in the outputs, as text"
    for place, text in pages.items():
        found, plain = Elements(text), Elements(harmless_pages[place])
        new = kinds(found.elements).items() - kinds(plain.elements).items()
        assert {tag for tag, _ in new} <= {"code"}, f"{place}: only `code` of a sentence"


@pytest.mark.slow
@browser
@pytest.mark.parametrize("kind", HOSTILE)
def test_no_name_runs_in_a_browser(kind, folder, tmp_path):
    shown, pages = outputs(HOSTILE[kind], folder)
    drawn = ["<svg" + svg(figure).partition("<svg")[2] for figure in figures(HOSTILE[kind])]
    whole = "".join(f"<section>{text}</section>" for _, text in shown.values()) + "".join(drawn)
    head = '<!doctype html><meta charset="utf-8"><title>names</title>'
    for text in (head + whole, *pages.values()):
        path = tmp_path / "names.html"
        path.write_text(text, encoding="utf-8")
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert "<title>1</title>" not in done.stdout, "a name ran as a script"
        found = Elements(done.stdout)
        assert "img" not in kinds(found.elements)
        assert kinds(found.elements).get("script", 0) == text.count("<script>\n(function")
        assert squeezed(HOSTILE[kind]) in squeezed(" ".join(found.text))


@cache
def figures(name):
    """Every kind of drawing with names in it."""
    plan = plan_of(name)
    sharding = plan.program.argument_shardings[-1]
    halo = sa.halo(sa.Window(3), size=16, parts=4)
    return [
        plan.draw(show="program"), plan.draw(show="bytes"), plan.timeline("tpu_v3").figure(),
        sa.draw({f"one {name}": plan, f"other {name}": plan}, show="bytes"), sharding.draw(),
        sa.draw({name: halo}), sa.merge(sharding, sharding).draw(),
        plan.draw(module=module_of(name)),
    ]  # fmt: skip


@cache
def svg(figure):
    """Return the drawing as SVG with its text as text."""
    out = io.StringIO()
    with warnings.catch_warnings(), mpl.rc_context({"svg.fonttype": "none"}):
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        figure.savefig(out, format="svg")
    return out.getvalue()


@pytest.mark.parametrize("kind", HOSTILE)
def test_drawings_show_names_as_they_are(kind):
    """SVG is well-formed XML whose text has the names, and contains only drawing elements."""
    for place, figure in enumerate(figures(HOSTILE[kind])):
        assert isinstance(figure, Drawing)
        root = ElementTree.fromstring(svg(figure))
        tags = {element.tag.rpartition("}")[2] for element in root.iter()}
        assert tags.isdisjoint({"script", "img", "b", "a", "image"}), place
        said = "".join(squeezed("".join(root.itertext())).split())
        first = HOSTILE[kind].split()[0]
        assert first in said or repr(first)[1:-1] in said, (place, said)


def test_powers_of_ten_stay_formulas():
    figure = Drawing(figsize=(3, 2))
    axes = figure.subplots()
    axes.plot([1, 1000], [1, 1000])
    axes.set(xscale="log", yscale="log", title="$x$")
    figure.draw_without_rendering()
    assert not axes.title.get_parse_math()
    assert axes.xaxis.get_major_ticks()[0].label1.get_parse_math()


@pytest.mark.parametrize("kind", HOSTILE)
def test_traces_tables_and_files_keep_names(kind, tmp_path, folder):
    name = HOSTILE[kind]
    plan = plan_of(name)
    plan.timeline(chip(name, folder)).save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(f"axis {name}" in event["args"].get("axes", "") for event in events)
    assert any(f"chip {name}" in event["args"].get("name", "") for event in events)
    plan.save(tmp_path / "plan.json")
    assert sa.load_plan(tmp_path / "plan.json").mesh.axis_names == plan.mesh.axis_names
    table = Table((name, "n"), ((name, 1),))
    assert len(table.to_markdown().splitlines()) == 3
    assert not re.search(r"(?<!\\)<[a-z]", table.to_markdown())
    words = tables_tex(Page("", "", (Section(name, (table,)),)))
    body = words.split(r"\begin{tabular}")[1]
    assert not re.search(r"(?<!\\)[$%#]", body), "special characters of LaTeX are escaped"
