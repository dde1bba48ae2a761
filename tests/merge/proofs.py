"""`make proofs`: every named case proved for all sizes, printed with its time."""

import statistics

from shardalg.merge.proofs.prove import prove
from shardalg.tables import Table

from .named_cases import CASES


def main():
    proofs = [(case, prove(case.verdict(), case.sizes)) for case in CASES]
    rows = [(case.name, case.relation, case.answer, p.status, p.ms) for case, p in proofs]
    print(Table(("case", "relation", "answer", "status", "ms"), tuple(rows)))
    times = [proof.ms for _, proof in proofs]
    print(
        f"{len(rows)} cases: median {statistics.median(times):.2f} ms, at most {max(times):.2f} ms"
    )
    return 0 if all(proof.status == "proved" for _, proof in proofs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
