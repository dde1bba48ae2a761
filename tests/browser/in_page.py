"""Scripts that run inside a page in headless Chromium, and the checks that all pages pass."""

import json
import re
import subprocess

from tests.browser.test_program_view import CHROMIUM, FLAGS

# Errors are collected before the page's own script runs.
HEAD = "<script>window.errors=[];window.onerror=text=>{window.errors.push(text)};</script>"
START = """
const one = name => document.querySelector(name);
const all = name => [...document.querySelectorAll(name)];
const said = {}, wait = () => new Promise(done => setTimeout(done, 60));
const change = (element, value) => {
  element.value = value;
  element.dispatchEvent(new Event("input", {bubbles: true}));
  element.dispatchEvent(new Event("change", {bubbles: true}));
};
(async () => {
"""
END = """
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
  said.faint = all(".sa-page *").filter(e => !e.closest("svg, style, script, noscript, .sa-view")
    && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())).filter(e => {
      const [a, b] = [light(getComputedStyle(e).color), light(below(e))];
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
    }).map(e => e.className + ": " + e.textContent.slice(0, 30)).slice(0, 5);
  // Every control has a name that is read aloud.
  said.unnamed = all(".sa-page button, .sa-page select, .sa-page input").filter(e =>
    !e.textContent.trim() && !e.getAttribute("aria-label")).length;
  said.errors = window.errors;
  const told = document.createElement("script");
  told.type = "application/json";
  told.id = "said";
  told.textContent = JSON.stringify(said).replaceAll("<", "\\\\u003c");
  document.body.append(told);
})().catch(error => { document.body.dataset.failed = String(error.stack || error); });
"""


def said_by(page, script, folder, *, width=1280, scheme=1, budget=None):
    """Return what a script inside of a page found, after the checks that all pages pass.

    Args:
      page: the HTML file's text. script: JavaScript that fills the object `said`.
      scheme: 0 for dark, 1 for light. budget: milliseconds of the page's clock.
    """
    text = page.replace("<body>", f"<body>{HEAD}", 1)
    whole = f"<script>{START}{script}{END}</script></body>"
    path = folder / f"page{width}{scheme}.html"
    path.write_text(whole.join(text.rsplit("</body>", 1)), encoding="utf-8")
    flags = [f for f in FLAGS if budget is None or "virtual-time" not in f]
    flags += [f"--virtual-time-budget={budget}"] if budget else []
    command = [
        CHROMIUM, *flags, f"--window-size={width},900", f"--user-data-dir={folder / 'profile'}",
        f"--blink-settings=preferredColorScheme={scheme}", path.as_uri(),
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'<script type="application/json" id="said">(.*?)</script>', shown, re.S)
    failed = re.search(r'data-failed="([^"]*)"', shown)
    assert found, failed[1] if failed else shown[-1500:]
    said = json.loads(found[1])
    assert said["errors"] == []
    assert said["faint"] == []
    assert said["unnamed"] == 0
    assert said["wide"] <= 0, "the page is not wider than its window"
    return said
