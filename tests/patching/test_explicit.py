"""Edits for explicit axes: JAX refuses the function before, and runs it afterwards."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardalg as sa
from tests.patching import explicit_programs
from tests.patching.explicit_programs import CASES
from tests.patching.test_patch import loaded, plan_of


def results(fn, case, kind):
    """Return the results of a function on eight CPU devices, with axes of one type."""
    _, args, axes, entering, _ = case
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(kind,) * len(axes))
    random = np.random.default_rng(0)

    def placed(a, spec):
        if a.dtype == np.int32:
            values = random.integers(0, 8, a.shape, dtype=np.int32)
        else:
            values = random.normal(size=a.shape).astype(a.dtype)
        return jax.device_put(values, NamedSharding(mesh, spec))

    given = jax.tree.map(placed, args, entering)
    with jax.set_mesh(mesh):
        return np.asarray(jax.jit(fn)(*given))


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES, ids=[case[0].__name__ for case in CASES])
def test_a_sharding_error_becomes_working_code(case, tmp_path):
    fn = case[0]
    with pytest.raises(Exception, match=r"hard|spec"):
        results(fn, case, jax.sharding.AxisType.Explicit)
    found = plan_of(*case).patch(explicit=True)
    assert found.is_typed
    assert found.fixes
    (text,) = found.texts.values()
    new = getattr(loaded(text, tmp_path), fn.__name__)
    expected = results(fn, case, jax.sharding.AxisType.Auto)
    np.testing.assert_allclose(
        results(new, case, jax.sharding.AxisType.Explicit), expected, rtol=2e-5, atol=1e-5
    )
    second = plan_of(new, *case[1:]).patch(explicit=True)
    assert not second.fixes
    assert str(second).startswith("Nothing to add")
    assert found.write(tmp_path / "fix.patch").read_text() == found.diff


def test_one_operand_is_enough_where_the_other_has_the_sharding():
    found = plan_of(*CASES[1]).patch(explicit=True)
    assert {row["expression"] for row in found.table} >= {"y"}
    assert "jax.reshard(x" not in found.diff


def test_a_part_of_an_axis_has_no_type_on_explicit_axes():
    mesh = sa.Mesh({"x": 8})
    half = sa.Sharding.from_hlo("{devices=[2,1,4]<=[8] last_tile_dim_replicate}", (16, 8), mesh)
    args = (explicit_programs.array(16, 8), explicit_programs.array(8, 8))
    plan = sa.plan(explicit_programs.contracting, *args, mesh=mesh, in_shardings=(half, P()))
    with pytest.raises(sa.PatchError, match="argument x has no type on explicit axes"):
        plan.patch(explicit=True)
