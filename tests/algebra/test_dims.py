"""Sizes with a name and a hint."""

import pickle
import subprocess
import sys

import jax
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from shardalg.algebra.dims import SymbolError, dims, evaluate, hint_of, second_hints, sizes_of
from shardalg.errors import ShardalgError

B, S, M = dims("B S, M", hint=(64, 1024, 8192))


def test_shapes_of_jax_take_named_sizes_and_expressions():
    struct = jax.ShapeDtypeStruct((B, S - 1, 4 * M, 7), "float32")
    assert struct.shape == (B, S - 1, 4 * M, 7)
    assert [hint_of(size) for size in struct.shape] == [64, 1023, 32768, 7]


def test_the_hint_belongs_to_the_symbol():
    (other,) = dims("B", hint=8)
    assert other != B
    assert len({B, other, size("B", 64)}) == 2
    assert (other * S).free_symbols == {other, S}  # sympy's caches keep them apart
    assert B != sympy.Symbol("B", positive=True, integer=True)
    assert pickle.loads(pickle.dumps(B * S)) == B * S
    assert pickle.loads(pickle.dumps(other)).hint == 8


def size(name, hint):
    return dims(name, hint=hint)[0]


@given(b=st.integers(1, 9), s=st.integers(1, 9))
def test_evaluation_is_arithmetic(b, s):
    expression = sympy.floor((B * S + 1) / 2) + 4 * M - S
    assert evaluate(expression, {"B": b, "S": s}) == (b * s + 1) // 2 + 4 * 8192 - s


@pytest.mark.parametrize(
    ("names", "hint", "message"),
    [
        ("B S", (64,), "2 names and 1 hints"),
        ("", (), "0 names"),
        ("B", 0, "B=0.*at least 1"),
        ("B S", (64, -2), "S=-2"),
        ("B", (2.0,), "B=2.0"),
        ("B", (True,), "B=True"),
        ("2B", 4, "2B=4.*identifier"),
        (3, 4, "names are text, as in dims.*int: 3"),
        (("B", "S"), (4, 8), r"tuple: \('B', 'S'\)"),
        ("B B", (4, 8), "B has two hints, (4 and 8|8 and 4)"),
    ],
)
def test_what_cannot_be_named(names, hint, message):
    with pytest.raises(SymbolError, match=message) as error:
        dims(names, hint=hint)
    assert isinstance(error.value, ShardalgError)


def test_one_name_twice_is_one_symbol():
    first, second = dims("B B", hint=4)
    assert first == second
    assert sizes_of([first * S, second, 3]) == {"B": first, "S": S}


def test_a_size_without_a_hint_or_without_a_whole_number_is_refused():
    with pytest.raises(SymbolError, match=r"x has no hint.*dims\('x'"):
        sizes_of([B * sympy.Symbol("x")])
    with pytest.raises(SymbolError, match="S/2 is 3/2 at S=3"):
        evaluate(S / 2, {"S": 3})


@pytest.mark.parametrize("multiples", [False, True])
def test_second_hints_are_unrelated(multiples):
    sizes = dims("A B C D E", hint=(2, 2, 64, 64, 65536))
    found = second_hints(sizes, multiples=multiples)
    assert len(set(found.values())) == 5
    assert all(found[s.name] > s.hint for s in sizes)
    if multiples:
        assert all(found[s.name] % s.hint == 0 for s in sizes)
    else:
        assert all(sympy.isprime(number) for number in found.values())


def test_shardalg_itself_does_not_load_sympy():
    code = "import shardalg, sys; sys.exit('sympy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
