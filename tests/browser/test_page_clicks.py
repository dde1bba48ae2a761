"""A plan's page in a browser: clicks, keys, the link, contrast, and no error in its script."""

import json
import re
import subprocess

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from tests.browser.test_names import HOSTILE, plan_of
from tests.browser.test_program_view import CHROMIUM, FLAGS, browser


def step(params, x):
    for i, w in enumerate(params):
        with jax.named_scope(f"layers_{i}"):
            x = jnp.tanh(x @ w)
    return x.sum()


def deep(layers):
    """Return a plan of many unrolled layers on 2,048 devices."""
    params = [jax.ShapeDtypeStruct((2048, 2048), "bfloat16")] * layers
    x = jax.ShapeDtypeStruct((4096, 2048), "bfloat16")
    mesh = sa.Mesh({"X": 64, "Y": 32})
    specs = (P("X", "Y"), P("X"))
    return sa.plan(jax.grad(step), params, x, mesh=mesh, in_shardings=specs)


PLANS = {
    "two layers": lambda: deep(2),
    "80 layers": lambda: deep(80),
    "hostile": lambda: plan_of(next(iter(HOSTILE.values()))),
}
# Errors are collected before the page's own script runs.
HEAD = "<script>window.errors=[];window.onerror=text=>{window.errors.push(text)};</script>"
SCRIPT = """
const one = name => document.querySelector(name);
const all = name => [...document.querySelectorAll(name)];
const said = {}, wait = () => new Promise(done => setTimeout(done, 60));
(async () => {
  said.cells = all(".mesh rect").length;
  said.rows = all("[data-pick]").length;
  // Every line and module shows something, and a second click clears it.
  said.empty = all("[data-pick]").filter(row => {
    row.click();
    const text = one(".detail h2"), pressed = row.getAttribute("aria-pressed") === "true";
    return !text || !pressed || !one(".meshtitle").textContent;
  }).length;
  const row = all('[data-pick^="line"]')[0];
  row.click();
  if (row.getAttribute("aria-pressed") !== "true") row.click();
  said.link = location.hash;
  const parts = all("[data-show]");
  parts[parts.length - 1].click();
  said.part = location.hash.includes("show=v");
  const before = one(".meshsaid").textContent;
  const cells = all(".mesh rect");
  cells[0].dispatchEvent(new MouseEvent("click", {bubbles: true}));
  one(".mesh svg").dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
  said.moved = one(".meshsaid").textContent !== before || cells.length === 1;
  // The address alone restores the selection.
  const kept = location.hash;
  one("[data-reset]").click();
  said.reset = location.hash === "";
  location.hash = kept;
  await wait();
  said.restored = row.getAttribute("aria-pressed") === "true";
  row.focus();
  row.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowDown", bubbles: true}));
  said.focused = document.activeElement !== row || all('[data-pick^="line"]').length === 1;
  row.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape", bubbles: true}));
  said.escaped = all('[aria-pressed="true"][data-pick]').length;
  const curve = one(".curve"), box = curve.getBoundingClientRect();
  curve.dispatchEvent(new MouseEvent("click", {clientX: box.left + 2, clientY: box.top + 9}));
  said.alive = one(".alivehere").open && all(".alive code").length > 0;
  curve.dispatchEvent(new KeyboardEvent("keydown", {key: "End", bubbles: true}));
  said.end = curve.getAttribute("aria-valuenow") === curve.getAttribute("aria-valuemax");
  said.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  // The contrast of every text with its background (WCAG 2.2, 1.4.3).
  const light = text => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const below = element => {
    for (let up = element; up; up = up.parentElement) {
      const found = getComputedStyle(up).backgroundColor;
      if (!/^rgba.*, 0\\)$/.test(found)) return found;
    }
    return "rgb(255, 255, 255)";
  };
  said.faint = all(".sa-page *").filter(e => !e.closest("svg, style, script, .sa-view")
    && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())).filter(e => {
      const [a, b] = [light(getComputedStyle(e).color), light(below(e))];
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
    }).map(e => e.className + ": " + e.textContent.slice(0, 30)).slice(0, 5);
  said.errors = window.errors;
  document.body.dataset.said = JSON.stringify(said);
})();
"""


@pytest.fixture(scope="module", params=PLANS)
def path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "plan.html"
    PLANS[request.param]().page(path)
    assert path.stat().st_size < 5e6
    text = path.read_text(encoding="utf-8").replace("<body>", f"<body>{HEAD}", 1)
    path.write_text(text.replace("</body>", f"<script>{SCRIPT}</script></body>"), encoding="utf-8")
    return path


@browser
@pytest.mark.parametrize("width", [1280, 500])
@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
def test_a_person_clicks_through_the_page(path, width, scheme, tmp_path):
    command = [
        CHROMIUM, *FLAGS, f"--window-size={width},900", f"--user-data-dir={tmp_path / 'profile'}",
        f"--blink-settings=preferredColorScheme={scheme}", path.as_uri(),
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'data-said="([^"]*)"', shown)
    assert found, shown[-500:]
    said = json.loads(found[1].replace("&quot;", '"').replace("&amp;", "&"))
    assert said["errors"] == []
    assert said["rows"] >= 2
    assert said["empty"] == 0
    assert said["link"].startswith("#line=")
    assert said["faint"] == []
    assert said["wide"] <= 0, "the page is not wider than its window"
    assert said["escaped"] == 0
    for name in ("part", "moved", "reset", "restored", "focused", "alive", "end"):
        assert said[name], name
