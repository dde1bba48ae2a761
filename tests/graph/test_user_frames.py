"""An exception of the user's function passes through `plan`, with the user's frames."""

import jax
import pytest

import shardalg as sa
from shardalg.graph.source import Sources

X = jax.ShapeDtypeStruct((8,), "float32")
MESH = sa.Mesh({"d": 8})


class Luckless(Exception):
    pass


FAULT = Luckless("no such luck")


def helper(x):
    raise FAULT


def looped(x):
    return jax.lax.fori_loop(0, 3, lambda _, c: helper(c), x)


CALLS = {
    "plain": helper,
    "jitted": jax.jit(helper),
    "in a loop": looped,
    "differentiated": jax.grad(lambda x: helper(x)),
    "in a vmap": jax.vmap(helper),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_user_s_exception_is_the_one_that_was_raised(name):
    with pytest.raises(Luckless) as caught:
        sa.plan(CALLS[name], X, mesh=MESH)
    assert caught.value is FAULT
    files = [entry.path for entry in caught.traceback]
    own = [path for path in files if Sources().is_own(str(path))]
    assert str(files[-1]) == __file__
    assert len(files) - len(own) <= 3  # those of plan itself


def again(x):
    return again(x)


def ping(x):
    return pong(x) + 1


def pong(x):
    return ping(x)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("fn", "names"), [(again, "again"), (ping, "ping.*pong|pong.*ping"),
                                           (jax.jit(lambda x: again(x)), "again")])  # fmt: skip
def test_endless_recursion_is_named(fn, names):
    with pytest.raises(sa.TraceError, match=rf"endless recursion in .*({names})"):
        sa.plan(fn, X, mesh=MESH)
