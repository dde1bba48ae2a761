"""Records XLA's answers to some fresh programs, as the suite reads them.

python -m tests.faithful.record
"""

import json
from pathlib import Path

import jax

from tests.faithful.agreement import Fresh

FACTS = Path(__file__).parent / "told.json"
CHOSEN = (
    ("solver", 1), ("branches", 1), ("microbatches", 5), ("nested", 1), ("mapped", 1),
    ("state_space", 1), ("decode", 2), ("crossed", 1), ("nested", 1024), ("branches", 1010),
    ("cells", 2), ("prefill", 3), ("generate", 5004),
)  # fmt: skip
"""Programs of which each rule of either way decides one."""


def main():
    """Ask XLA's both partitioners, and write what they say."""
    told = [
        {"case": case, "seed": seed} | {who: Fresh(case, seed).told(who) for who in WHO}
        for case, seed in CHOSEN
    ]
    about = f"XLA's completion of fresh programs by both partitioners, jax {jax.__version__}, CPU"
    FACTS.write_text(json.dumps({"about": about, "programs": told}, separators=(",", ":")) + "\n")


WHO = ("gspmd", "shardy")

if __name__ == "__main__":
    main()
