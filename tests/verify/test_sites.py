"""Annotations inside: each reports whether the program has this sharding; it is no claim."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.verify.verify import verify
from tests.partition.planned import MESH

X = jax.ShapeDtypeStruct((8, 16), jnp.float32)


def summed(x):
    """Return partial sums that nothing needs between the two annotations."""
    return sa.annotate(sa.annotate(x.sum(0), "whole"), "split") * 2


def plan_of(whole, split, fn=summed):
    sites = {"whole": whole, "split": split}
    return sa.plan(fn, X, strategy=sa.Strategy(MESH, (P("X"),), None, sites))


def test_a_value_that_is_held_as_it_is_annotated_and_one_that_is_not():
    """The sum goes from partial sums to its parts, and is whole nowhere."""
    report = plan_of(P(), P("Y")).verify()
    assert report.ok
    assert [(s.node, s.status) for s in report.sites] == [
        ("whole", "not_held"),
        ("split", "proved"),
    ]
    assert "only as [None]{U:X}, [Y]{U:X}" in report.sites[0].words
    assert repr(report).endswith("; 1 of 2 sites not held)")
    assert "site" not in report.cells["claim"]


def test_what_reads_a_value_whole_makes_it_held():
    def read(x):
        y = sa.annotate(x.sum(0), "whole")
        return jnp.sort(y), sa.annotate(y, "split")

    report = plan_of(P(), P("Y"), read).verify()
    assert [s.status for s in report.sites] == ["proved", "proved"]


def test_the_program_of_other_annotations_does_not_hold_these():
    """The program's own values are checked, not the plan's."""
    program, asked = plan_of(P(), P("Y")).program, plan_of(P(), P("X")).sharded
    assert [s.status for s in verify(asked, program).sites] == ["not_held"] * 2


def test_sites_in_loops_and_branches_are_seen():
    def looped(x):
        def body(carry, row):
            return sa.annotate(carry + row, "whole"), sa.annotate(row * 2, "split")

        return jax.lax.scan(body, jnp.zeros(16), x)

    report = plan_of(P("Y"), P("X"), looped).verify()
    assert report.ok
    assert [s.status for s in report.sites] == ["proved", "proved"]
