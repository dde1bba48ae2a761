"""Compiled collectives against planned ones, on random contractions: `make fuzz-as-planned`."""

import random
import sys
from collections import Counter

from shardalg.lower.xla_dump import differences
from shardalg.plan.running import bound, executable
from tests.lower import contractions

OUR_OWN = (differences.KIND, differences.OTHER_BYTES, differences.ADDED)
"""Differences that our lowering could make; the others are XLA's."""


def compared(seed, number):
    """One program, its number of planned collectives, and the rows that differ."""
    from jax.sharding import PartitionSpec as P

    import shardalg as sa

    axes = random.Random(f"{seed}/{number}").choice(contractions.MESHES)
    words = contractions.draw(f"{seed}/{number}", axes)
    mesh = sa.Mesh(axes)
    function, result = contractions.program(words, mesh)
    import jax

    shapes = [[words["sizes"][x] for x in term] for term in words["terms"]]
    operands = [jax.ShapeDtypeStruct(shape, words["dtype"]) for shape in shapes]
    specs = tuple(P(*entries) for entries in words["layouts"])
    plan = sa.plan(function, *operands, mesh=mesh, in_shardings=specs, out_shardings=P(*result))
    lowered = executable(plan, bound(plan, None, None), None)
    found = differences.differences(plan.program, lowered.compiled.as_text())
    return plan, len(differences.planned_collectives(plan.program)), list(found)


def run(seed, count, show=print):
    """Return the counts, and the rows that our own lowering may have caused."""
    seen, own = Counter(), []
    for number in range(count):
        plan, planned, rows = compared(seed, number)
        seen["planned"] += planned
        for row in rows:
            seen[row["reason"]] += 1
            if row["reason"] in OUR_OWN:
                own.append((f"{seed}/{number}", dict(row)))
                show(f"{own[-1]}\n{plan.program}")
    return seen, own


if __name__ == "__main__":
    import shardalg as sa

    sa.host_devices(contractions.DEVICES)
    counted, ours = run(sys.argv[2], int(sys.argv[1]))
    different = sum(n for reason, n in counted.items() if reason != "planned")
    share = different / max(1, counted["planned"])
    print(dict(counted), f"{share:.1%} differ, {len(ours)} perhaps by our own lowering")
    raise SystemExit(bool(ours) or share > 0.05)
