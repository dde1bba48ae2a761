"""A sample of the contractions that `make fuzz-contractions` compiles in processes of their own."""

import pytest

from tests.lower import contractions

SEED = "0"


@pytest.mark.slow
def test_no_contraction_ends_the_process(show):
    """Contractions 0 and 1 of this seed ended it: a barrier was put behind a batched product."""
    aborted, faults = contractions.run(SEED, 20)
    assert not aborted
    assert not faults
    show(f"20 contractions of seed {SEED}")
