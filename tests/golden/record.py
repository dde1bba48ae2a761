"""`python -m tests.golden.record [--check]`: the structure of every program's plan, per policy.

Writes `recorded/jax-<version>.json` beside this file, or, with --check, compares with it and prints
each difference. Only versions of jax that have a file are held against it.
"""

import json
import sys
from pathlib import Path

import jax

from tests.golden.programs import POLICIES, programs
from tests.golden.structure import structure

FOLDER = Path(__file__).parent / "recorded"
VERSION = ".".join(jax.__version__.split(".")[:2])
FILE = FOLDER / f"jax-{VERSION}.json"


def recorded():
    """Policy to name to structure; None where this version of jax has no file."""
    return json.loads(FILE.read_text()) if FILE.exists() else None


def differences(before, now):
    """Return the differences in words; nothing if both are equal."""
    for key in sorted({*before, *now}):
        if before.get(key) != now.get(key):
            yield f"{key}: {before.get(key)} before, {now.get(key)} now"


def all_structures():
    for policy in POLICIES:
        found = programs(policy)
        for number, (name, make) in enumerate(found.items()):
            yield policy, name, structure(make)
            print(f"\r{policy}: {number + 1} of {len(found)}", end="", file=sys.stderr)
        print(file=sys.stderr)


def record():
    found = {policy: {} for policy in POLICIES}
    for policy, name, one in all_structures():
        found[policy][name] = one
    FOLDER.mkdir(exist_ok=True)
    FILE.write_text(written(found))


def written(found):
    """One line per program, so that a change of one is a change of one line."""
    policies = (
        f"{json.dumps(policy)}: {{\n"
        + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(rows.items()))
        + "\n}"
        for policy, rows in found.items()
    )
    return "{\n" + ",\n".join(policies) + "\n}\n"


def check():
    """Return how many programs are planned differently from the record."""
    before, wrong = recorded(), 0
    for policy, name, one in all_structures():
        for line in differences(before[policy].get(name, {}), one):
            print(f"\n{policy}, {name}: {line}", flush=True)
            wrong += 1
    print(f"{wrong} differences")
    return bool(wrong)


def main():
    jax.config.update("jax_disable_most_optimizations", True)
    if "--check" not in sys.argv[1:]:
        return record()
    if recorded() is None:
        sys.exit(f"nothing is recorded for jax {VERSION}: run without --check")
    return check()


if __name__ == "__main__":
    sys.exit(main())
