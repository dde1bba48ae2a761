import inspect

import pytest

import shardalg as sa
from shardalg import errors

FAMILIES = [value for value in vars(errors).values() if inspect.isclass(value)]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_every_family_is_public_documented_and_caught_by_the_base(family):
    assert getattr(sa, family.__name__) is family
    assert family.__doc__
    assert family.__module__ == "shardalg.errors"
    with pytest.raises(sa.ShardalgError, match="where"):
        raise family("where: what is wrong")


def test_families_are_caught_as_their_builtin_kind_too():
    with pytest.raises(ValueError, match="axis"):
        raise sa.MeshError("axis 'z'")
    assert issubclass(sa.RoleError, sa.StrategyError)
