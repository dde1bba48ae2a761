"""Windows whose blocks drift against the operand's blocks, planned and run on every device."""

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd.host.simulate import simulate

# devices, size, kernel, stride, padding, kernel dilation, elements that XLA sends (halos.json)
CASES = [
    (4, 24, 4, 1, (2, 3), 1, 5),
    (4, 36, 5, 2, (2, 5), 1, 5),
    (8, 45, 7, 1, (-2, 3), 1, 12),
    (8, 58, 4, 1, (3, 0), 3, 15),
    (8, 72, 7, 1, (0, 2), 2, 18),
    (4, 32, 6, 2, (4, 2), 1, 8),
    (8, 78, 6, 3, (0, 4), 1, 17),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_more_than_xla_and_right(case):
    devices, size, taps, stride, padding, dilation, sent_by_xla = case

    def blur(x, kernel):
        return lax.conv_general_dilated(x, kernel, (stride,), [padding], rhs_dilation=(dilation,))

    rng = np.random.default_rng(0)
    x, kernel = (rng.standard_normal((1, 1, n)).astype("f4") for n in (size, taps))
    rows = P(None, None, "x")
    mesh = sa.Mesh({"x": devices})
    plan = sa.plan(blur, x, kernel, mesh=mesh, in_shardings=(rows, P()), out_shardings=rows)
    table = plan.collectives()
    permutes = table["wire_bytes"][table["kind"] == "collective_permute"]
    assert permutes.sum() <= 4 * sent_by_xla
    (made,) = simulate(plan.program, plan.graph, x, kernel)
    np.testing.assert_allclose(made, jax.jit(blur)(x, kernel), atol=1e-5)
    assert plan.verify().ok
