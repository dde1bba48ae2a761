"""Elements of one byte and less have the bytes that JAX stores."""

import jax
import jax.numpy as jnp
import ml_dtypes
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa

NARROW = [
    name
    for name in dir(ml_dtypes)
    if name.startswith(("float4", "float6", "float8", "int2", "int4", "uint2", "uint4"))
]


@pytest.mark.parametrize("name", NARROW)
def test_a_narrow_element_has_the_bytes_of_jax(name):
    try:
        x = jax.ShapeDtypeStruct((64, 8), name)
        nbytes = 64 * 8 * jnp.dtype(name).itemsize
    except TypeError as error:
        pytest.skip(f"jax has no {name}: {error}")
    specs = {"in_shardings": (P("d"),), "out_shardings": P()}
    plan = sa.plan(lambda x: x, x, mesh=sa.Mesh({"d": 8}), **specs)
    # Seven eighths of the array arrive from the other devices.
    assert plan.collectives()["wire_bytes"].tolist() == [nbytes * 7 // 8]
    assert plan.cost("h100:8").memory_by_class["results"] == nbytes
