import base64
from html.parser import HTMLParser

from shardalg.show.html import Listing, Page, Picture, Section
from shardalg.tables import Table

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)
PAGE = Page(
    "Plan of `f`",
    "on 8 devices",
    (
        Section("Collectives & co", (
            "First <b> and `x[0]`, **bold**.",
            Table(("op", "wire_bytes"), (("a<b", 134217728), ("c" * 60, 0.5), (None, 7))),
        )),
        Section("Program", (Listing("%0 = add <1>"), Picture("ffn", PNG, "The layer's graph"))),
    ),
)  # fmt: skip
VOID = {"meta", "img", "br", "link"}


class Checker(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.tags, self.links, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.links += [v for k, v in attrs if k in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parsed():
    checker = Checker()
    checker.feed(PAGE.to_html())
    assert not checker.open
    return checker


def test_the_page_is_well_formed_and_needs_nothing_else():
    page = parsed()
    assert page.links[:2] == ["#s1", "#s2"]
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in page.links)
    data = page.links[-1].removeprefix("data:image/png;base64,")
    assert base64.b64decode(data) == PNG
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    assert {link[1:] for link in page.links if link.startswith("#")} == ids


def test_text_is_escaped_and_numbers_are_for_reading():
    page = parsed()
    assert {"134,217,728", "a<b", "0.5", "%0 = add <1>", "x[0]"} <= set(page.text)
    assert "First <b> and " in page.text
    cells = [attrs.get("class") for tag, attrs in page.tags if tag == "td"]
    assert cells == [None, "n", "wide", "n", None, "n"]


def test_formulas_stay_formulas():
    import sympy

    formula = Table(("size",), ((sympy.Symbol("B") / 2,),))
    assert "<mfrac>" in Page("t", "", (Section("s", (formula,)),)).to_html()


def test_markdown_and_files(tmp_path):
    paths = PAGE.write(tmp_path / "out")
    assert [p.name for p in paths] == ["report.html", "report.md", "ffn.png"]
    text = paths[1].read_text()
    assert text.startswith("# Plan of `f`\n\non 8 devices\n\n## Collectives & co\n")
    assert "| a<b | 134217728 |" in text
    assert "![The layer's graph](ffn.png)" in text
    assert "```\n%0 = add <1>\n```" in text
    assert paths[2].read_bytes() == PNG
