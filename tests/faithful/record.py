"""Records XLA's answers to some fresh programs, as the suite reads them; by each version of jax.

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
    """Ask XLA's both partitioners what is not recorded yet, and write what they say.

    A program is recorded once for each way in which a version of jax traces it.
    """
    known = json.loads(FACTS.read_text())["programs"] if FACTS.exists() else []
    kept = [row for row in known if (row["case"], row["seed"]) in CHOSEN]
    found = {(row["case"], row["seed"], row["traced"]) for row in kept}
    for case, seed in CHOSEN:
        program = Fresh(case, seed)
        if (case, seed, program.traced) not in found:
            about = {"case": case, "seed": seed, "traced": program.traced, "jax": jax.__version__}
            kept.append(about | {who: program.told(who) for who in WHO})
    kept.sort(key=lambda row: (CHOSEN.index((row["case"], row["seed"])), row["jax"]))
    about = "XLA's completion of fresh programs by both partitioners, CPU"
    FACTS.write_text(json.dumps({"about": about, "programs": kept}, separators=(",", ":")) + "\n")


WHO = ("gspmd", "shardy")

if __name__ == "__main__":
    main()
