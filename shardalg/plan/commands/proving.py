"""The commands that prove: an answer about two shardings, and the library's lemmas.

`shardalg prove` and `shardalg lemmas`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from shardalg.algebra.notation.read import mesh_of, shape_of
from shardalg.algebra.sharding import Sharding
from shardalg.errors import NotationError, ProofError
from shardalg.files import check_place, write_whole
from shardalg.merge.compatible import POLICIES, equal, merge, refines
from shardalg.merge.lemmas import LEMMAS
from shardalg.merge.proofs.prove import RESET, Proof, prove
from shardalg.merge.verdict import Verdict
from shardalg.plan.commands.messages import Command, add_json, print_json, records
from shardalg.show.proofs import judge, summary, table

RELATIONS: dict[str, Callable[..., Verdict]] = {
    "merge": lambda first, second, policy: merge(first, second, policy=policy),
    "refines": lambda first, second, policy: refines(first, second),
    "equal": lambda first, second, policy: equal(first, second),
}
QUESTIONS = {
    "merge": "do they merge",
    "refines": "does the first refine the second",
    "equal": "are they equal",
}
HOLDS, REFUSED, UNPROVED = 0, 1, 4
LABEL = 11


def add_prove_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `shardalg prove` to its parser."""
    parser.epilog = (
        "Exit status: 0 yes, 1 no, both proved; 2 wrong use; 4 z3 did not prove the answer (for "
        "all sizes, if asked)."
    )
    option = parser.add_argument
    for name in ("first", "second"):
        option(name, help="a sharding: '[X, None]', \"P('X', None)\", HLO or #sdy.sharding text")
    option("--shape", required=True, metavar="64,128", help="global shape of the tensor")
    option(
        "--mesh",
        action="append",
        default=[],
        metavar="X=2,Y=4",
        help="axes and sizes; give it twice if the second sharding has another mesh",
    )
    option("--relation", choices=RELATIONS, default="merge", help="default %(default)s")
    option(
        "--policy", choices=POLICIES, default="gspmd", help="rule for merges; default %(default)s"
    )
    option("--all-sizes", action="store_true", help="prove it for all mesh sizes of at least 2")
    add_json(parser)
    option("--smt2", type=Path, metavar="FILE", help="write the formulas for z3 to FILE")


def run_prove(options: argparse.Namespace) -> int:
    """Print verdict, witness and proof, and return the exit status.

    The status is 0 (yes) or 1 (no) if the verdict is proved, else 4.
    """
    # Refuse a bad path before the proof, which can take long.
    if options.smt2 is not None:
        check_place(options.smt2)
    meshes = [mesh_of(text) for text in options.mesh]
    if len(meshes) > 2:
        raise NotationError(f"--mesh is given {len(meshes)} times; there are two shardings.")
    texts, shape = (options.first, options.second), shape_of(options.shape)
    # With one mesh, `meshes[-1]` is `meshes[0]`, so that both shardings are on it.
    first, second = texts
    pair = (
        (Sharding.parse(first, shape, meshes[0]), Sharding.parse(second, shape, meshes[-1]))
        if meshes
        else _on_own_meshes(texts, shape)
    )
    verdict, seconds = _decided(options.relation, pair, options.policy)
    proofs = [prove(verdict, "all" if options.all_sizes else "concrete")]
    # Without a proof for all sizes, a proof for these sizes is still worth having.
    if options.all_sizes and not proofs[0]:
        proofs.append(prove(verdict))
    if options.json:
        print_json(_data(verdict, seconds, proofs))
    else:
        print("\n".join([*_lines(verdict, seconds), *map(_proof_line, proofs)]))
    if options.smt2 is not None:
        write_whole(options.smt2, RESET.join(proof.smt2 for proof in proofs if proof.smt2))
    # The first proof is the one that the user asked for: for all sizes, or for these.
    if not proofs[0]:
        return UNPROVED
    return HOLDS if verdict else REFUSED


def _data(verdict: Verdict, seconds: float, proofs: list[Proof]) -> dict[str, object]:
    """Return the verdict on two shardings and its proofs as plain data for JSON.

    Args:
      seconds: the processor time in which the verdict was found.
    """
    merged = None if verdict.sharding is None else verdict.sharding.text()
    return {
        "relation": verdict.relation,
        "operands": [sharding.text() for sharding in verdict.operands],
        "holds": bool(verdict),
        "merged": merged,
        "reason": verdict.reason,
        "condition": None if verdict.condition is None else str(verdict.condition),
        "decided_s": seconds,
        "proofs": [{"sizes": p.sizes, "status": p.status, "proof_ms": p.ms} for p in proofs],
    }


def _decided(relation: str, pair: tuple[Sharding, Sharding], policy: str) -> tuple[Verdict, float]:
    """Return the verdict on two shardings, and the processor seconds to find it with its reason."""
    for _ in range(2):  # the first run also loads modules
        start = time.thread_time()
        verdict = RELATIONS[relation](*pair, policy)
        assert verdict.reason
        seconds = time.thread_time() - start
    return verdict, seconds


def _on_own_meshes(texts: tuple[str, str], shape: tuple[int, ...]) -> tuple[Sharding, Sharding]:
    """Return the shardings of two texts; one that names no devices is on the other's mesh.

    Raises:
      NotationError: neither text names its devices.
    """
    found: list[Sharding | NotationError] = []
    for text in texts:
        # A text without a mesh is an error only if the other text has no mesh either, because both
        # shardings can be on the mesh of one text.
        try:
            found.append(Sharding.parse(text, shape))
        except NotationError as fault:
            found.append(fault)
    known = [s.mesh for s in found if isinstance(s, Sharding)]
    if not known:
        raise next(fault for fault in found if isinstance(fault, NotationError))
    # A text that names no devices, such as {replicated}, is parsed on a mesh of one device.
    largest = max(known, key=lambda mesh: mesh.size)
    first, second = (
        s if isinstance(s, Sharding) and s.mesh.size > 1 else Sharding.parse(text, shape, largest)
        for s, text in zip(found, texts, strict=True)
    )
    return first, second


def _lines(verdict: Verdict, seconds: float) -> list[str]:
    """Return lines with the question, the shardings, the answer and the reason.

    There is a line for the merged sharding, and for the condition of the answer, if they exist.
    """
    first, second = verdict.operands
    answer = "holds" if verdict else "refused"
    lines = [
        _line("question", f"{QUESTIONS[verdict.relation]}, at the shape {first.shape}?"),
        _line("first", _described(first)),
        _line("second", _described(second)),
        _line("verdict", f"{answer}, decided in {seconds * 1e6:.0f} µs"),
    ]
    if verdict and verdict.sharding is not None:
        lines.append(_line("merged", _described(verdict.sharding)))
    lines.append(_line("because", verdict.reason))
    if verdict.condition is not None:
        lines.append(_line("condition", str(verdict.condition)))
    return lines


def _described(sharding: Sharding) -> str:
    return f"{sharding.text()} on {sharding.mesh!r}, blocks of {sharding.shard_shape}"


def _proof_line(proof: Proof) -> str:
    """Return the output line about a proof: its status, for which sizes, and how long it took."""
    scope = "for all sizes" if proof.sizes == "all" else "for these sizes"
    tail = f": {proof.reason}" if proof.reason else ""
    text = f"{proof.status} {scope} by z3 {proof.z3_version} in {proof.ms:.1f} ms{tail}"
    return _line("proof", text)


def _line(label: str, text: str) -> str:
    """Return a labelled line; further lines of the text are indented."""
    return label.ljust(LABEL) + text.replace("\n", "\n" + " " * LABEL)


def add_lemmas_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `shardalg lemmas` to its parser."""
    option = parser.add_argument
    option(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="prove each lemma with N random seeds; show the longest time (default %(default)s)",
    )
    add_json(parser)
    option("--mutants", action="store_true", help="also refute the wrong variants")
    option("--smt2", type=Path, metavar="FOLDER", help="write each formula to FOLDER/NAME.smt2")


def run_lemmas(options: argparse.Namespace) -> int:
    """Print the table; return 0 if all lemmas are proved and all mutants refuted, otherwise 1.

    A lemma is a theorem on whole numbers that the library relies on. A mutant is a wrong variant of
    one, which z3 must refute.
    """
    if options.seeds < 1:
        raise ProofError(f"--seeds {options.seeds}: give a number of at least 1.")
    folder: Path | None = options.smt2
    # Refuse a folder that cannot be made before the proofs, which take long.
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    judged = list(judge(LEMMAS, seeds=options.seeds, mutants=options.mutants))
    if options.json:
        print_json({"summary": summary(judged), "lemmas": records(table(judged))})
    else:
        print(f"{table(judged)}\n\n{summary(judged)}")
    if folder is not None:
        for j in judged:
            # A slash in the name of a lemma would name a folder.
            name = j.statement.name.replace("/", ".")
            write_whole(folder / f"{name}.smt2", j.proofs[0].smt2)
    return int(any(j.status != j.wanted for j in judged))


PROVE = Command(
    "decide whether two shardings merge, refine or equal each other, with a proof or witness",
    add_prove_options,
    run_prove,
)
LEMMAS_COMMAND = Command(
    "prove the integer lemmas of the library with z3, for all values",
    add_lemmas_options,
    run_lemmas,
)
