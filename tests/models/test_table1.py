"""The strategies of Table 1 spell the paper's table, on any names of the two axes."""

import jax
import pytest
from jax.sharding import PartitionSpec as P

from shardalg.algebra.mesh import Mesh
from shardalg.errors import StrategyError
from shardalg.lab import table1_strategies as table1
from shardalg.models import training
from shardalg.models.transformer import Config

MESH = Mesh({"X": 2, "Y": 4})
# As printed in Table 1: weights of all three rows, then BSM, BSND and BSH of each.
PROJECTIONS = dict.fromkeys(("w_q", "w_k", "w_v"), "X,Y,_")
WEIGHTS = {**PROJECTIONS, "w_o": "Y,_,X", "w_in": "X,Y", "w_out": "Y,X"}
ROWS = {
    "attempt 1": ("_,_,X", "_,_,Y,_", "_,_,Y"),
    "attempt 2": ("X,_,_", "X,_,Y,_", "X,_,Y"),
    "finalized": ("X,_,Y", "X,_,Y,_", "X,_,Y"),
}


def spec(text):
    return P(*(None if axis == "_" else axis for axis in text.split(",")))


def is_spec(leaf):
    return isinstance(leaf, P)


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_the_papers(name):
    bsm, bsnd, bsh = map(spec, ROWS[name])
    strategy = table1.STRATEGIES[name](MESH, Config(), "layer")
    assert strategy.in_shardings == ({k: spec(v) for k, v in WEIGHTS.items()}, bsm)
    assert strategy.out_shardings == bsm
    assert dict(strategy.sites) == {"attention_heads": bsnd, "ffn_hidden": bsh, "layer_output": bsm}


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_at_most_seven_annotations_per_layer(name, scan):
    config = Config(scan=scan)
    strategy = table1.STRATEGIES[name](MESH, config)
    assert table1.count_annotations(config, strategy) == 7


@pytest.mark.sampled(10)
@pytest.mark.parametrize("part", training.PARTS)
@pytest.mark.parametrize("scan", [False, True])
def test_every_argument_and_result_has_a_spec_that_fits(part, scan):
    config = Config(scan=scan)
    chosen = training.part(part)
    strategy = table1.finalized(MESH, config, part)
    arguments = chosen.arguments(config)
    results = jax.eval_shape(chosen.function(config), *arguments)
    for specs, types in ((strategy.in_shardings, arguments), (strategy.out_shardings, results)):
        assert jax.tree.structure(specs, is_leaf=is_spec) == jax.tree.structure(types)
        leaves = jax.tree.leaves(specs, is_leaf=is_spec), jax.tree.leaves(types)
        assert all(len(s) <= t.ndim for s, t in zip(*leaves, strict=True))


def test_state_comes_out_as_it_went_in():
    strategy = table1.finalized(MESH, Config())
    assert strategy.in_shardings[:2] == strategy.out_shardings[:2]
    moments = strategy.in_shardings[1]["moments"]["layers"][0]
    assert moments["w_o"] == {"row": P("Y", None), "column": P("X")}


def test_axes_are_taken_by_place():
    strategy = table1.finalized(Mesh({"data": 2, "model": 4}), Config(), "ffn")
    weights = {"w_in": P("data", "model"), "w_out": P("model", "data")}
    assert strategy.in_shardings == (weights, P("data", None, "model"))


def test_a_mesh_of_two_axes_is_needed():
    with pytest.raises(StrategyError, match=r"two axes.*Mesh\(X=8\)"):
        table1.finalized(Mesh({"X": 8}), Config())
