"""`python -m tests.mutate [MUTANTS [SEED [NAME...]]]`: tampered programs, each judged by `verify`.

Prints progress, every mutant that is accepted and wrong or has no verdict, and a table per kind of
what was tampered with. `python -m tests.mutate NAME/SEED/NUMBER` shows one of them again.
Programs are those of `programs.CASES` and one per group of operators, drawn with the seed
(`drawn.py`); the name `operators` stands for the latter alone.
"""

import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import replace

import jax

import shardalg as sa
from tests.mutate.drawn import drawn_case, drawn_names
from tests.mutate.judge import NO_VERDICT, REFUTED, SAME, WRONG, Judge
from tests.mutate.programs import CASES, again, every_option
from tests.partition.planned import instructions

SAMPLED = 20
"""Of so many refuted mutants one is run, to learn how many change nothing."""
LOWERED = 20
"""Of so many accepted mutants one is lowered."""
COLUMNS = ("mutants", "checked", REFUTED, SAME, "run", "refused alike", WRONG, NO_VERDICT)


def judge_of(name):
    """Return the judge of a program: of a family, or of a drawn operator."""
    return Judge(drawn_case(name) if "@" in name else CASES[name])


def mutants(count, seed, names):
    """(name, number, mutant, judge) in turns."""
    judges = {name: judge_of(name) for name in names}
    for number in range(count):
        name = names[number % len(names)]
        yield name, number, judges[name].mutant(name, seed, number), judges[name]


def judged(count, seed, names, *, sampled=SAMPLED, lowered=LOWERED):
    """Return (name, number, mutant, verdict, result of running a refuted one or None)."""
    accepted = refuted = 0
    for name, number, made, judge in mutants(count, seed, names):
        verdict, ran = judge.verdict(made.program), None
        if verdict.status == SAME:
            accepted += 1
            fault = "" if accepted % lowered else judge.lowered_fault(made.program)
            verdict = (
                replace(verdict, status=WRONG, words=f"lowered: {fault}") if fault else verdict
            )
        if verdict.status == REFUTED and verdict.checked:
            refuted += 1
            ran = None if refuted % sampled else judge.fault(made.program)
        yield name, number, made, verdict, ran


class Tally:
    """Counts per kind of mutation, and of all."""

    def __init__(self):
        self.rows = defaultdict(Counter)

    def add(self, made, verdict, ran):
        kind = made.kinds[0] if len(made.kinds) == 1 else "two at once"
        for row in (self.rows[kind], self.rows["all"]):
            row.update(["mutants", verdict.status] + ["checked"] * verdict.checked)
            row.update(["run"] * (ran is not None) + ["refused alike"] * (ran == ""))

    def __str__(self):
        width = max(map(len, self.rows))
        lines = [" ".join([" " * width, *(f"{c:>13}" for c in COLUMNS)])]
        lines += [
            " ".join([f"{kind:{width}}", *(f"{row[c]:13d}" for c in COLUMNS)])
            for kind, row in sorted(self.rows.items(), key=lambda item: (item[0] == "all", item[0]))
        ]
        return "\n".join(lines)


def refused():
    """Return a refused or wrong program of some policy or switch in words; empty if none."""
    for name, case in CASES.items():
        for options in every_option() if case.options == sa.Options() else ():
            judge = Judge(again(case, **options))
            verdict = judge.verdict(judge.case.plan.program)
            if verdict.status != SAME:
                yield f"emitted, {verdict.status}: {name}, {options}: {verdict.words}"


def written(program):
    """Lines of a program: instructions and locals as they are, of which some cannot be printed."""
    steps = [
        f"{step.attributes} {step.operands} {step.results}" for step in instructions(program.block)
    ]
    locals_ = [
        f"%{x.index} {x.shape} {x.dtype} {x.sharding.dims} {x.origin}" for x in program.locals
    ]
    return [*steps, *locals_]


def show(one):
    """Print one mutant, its mutation and its verdict."""
    name, seed, number = one.split("/")
    judge = judge_of(name)
    made = judge.mutant(name, int(seed), int(number))
    before, after = map(written, (judge.case.plan.program, made.program))
    print(*made.kinds, sep="\n")
    print(*(f"- {line}" for line in before if line not in after), sep="\n")
    print(*(f"+ {line}" for line in after if line not in before), sep="\n")
    print(judge.verdict(made.program))
    print("run:", judge.fault(made.program) or "computes the same")
    return 0


def main(arguments):
    jax.config.update("jax_disable_most_optimizations", True)  # each program runs once
    sa.host_devices(8)
    if arguments and "/" in arguments[0]:
        return show(arguments[0])
    count, seed = (int(a) for a in (*arguments[:2], *("20000", "0")[len(arguments[:2]) :]))
    names = arguments[2:] or [*CASES, *drawn_names(seed)]
    names = drawn_names(seed) if names == ["operators"] else names
    tally, start = Tally(), time.monotonic()
    faults = list(refused())
    print(
        *faults, f"{len(faults)} emitted programs refused, of all policies and switches", sep="\n"
    )
    with suppress(KeyboardInterrupt):  # what was judged until then is told
        for name, number, made, verdict, ran in judged(count, seed, names):
            tally.add(made, verdict, ran)
            if verdict.status in (WRONG, NO_VERDICT):
                sound = "sound" if verdict.checked else "not sound"
                words = (
                    f"{verdict.status}: {name}/{seed}/{number}, {sound}: {'; '.join(made.kinds)}:"
                )
                print(words, verdict.words.strip(), flush=True)
            if (number + 1) % 1000 == 0:
                print(f"{number + 1} mutants, {time.monotonic() - start:.0f} s", flush=True)
    print(tally)
    row = tally.rows["all"]
    print(f"{row['checked'] / max(row['mutants'], 1):.0%} pass check, ", end="")
    print(f"{row[WRONG]} accepted and wrong, {row[NO_VERDICT]} without a verdict")
    return int(row[WRONG] + row[NO_VERDICT] + len(faults) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
