"""The printed rows. To rewrite the file after a meant change: `python -m tests.ops.golden`."""

from pathlib import Path

from shardalg.costs.flops import flops
from shardalg.graph.ops.examples import CASES, signature
from shardalg.graph.ops.local_parameters import unsupported_loops
from shardalg.graph.ops.loops import loop_class, row_class
from shardalg.graph.ops.rows import rules

PATH = Path(__file__).with_name("golden.txt")


def lines():
    """Return a line per row: text, class of the row and of each loop, unsplit loops, flops."""
    for case in CASES:
        for rule in rules(signature(case)):
            classes = " ".join(
                f"{name}={extent}:{loop_class(rule, name)}" for name, extent in rule.loops
            )
            barred = " ".join(sorted(unsupported_loops(rule))) or "-"
            yield f"{rule} | {row_class(rule)} | {classes} | {barred} | {flops(rule)}"


if __name__ == "__main__":
    PATH.write_text("\n".join(lines()) + "\n")
