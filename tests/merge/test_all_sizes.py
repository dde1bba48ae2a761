"""A sample of the statements for all sizes that `make fuzz-proofs` compares with brute force."""

from tests.merge import all_sizes

SEED = 33


def test_statements_for_all_sizes_are_true_at_other_sizes(show):
    wrong, seen = all_sizes.run(SEED, cases=40)
    show(f"seed {SEED}: {dict(sorted(seen.items()))}")
    assert not wrong, "\n".join(wrong)
    assert seen["refines holds: proved"] > 5
    assert seen["merge refused: proved"] > 5
    assert seen["lemmas without a point"] == 0
