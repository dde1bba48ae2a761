"""Every kind of instruction is registered in each table; kinds are found by a walk."""

import pytest

from shardalg.costs.collectives import RING_BYTES
from shardalg.lower.emit import EMIT
from shardalg.spmd.host.run import SIMULATE
from shardalg.spmd.host.simulate import simulate
from shardalg.spmd.instruction import Along, Attributes, Collective
from shardalg.spmd.instructions import Control, kinds
from shardalg.verify.move import MOVES
from shardalg.verify.operators.applied import APPLIED
from shardalg.verify.verifier import CLAIMS
from shardalg.verify.verify import verify

ROOMS = {"lower/emit": EMIT, "spmd/host": SIMULATE, "verify": {**MOVES, **APPLIED, **CLAIMS}}


def lacking(kinds_known):
    return [kind.__name__ for kind in kinds() if kind not in kinds_known]


@pytest.mark.parametrize("room", ROOMS)
def test_every_kind_has_its_function(room):
    assert simulate, verify  # what they import registers the functions
    assert lacking(ROOMS[room]) == []


def test_a_kind_without_one_is_seen():
    emit = dict(EMIT)
    gone = kinds()[0]
    del emit[gone]
    assert lacking(emit) == [gone.__name__]


def test_kinds_are_found_once_each():
    assert len(kinds()) == len({kind.__name__ for kind in kinds()}) >= 33
    assert not {Attributes, Along, Collective, Control} & set(kinds())
    assert set(kinds(Control)) | set(kinds(Collective)) < set(kinds())


def test_every_collective_has_a_price():
    assert {kind.sent_as for kind in kinds(Collective)} <= RING_BYTES.keys()


@pytest.mark.parametrize("kind", kinds(), ids=[kind.__name__ for kind in kinds()])
def test_every_kind_prints(kind):
    assert kind.text is not Attributes.text
