"""A sample of the programs at the edges that `make edges` draws, and the judge that they meet."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import ProgramError
from tests.edges import fuzz
from tests.edges.programs import Program

SEEDS = range(5000, 5001)

# JAX warns of casts and of overflows that programs at the edges are made of.
pytestmark = [pytest.mark.filterwarnings("ignore")]


def test_programs_at_the_edges_are_right(show):
    verdicts = Counter()
    for verdict, words in fuzz.fuzz(SEEDS):
        assert verdict not in fuzz.FAULTS, words
        verdicts[verdict] += 1
    show(f"{len(SEEDS)} programs from seed {SEEDS[0]}: {dict(verdicts)}")


def test_the_judge_tells_wrong_numbers_from_a_crash(monkeypatch):
    """A program whose simulation is made wrong, or fails by an error of ours, is a fault."""
    case = fuzz.Case(Program(0, "one more", lambda x: x + 1, (np.arange(6, dtype=np.float32),)))

    def wrong(program, graph, *arguments):
        return [np.full_like(x, 3) for x in case.compiled]

    def failing(program, graph, *arguments):
        raise ProgramError("copies differ")

    monkeypatch.setattr(fuzz.Case, "of_xla", lambda self, strategy: case.compiled)
    for run, verdict in ((wrong, fuzz.WRONG), (failing, fuzz.CRASH)):
        monkeypatch.setattr(fuzz, "simulate", run)
        ((_, found, _),) = fuzz.Case(case.drawn).verdicts(1)
        assert found == verdict


def test_what_jax_refuses_of_known_numbers_is_judged_compiled():
    """Found by seed 20242: a negative power of integers, which is known when run one by one."""
    arguments = np.arange(4, dtype=np.int32), np.int32(-2)
    case = fuzz.Case(Program(0, "power", lambda x, n: jnp.power(x, n), arguments))
    assert len(list(case.answers())) == 1
    assert case.is_right(case.compiled)


def test_what_xla_makes_of_two_operators_is_not_the_only_answer():
    """Found by seed 1427: `False / 0` is 0 where XLA compiles the conversion with the division."""
    case = fuzz.Case(Program(0, "quotient", lambda x: x / 0, (np.array([True, False]),)))
    assert np.isnan(case.each_by_itself[0][1])
    assert case.is_right(case.compiled)
    assert case.is_right(case.each_by_itself)
    assert not case.is_right([np.zeros(2, np.float32)])


@pytest.mark.slow
def test_sums_that_are_at_hand_are_not_taken_apart():
    """Found by seed 1583: partial sums are wanted that one copy of a value has, and another not."""
    rows = np.arange(3, dtype=np.float32)

    def f(a, b):
        return jax.grad(lambda a, b: ((a @ b)[:, :2] ** 2).sum(), (0, 1))(a, b)

    for specs in ((P(("Y", "X")), P("X", "Y")), (P(), P("Y", "X")), (P("X"), P(None, "Y"))):
        plan = sa.plan(
            f, rows[:, None], rows[None], mesh=sa.Mesh({"X": 4, "Y": 2}), in_shardings=specs
        )
        assert plan.verify().ok
    assert [v for v, _ in fuzz.fuzz([1583])] == ["right"] * fuzz.LAYOUTS


@pytest.mark.parametrize("extreme", [jax.lax.cummin, jax.lax.cummax])
def test_a_complex_nan_is_not_lost_beside_a_neutral_number(extreme):
    """Found by seed 1439: of a NaN and another number, JAX's extreme is the second one."""
    x = np.full((4, 1), np.nan, np.complex64)
    plan = sa.plan(extreme, x, mesh=sa.Mesh({"X": 4}), in_shardings=(P("X"),))
    assert plan.verify().ok
    np.testing.assert_array_equal(plan.lower()(x), extreme(x))
    total = sa.plan(lambda x: x.min(0), x[:3], mesh=sa.Mesh({"X": 4}), in_shardings=(P("X"),))
    np.testing.assert_array_equal(total.lower()(x[:3]), x[:3].min(0))


def test_one_element_of_what_is_joined_by_a_maximum():
    """Found by seed 3048: a value that is whole may be picked from, however it was joined."""
    x, index = np.ones((3, 5), np.float32), np.array([0, 2, 0])
    plan = sa.plan(
        lambda x, i, u: jnp.asarray(x).at[:, i].max(u)[1:2] * 2,
        *(x, index, x[:, :3]),
        mesh=sa.Mesh({"X": 3}),
        in_shardings=(P("X"), P(), P()),
    )
    assert plan.verify().ok
