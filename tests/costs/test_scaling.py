"""Memory of weights and activations: formulas, numbers, and the paper's shapes."""

import jax
import pytest

from shardalg.algebra.dims import dims
from shardalg.algebra.mesh import Mesh
from shardalg.costs.analyses.scaling import coefficient, scaling
from shardalg.costs.saved_activations import saved_values
from shardalg.costs.symbolic import Sizes, symbolise
from shardalg.graph.ops.roles import roles
from shardalg.graph.tracing.trace import flatten_prefix
from shardalg.lab import table1_strategies as table1
from shardalg.models.training import part
from shardalg.models.transformer import Config
from shardalg.sizes.formula import FormulaError, symbols
from shardalg.sizes.symbolic.lift import lift
from tests.report.planned import plan_function

MESH = Mesh({"X": 2, "Y": 4})
# On this mesh every sharded size divides; none does.
EVEN = Config(B=6, S=10, M=24, H=56, N=12, D=5)
UNEVEN = Config(B=7, S=10, M=23, H=55, N=9, D=5)
B, S, M, H, N, D, X, Y = symbols("B S M H N D X Y")


def scalings(config, strategy, name):
    """Return the same part priced in numbers and in formulas."""
    chosen = part(name)
    args = chosen.arguments(config)
    leaf_roles = tuple(flatten_prefix(chosen.roles(), args, "roles"))
    given = table1.STRATEGIES[strategy](MESH, config, name)
    program, graph, _ = plan_function(chosen.function(config), args, given, leaf_roles)
    named = [leaf.shape for leaf in jax.tree.leaves(chosen.named_arguments(config))]
    axes = dict(zip("XY", dims("X Y", hint=tuple(MESH.shape.values())), strict=True))
    formulas = symbolise(program, graph, Sizes.of(lift(graph, named), axes)).program
    role, saved = roles(graph, leaf_roles), saved_values(program, graph)
    return scaling(program, graph, role), scaling(formulas, graph, role, saved=saved)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("config", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("strategy", table1.STRATEGIES)
def test_formulas_at_the_hints_are_the_numbers(strategy, config):
    numbers, formulas = scalings(config, strategy, "layer_gradient")
    sizes = {letter: getattr(config, letter) for letter in "BSMHND"} | MESH.shape
    assert formulas.at(sizes) == numbers


def test_the_finalized_feed_forward_by_hand():
    """bf16 activations, fp32 parameters. Kept: x and the hidden value; ReLU is rebuilt."""
    _, found = scalings(EVEN, "finalized", "ffn_gradient")
    device = X * Y
    assert found.weight_memory == 4 * 2 * M * H / device
    assert found.activation_memory == 2 * (B * S * M + B * S * H) / device
    # Both weights gathered in both passes, and their gradients scattered, along X.
    assert found.weight_communication == 2 * M * H / device * (X - 1) * (2 + 2 + 2)
    # Along Y: x gathered and y scattered; then dy and x gathered, dx scattered.
    assert found.activation_communication == 2 * B * S * M / device * (Y - 1) * 5
    assert found.update_communication == 0


def test_a_residual_and_two_norms_apart():
    """A layer less its attention and its feed-forward; the residuals move nothing."""
    parts = [scalings(EVEN, "finalized", f"{name}_gradient")[1] for name in ("attention", "ffn")]
    _, layer = scalings(EVEN, "finalized", "layer_gradient")
    added = layer - (parts[0] + parts[1])
    assert added.weight_memory == added.weight_communication == 0
    # Two fp32 statistics of each norm, all-reduced forward, and two sums backward.
    assert added.activation_communication == 2 * 4 * 8 * B * S / X * (Y - 1) / Y
    # The same statistics are kept, and what the norms make: both passes gather it.
    assert added.activation_memory == 2 * 8 * B * S / X + 2 * 2 * B * S * M / (X * Y)


def test_only_a_linear_size_has_a_coefficient():
    with pytest.raises(FormulaError, match="not linear in M: it has no coefficient"):
        coefficient(M * M + B, "M")
