"""A plan's page in a browser: folded parts open by click and key, and nothing is loaded."""

import re
import shutil
import subprocess

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.plan.overview import program_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--virtual-time-budget=2000", "--dump-dom",
)  # fmt: skip
browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: `make browser` needs it")


@pytest.fixture(scope="module")
def plan():
    def step(w, x):
        def trip(x, w):
            return jnp.tanh(x @ w), None

        return jax.lax.scan(trip, x, w)[0].sum()

    w, x = (jax.ShapeDtypeStruct(s, "float32") for s in ((3, 16, 16), (8, 16)))
    mesh = sa.Mesh({"X": 2, "Y": 4})
    return sa.plan(step, w, x, mesh=mesh, in_shardings=(P(None, "X", "Y"), P("X", "Y")))


def page(plan, title):
    head = f'<meta charset="utf-8"><title>{title}</title>'
    return f'<!doctype html>\n<html lang="en">{head}\n<body>{program_html(plan)}</body></html>\n'


def dom(plan, tmp_path, script=""):
    """Return the browser's page after a script ran in it."""
    path = tmp_path / "plan.html"
    made = page(plan, "a plan").replace("</body>", f"<script>{script}</script></body>")
    path.write_text(made, encoding="utf-8")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_page_holds_all_that_it_needs(plan):
    made = page(plan, "a plan")
    assert not re.search(r"\b(src|href)\s*=|@import|url\(", made)
    assert "https:" not in made
    assert "http:" not in made


def test_every_collective_has_a_chip_and_a_line(plan):
    made = page(plan, "a plan")
    for number, row in enumerate(plan.collectives().itertuples()):
        (line,) = re.findall(rf'id="(p[0-9a-f]+-{number})"', made)
        assert f'data-line="{line}"' in made, row
        assert f"plan.explain({number})" in made


@browser
def test_all_is_folded_until_it_is_opened(plan, tmp_path):
    first = dom(plan, tmp_path)
    opened = dom(plan, tmp_path, "document.querySelector('[data-all=open]').click()")
    groups = first.count("<details")
    assert groups > first.count("<details open") >= 1
    assert opened.count("<details open") == groups


@browser
def test_a_chip_opens_its_groups_and_marks_its_instruction(plan, tmp_path):
    script = """
      const chips = [...document.querySelectorAll('[data-line]')];
      const chip = chips.filter(each => each.checkVisibility()).pop();
      chip.focus();
      document.body.dataset.focused = document.activeElement === chip && chip.tabIndex === 0;
      chip.click();
      const now = document.querySelectorAll('.sa-now');
      let folded = 0;
      for (let up = now[0]; up; up = up.parentElement)
        if (up.tagName === 'DETAILS' && !up.open) folded += 1;
      document.body.dataset.seen = [now.length, now[0].id === chip.dataset.line, folded].join();
    """
    found = dom(plan, tmp_path, script)
    assert 'data-seen="1,true,0"' in found
    assert 'data-focused="true"' in found


@browser
def test_pointing_at_a_value_tells_why_it_lies_so(plan, tmp_path):
    found = dom(plan, tmp_path)
    told = re.findall(r'<span title="([^"]+)">%[0-9]+</span>', found)
    assert any("annotated" in title for title in told)
