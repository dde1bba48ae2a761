"""Mutated texts of every notation: only our errors, and no other reading than the notation's."""

import random
import re
import time

import jax
import pytest
from jax.sharding import PartitionSpec as P

from shardalg.algebra.sharding import Sharding
from shardalg.errors import ShardalgError

from .judges import agrees_with_xla, shardy_prints, xla_reads
from .test_round_trips import CASES

PRINTERS = {
    "own": Sharding.text,
    "hlo 1": lambda made: made.to_hlo(1),
    "hlo 2": Sharding.to_hlo,
    "hlo 3": lambda made: made.to_hlo(3),
    "sdy": Sharding.to_sdy,
    "sdy with mesh": lambda made: made.to_sdy(None),
    "spec": lambda made: repr(made.to_spec()),
}
PIECES = [
    *"0123456789,={}[]()<>?:'\"@#pT -xabc/%.\n\\",
    "9" * 5000, "-1", "1048577", "None", "UNCONSTRAINED", "d//2%2", "p1", ":(1)2", "'a'", '"b"',
    "device", "devices=", "maximal device=0", "maximal_mesh[device_id=1]", "<=[4,2]T(1,0)",
    " last_tile_dim_replicate", " last_tile_dims={manual}", "replicated", "manual", "unreduced",
    ", replicated={'a'}", ", unreduced={\"a\"}", " metadata={op_name=\"x\"}", " shard_as 1",
    "mesh['a'=2]", "mesh<[\"a\"=2]>", "@mesh", "device_ids=(1,0)", "{U:a}", "{}", "{?}", "((", "é",
]  # fmt: skip


def mutated(rng):
    """Draw a valid text with one or two changes, and the sharding of the original."""
    made = rng.choice(CASES)
    notation = rng.choice(list(PRINTERS))
    try:
        text = PRINTERS[notation](made)
    except ShardalgError:  # this notation has no word for it
        text = made.to_hlo(3)
    for _ in range(rng.choice([1, 1, 2])):
        at, until, source = (rng.randrange(len(text) + 1) for _ in range(3))
        end = min(len(text), at + rng.choice([0, 0, 1, 1, 2, 5]))
        piece = rng.choice(["", text[end:until], rng.choice(PIECES), text[source : source + 1]])
        text = text[:at] + piece + text[end:]
    return text, made


def read(text, made):
    """Parse a sharding's text; return None for our errors, and fail for others."""
    found, message = None, ""
    try:
        found = Sharding.parse(text, made.shape, made.mesh)
    except ShardalgError as error:
        message = str(error)
    assert len(message) < 20_000
    return found


def check_reprinted(found):
    """Check that the parsed sharding is parsed again from every text that can express it."""
    assert Sharding.parse(found.text(), found.shape, found.mesh) == found
    for notation, to_text in PRINTERS.items():
        try:
            text = to_text(found)
        except ShardalgError:
            continue
        again = Sharding.parse(text, found.shape, found.mesh)
        assert again.canonical_dims == found.canonical_dims, notation
        assert again.classes[0] == found.classes[0], notation


def check_spec(text, found):
    """Python itself reads the text of a spec."""
    names = {"P": P, "PartitionSpec": P, "jax": jax, "UNCONSTRAINED": P.UNCONSTRAINED}
    if hasattr(jax.sharding, "UnreducedKind"):  # how jax 0.11 prints that partial values are sums
        names |= {"sum": jax.sharding.UnreducedKind.sum}
        names |= {"UnreducedKind": jax.sharding.UnreducedKind}
    assert Sharding.from_spec(eval(text, names), found.mesh, found.shape) == found, text


def check_shardy(text, found):
    """Shardy verifies and prints the text; on the mesh that it states, if it states one."""
    symbol = re.match(r"[^,]*@([\w$.]+|\"[^\"]*\")", text)
    name = symbol[1] if symbol else None
    found = found if name else Sharding.from_sdy(text, found.shape)
    printed = shardy_prints(text, found.mesh, len(found.shape), name)
    assert printed.replace("p0", "") == found.to_sdy(name), text


JUDGES = {"P(": check_spec, "#sdy": check_shardy}


@pytest.mark.parametrize("count", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_texts(count, show):
    """Only our errors are raised; accepted texts mean the same to XLA, Shardy and Python."""
    accepted = {}
    seen = {"texts": 0, "refused": 0}

    start = time.process_time()
    for seed in range(count):
        text, made = mutated(random.Random(seed))
        found = read(text, made)
        seen["texts"] += 1
        seen["refused"] += found is None
        if found is not None:
            accepted[text, made] = found
            check_reprinted(found)
            for beginning, judge in JUDGES.items():
                if text.startswith(beginning):
                    judge(text, found)
    assert time.process_time() - start < 0.05 * count + 10
    hlo = [(text, found) for (text, _), found in accepted.items() if text.startswith("{")]
    asked = [re.sub(r"\s+=", "=", text) for text, _ in hlo]  # XLA wants a name beside its `=`
    for (text, found), answer in zip(hlo, xla_reads(asked), strict=True):
        assert answer is not None, f"XLA refuses {text}"
        assert agrees_with_xla(found, answer), f"XLA reads {answer} in {text}"
    assert seen["refused"] > count // 3
    assert len(hlo) > count // 20
    show(f"{seen}, {len(accepted)} read and reprinted, {len(hlo)} of them held against XLA")
