"""Draw the pictures of the README and of the guides: `make figures`.

The page of a plan is photographed by a headless Chromium (Debian's package `chromium`).
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from PIL import Image

import shardalg as sa
from shardalg.cli import main as shardalg

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "figures"
EXAMPLE = ROOT / "docs" / "examples" / "decoder.py"
PIPELINE = sa.models.Config(B=256, S=1024, M=4096, H=16384, N=64, D=128, V=32000, L=64)
"""The narrow Transformer of the GSPMD paper's Table 4 (arXiv:2105.04663)."""
SIZE = (1280, 900)
"""Width and height of the photographed part of the page, in CSS pixels."""


def photograph(page: Path, picture: Path, size: tuple[int, int] = SIZE) -> None:
    """Write a picture of an HTML page, as a window of the given size shows it.

    Raises:
      SystemExit: no Chromium is installed.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("No chromium here. Install Debian's package `chromium`.")
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw.png"
        command = [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--hide-scrollbars", "--virtual-time-budget=2000", "--force-device-scale-factor=1.5",
            f"--user-data-dir={folder}/profile", f"--window-size={size[0]},{size[1]}",
            f"--screenshot={raw}", page.as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        # A page has few colours: 128 of them are a third of the bytes.
        Image.open(raw).convert("RGB").quantize(128).save(picture, optimize=True)


def plan_page() -> None:
    """Draw the page of the decoder's plan on 64 H100."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "plan.html"
        shardalg(["plan", f"{EXAMPLE}:step", "--hardware", "h100:64", "--html", str(page)])
        photograph(page, FIGURES / "plan_page.png")


def drawn(value: Any) -> str:
    """Return the SVG that a notebook shows for a value."""
    return re.search(r"<svg.*?</svg>", value._repr_html_(), re.DOTALL)[0]  # type: ignore[index]


def partial_sums() -> Any:
    """Return the drawing of a feed-forward layer under the three strategies of the paper."""
    config = sa.models.Config(B=8, S=32, M=128, H=512, N=16, D=16, dtype="float32")
    mesh, ffn = sa.Mesh({"X": 2, "Y": 4}), sa.models.part("ffn")
    strategies = {
        name: getattr(sa.paper, name)(mesh, config, "ffn")
        for name in ("attempt_1", "attempt_2", "finalized")
    }
    given = ffn.function(config), *ffn.arguments(config)
    plans = {
        name.replace("_", " "): sa.plan(*given, strategy=strategy, roles=ffn.roles())
        for name, strategy in strategies.items()
    }
    return sa.draw(plans, letters={letter: getattr(config, letter) for letter in "BSMH"})


def concepts() -> None:
    """Draw the pictures of `docs/concepts.md`."""
    mesh = sa.Mesh({"X": 2, "Y": 4})

    def read(text: str, shape: tuple[int, ...] = (64, 128)) -> sa.Sharding:
        return sa.Sharding.parse(text, shape, mesh)

    refused = sa.merge(read("[X, None]"), read("[None, X]"))
    window = sa.Window(2, padding_low=1, padding_high=4)
    before, after = (read(text, (8, 8)) for text in ("[(X, Y), None]", "[X, Y]"))
    model = sa.models.Pipelined(PIPELINE, sa.models.Schedule(4, 8)).model
    options = sa.Options(switches=sa.Switches(defer_in_loops=True))
    pipeline = model.plan(sa.Mesh({"L": 4, "X": 16, "Y": 4}), sa.models.TABLE_4, options)

    for name, value in (("offsets", read("[X, Y]")), ("refused", refused)):
        (FIGURES / f"concept_{name}.svg").write_text(
            drawn(value).replace("currentColor", "#1b1f24") + "\n"
        )
    for name, figure in (
        ("halo", sa.halo(window, size=12, parts=4).draw()),
        ("reshard", sa.draw({"before": before, "after": after})),
        ("sums", partial_sums()),
        ("pipeline", pipeline.timeline("tpu_v3").figure()),
    ):
        figure.savefig(FIGURES / f"concept_{name}.png", dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    for draw in (concepts, plan_page):
        if not sys.argv[1:] or draw.__name__ in sys.argv[1:]:
            draw()
