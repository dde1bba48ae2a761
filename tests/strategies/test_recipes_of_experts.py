"""Recipes give the layouts that experts wrote by hand, per array; each difference has its reason.

Sources, read in November 2026:
- the paper: GSPMD (arXiv:2105.04663), Table 1, as `shardalg/lab/table1_strategies.py` states it;
- MaxText: `logical_axis_rules` of `src/maxtext/configs/base.yml` at e6b06efc, and the logical names
  that its layers give to weights (`layers/attentions.py`, `linears.py`, `moe.py`, `embeddings.py`);
- flax: `axis_rules` of `examples/lm1b_nnx/configs/default.py`, and the names in `models.py`;
- torchtitan: `apply_tp` and `apply_fsdp` of `torchtitan/models/llama3/infra/parallelize.py`.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.lab import table1_strategies
from shardalg.models import dense_strategies, training
from shardalg.models.published import moe, unet3d
from shardalg.models.training import OPTIMIZERS
from shardalg.models.transformer import Config, param_types
from shardalg.plan.strategies.derive.recipe_parts import path_text

SIZES = {"V": 512, "M": 64, "N": 8, "K": 4, "D": 16, "H": 256, "E": 8, "C": 32, "B": 32, "S": 16}


def shape_of(letters):
    return jax.ShapeDtypeStruct(tuple(SIZES[letter] for letter in letters), "float32")


# Weights with the dimensions that MaxText names; `n` is a layer.
ATTENTION = {"query": "MND", "key": "MKD", "value": "MKD", "out": "NDM", "norm": "M"}
DENSE = {"wi_0": "MH", "wi_1": "MH", "wo": "HM", "mlp_norm": "M"}
EXPERTS = {"gate": "ME", "wi_0": "EMH", "wi_1": "EMH", "wo": "EHM", "mlp_norm": "M"}
LETTERS = {
    "embedding": "VM",
    "layer_0": ATTENTION | DENSE,
    "layer_1": ATTENTION | DENSE,
    "decoder_norm": "M",
    "logits_dense": "MV",
}
SPARSE_LETTERS = {**LETTERS, "layer_1": ATTENTION | EXPERTS}


def norm(x, scale):
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale


def attention(w, x):
    h = norm(x, w["norm"])
    q, k, v = (jnp.einsum("bsm,mnd->bsnd", h, w[name]) for name in ("query", "key", "value"))
    q = q.reshape(*q.shape[:2], SIZES["K"], -1, SIZES["D"])
    scores = jnp.einsum("bskgd,btkd->bkgst", q, k)
    found = jnp.einsum("bkgst,btkd->bskgd", jax.nn.softmax(scores, -1), v)
    return x + jnp.einsum("bsnd,ndm->bsm", found.reshape(*x.shape[:2], -1, SIZES["D"]), w["out"])


def mlp(w, x):
    h = norm(x, w["mlp_norm"])
    return x + (jax.nn.silu(h @ w["wi_0"]) * (h @ w["wi_1"])) @ w["wo"]


def experts(w, x):
    """Apply a mixture of experts with a capacity, as the dense products of MaxText's `moe.py`."""
    h = norm(x, w["mlp_norm"])
    shares = jax.nn.softmax(h @ w["gate"], -1)
    chosen = jax.nn.one_hot(jnp.argmax(shares, -1), SIZES["E"])
    place = (jnp.cumsum(chosen, 1) * chosen).sum(-1).astype(int)
    mask = chosen[..., None] * jax.nn.one_hot(place, SIZES["C"])[:, :, None]
    sent = jnp.einsum("bsm,bsec->ebcm", h, mask)
    hidden = jax.nn.silu(jnp.einsum("ebcm,emh->ebch", sent, w["wi_0"]))
    hidden = hidden * jnp.einsum("ebcm,emh->ebch", sent, w["wi_1"])
    back = jnp.einsum("ebch,ehm->ebcm", hidden, w["wo"])
    return x + jnp.einsum("ebcm,bsec->bsm", back, mask * (shares * chosen)[..., None])


def loss(params, tokens, targets):
    x = params["embedding"][tokens]
    for layer in (params["layer_0"], params["layer_1"]):
        x = attention(layer, x)
        x = experts(layer, x) if "gate" in layer else mlp(layer, x)
    logits = norm(x, params["decoder_norm"]) @ params["logits_dense"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


OPTIMIZER = optax.adamw(1e-3)


def step(params, state, tokens, targets):
    value, slope = jax.value_and_grad(loss)(params, tokens, targets)
    change, state = OPTIMIZER.update(slope, state, params)
    return optax.apply_updates(params, change), state, value


def arguments(letters):
    params = jax.tree.map(shape_of, letters)
    tokens = jax.ShapeDtypeStruct((SIZES["B"], SIZES["S"]), "int32")
    return params, jax.eval_shape(OPTIMIZER.init, params), tokens, tokens


def by_rules(letters, rules):
    """Return the spec of each array, by the axis of each letter; of two equal axes the first."""

    def spec(dims):
        used, found = set(), []
        for letter in dims:
            axis = rules.get(letter)
            axes = axis if isinstance(axis, tuple) else (axis,) if axis else ()
            axes = tuple(a for a in axes if a not in used)
            used |= set(axes)
            found.append(axes)
        return found

    flat, _ = jax.tree_util.tree_flatten_with_path(letters)
    return {jax.tree_util.keystr(path): spec(dims) for path, dims in flat}


def spelled(tree):
    """Return the axes per dimension of each spec of a tree, by path."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda s: isinstance(s, P))
    return {
        jax.tree_util.keystr(path): [
            axes if isinstance(axes, tuple) else (axes,) if axes else () for axes in spec
        ]
        for path, spec in pairs
    }


def differences(found, expected):
    return {path: (found[path], dims) for path, dims in expected.items() if found[path] != dims}


MAXTEXT = {"M": "fsdp", "H": "tensor", "V": "tensor", "N": "tensor", "K": "tensor"}
MESH = sa.Mesh({"fsdp": 4, "tensor": 2})
BOTH = sa.recipes.fsdp("fsdp") | sa.recipes.tensor("tensor")


def test_a_dense_model_has_the_layouts_of_maxtext():
    found = BOTH.strategy(step, *arguments(LETTERS), mesh=MESH)
    wrong = differences(spelled(found.in_shardings[0]), by_rules(LETTERS, MAXTEXT))
    # MaxText's activations have their features on `tensor` too, and so have its norms. A norm of
    # this recipe is whole, because nothing shards the activation that it multiplies.
    assert all(path.endswith("norm']") for path in wrong)
    assert all(spec == [()] for spec, _ in wrong.values())
    # data: activation_batch on fsdp
    assert found.in_shardings[2] == P("fsdp", None)


def test_optimizer_state_and_next_values_are_sharded_as_the_parameters():
    given = arguments(LETTERS)
    found = BOTH.strategy(step, *given, mesh=MESH)
    params, state, *_ = found.in_shardings
    assert state[0].mu == params
    assert state[0].nu == params
    assert found.out_shardings[:2] == (params, state)


def test_experts_have_the_layouts_of_maxtext():
    mesh = sa.Mesh({"fsdp": 2, "expert": 2, "tensor": 2})
    recipe = (
        sa.recipes.fsdp("fsdp", "expert")
        | sa.recipes.expert("expert")
        | sa.recipes.tensor("tensor")
    )
    found = recipe.strategy(step, *arguments(SPARSE_LETTERS), mesh=mesh)
    # embed: fsdp and expert; exp: expert, which embed_no_exp of experts' weights leaves out.
    rules = {**MAXTEXT, "M": ("fsdp", "expert"), "E": "expert"}
    expected = by_rules(SPARSE_LETTERS, rules)
    # The router's kernel is ("embed", None) in moe.py.
    expected["['layer_1']['gate']"] = [("fsdp", "expert"), ()]
    wrong = differences(spelled(found.in_shardings[0]), expected)
    assert all(path.endswith("norm']") for path in wrong), wrong
    assert found.in_shardings[2] == P(("fsdp", "expert"), None)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("config", [Config(), Config(scan=True), Config(K=4)])
def test_two_d_is_the_finalized_strategy_of_the_paper(config):
    mesh = sa.Mesh({"X": 2, "Y": 4})
    tokens = jax.ShapeDtypeStruct((config.B, config.S), "int32")
    given = param_types(config), training.opt_state_types(config), tokens, tokens
    roles = ("parameters", "optimizer_state", "data", "data")
    found = sa.recipes.two_d("X", "Y").strategy(
        partial(training.train_step, config), *given, mesh=mesh, roles=roles
    )
    expected = table1_strategies.finalized(mesh, config)
    for ours, theirs in zip(found.in_shardings, expected.in_shardings, strict=True):
        assert differences(spelled(ours), spelled(theirs)) == {}
    for ours, theirs in zip(found.out_shardings[:2], expected.out_shardings[:2], strict=True):
        assert differences(spelled(ours), spelled(theirs)) == {}
    sites = {name: P(*spec) for name, spec in expected.sites.items()}
    assert spelled(found.sites) == spelled(sites)


@pytest.mark.parametrize("part", ["ffn", "attention", "layer", "ffn_gradient"])
def test_two_d_is_the_finalized_strategy_of_a_part(part):
    """A layer alone, with its activation as an argument: Table 1 shards its features along Y."""
    config, mesh = Config(), sa.Mesh({"X": 2, "Y": 4})
    chosen = training.part(part)
    given = chosen.arguments(config)
    expected = table1_strategies.finalized(mesh, config, part)
    roles = ("parameters", *["data"] * (len(given) - 1))
    found = sa.recipes.two_d("X", "Y").strategy(
        chosen.function(config), *given, mesh=mesh, roles=roles
    )
    for ours, theirs in zip(found.in_shardings, expected.in_shardings, strict=True):
        assert differences(spelled(ours), spelled(theirs)) == {}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("config", [Config(), Config(gated=True, K=4)])
def test_fsdp_and_tensor_are_the_strategy_that_dense_models_have(config):
    """`models/dense_strategies.py`, whose predictions are compared with published runs."""
    mesh = sa.Mesh({"fsdp": 4, "tensor": 2})
    tokens = jax.ShapeDtypeStruct((config.B, config.S), "int32")
    given = param_types(config), training.opt_state_types(config), tokens, tokens
    roles = ("parameters", "optimizer_state", "data", "data")
    found = BOTH.strategy(partial(training.train_step, config), *given, mesh=mesh, roles=roles)
    expected = dense_strategies.strategy(config, OPTIMIZERS["adafactor"], mesh, "fsdp_tensor")
    for ours, theirs in zip(found.in_shardings, expected.in_shardings, strict=True):
        assert differences(spelled(ours), spelled(theirs)) == {}
    # The expert's residual has its features on `tensor`; that of Megatron is whole there.
    assert {name for name in found.sites if found.sites[name] != expected.sites[name]} == {
        "embedded",
        "layer_output",
    }


PAPER_ROLES = ("parameters", "optimizer_state", "data", "data")


def test_experts_on_one_axis_are_those_of_the_paper():
    """Section 5.4: experts along X in MoE layers, the batch elsewhere, sites included."""
    model, mesh = moe.MoEConfig().model, sa.Mesh({"X": 4})
    expected = model.strategy(mesh, moe.SPARSE)
    found = sa.recipes.expert("X").strategy(
        model.train_step, *model.arguments(), mesh=mesh, roles=PAPER_ROLES
    )
    for ours, theirs in zip(found.in_shardings, expected.in_shardings, strict=True):
        assert differences(spelled(ours), spelled(theirs)) == {}
    assert spelled(found.sites) == spelled(expected.sites)


def test_experts_and_two_axes_are_those_of_the_paper():
    """Section 5.5, a mesh (X, Y): experts along X, heads and hidden features along Y."""
    model, mesh = moe.MoEConfig().model, sa.Mesh({"X": 4, "Y": 2})
    expected = model.strategy(mesh, moe.HYBRID)
    recipe = sa.recipes.expert("X") | sa.recipes.two_d("X", "Y")
    found = recipe.strategy(model.train_step, *model.arguments(), mesh=mesh, roles=PAPER_ROLES)
    wrong = {}
    for ours, theirs in zip(found.in_shardings, expected.in_shardings, strict=True):
        wrong |= differences(spelled(ours), spelled(theirs))
    # The paper leaves the router and its moments whole, by a letter of their own (`m`). The recipe
    # shards its features of the residual along X, as those of every other weight.
    assert set(wrong) == {
        "['layers']['moe']['w_gate']",
        "['moments']['layers']['moe']['w_gate']['row']",
    }
    assert spelled(found.sites) == spelled(expected.sites)


def test_images_are_cut_as_in_the_paper():
    """Section 5.6: the batch along X, and the depth of the images along Y."""
    model, mesh = unet3d.UNet3D().model, sa.Mesh({"X": 2, "Y": 2})
    expected = model.strategy(mesh, unet3d.SPATIAL)
    recipe = sa.recipes.data("X") | sa.recipes.sequence("Y")
    found = recipe.strategy(model.train_step, *model.arguments(), mesh=mesh, roles=PAPER_ROLES)
    assert found.in_shardings[2:] == expected.in_shardings[2:]
    # The paper leaves weights to completion, which replicates them; the recipe says so.
    assert all(axes == () for dims in spelled(found.in_shardings[0]).values() for axes in dims)


# The plan of torchtitan for Llama 3: "column" and "row" of `apply_tp`. Norms are SequenceParallel,
# whose weights are replicated. An embedding is RowwiseParallel: its rows, the vocabulary.
TORCHTITAN = {
    "['embedding']": 0,
    **{
        f"['layer_{n}']['{name}']": dim
        for n in (0, 1)
        for name, dim in {
            "query": 1, "key": 1, "value": 1, "out": 0, "wi_0": 1, "wi_1": 1, "wo": 0,
            "norm": None, "mlp_norm": None,
        }.items()
    },
    "['decoder_norm']": None,
    "['logits_dense']": 1,
}  # fmt: skip


def test_a_dense_model_has_the_tensor_parallel_plan_of_torchtitan():
    recipe = BOTH | sa.recipes.sequence("tensor")
    given = arguments(LETTERS)
    found = recipe.strategy(step, *given, mesh=MESH)
    specs = spelled(found.in_shardings[0])
    places = {
        path: next((dim for dim, axes in enumerate(spec) if "tensor" in axes), None)
        for path, spec in specs.items()
    }
    assert places == TORCHTITAN
    # Activations between the products are sharded along the sequence: Shard(1) of the tokens.
    assert found.in_shardings[2] == P("fsdp", "tensor")
    # fully_shard puts every parameter's first dimension on the data axes, norms included. The
    # recipe takes a free dimension instead, so that a matrix has as many bytes on a device, and
    # leaves norms whole (MaxText, issue 623: a norm that is gathered cost 10 % of a step).
    for path, spec in specs.items():
        blocks = math.prod(MESH.shape[axis] for axes in spec for axis in axes)
        assert blocks == (1 if path.endswith("norm']") else 8), path


class Block(nnx.Module):
    """The layer of flax's example `lm1b_nnx`."""

    def __init__(self, rngs):
        sizes = {"in_features": 64, "qkv_features": 64, "use_bias": False, "decode": False}
        self.ln1 = nnx.LayerNorm(64, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(num_heads=4, **sizes, rngs=rngs)
        self.ln2 = nnx.LayerNorm(64, rngs=rngs)
        self.linear1 = nnx.Linear(64, 256, rngs=rngs)
        self.linear2 = nnx.Linear(256, 64, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.linear2(nnx.relu(self.linear1(self.ln2(x))))


class LanguageModel(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(512, 64, rngs=rngs)
        self.block = Block(rngs)
        self.norm = nnx.LayerNorm(64, rngs=rngs)
        self.logitdense = nnx.Linear(64, 512, rngs=rngs)

    def __call__(self, tokens):
        return self.logitdense(self.norm(self.block(self.embed(tokens))))


@nnx.jit
def nnx_step(model, optimizer, tokens):
    def of(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(tokens), tokens).mean()

    value, slope = nnx.value_and_grad(of)(model)
    optimizer.update(model, slope)
    return value


# Names of `models.py`; rules: embed fsdp; mlp, kv and vocab tensor.
FLAX = {
    "embed/embedding": ("tensor", "fsdp"),
    "block/attention/query/kernel": ("fsdp", "tensor", None),
    "block/attention/key/kernel": ("fsdp", "tensor", None),
    "block/attention/value/kernel": ("fsdp", "tensor", None),
    "block/attention/out/kernel": ("fsdp", "tensor", None),
    "block/linear1/kernel": ("fsdp", "tensor"),
    "block/linear1/bias": ("tensor",),
    "block/linear2/kernel": ("tensor", "fsdp"),
    "block/linear2/bias": ("fsdp",),
    "block/ln1/scale": ("fsdp",),
    "block/ln1/bias": ("fsdp",),
    "block/ln2/scale": ("fsdp",),
    "block/ln2/bias": ("fsdp",),
    "norm/scale": ("fsdp",),
    "norm/bias": ("fsdp",),
    "logitdense/kernel": ("fsdp", "tensor"),
    "logitdense/bias": ("tensor",),
}


@pytest.mark.slow
def test_an_nnx_model_has_the_layouts_of_its_example():
    model = LanguageModel(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    tokens = jnp.zeros((32, 16), "int32")
    told = BOTH.explain(nnx_step, model, optimizer, tokens, mesh=MESH)
    found = {
        path_text(layout.path).removeprefix("model/"): tuple(
            axes[0] if axes else None for axes in layout.dims
        )
        for layout in told.derived.layouts
        if layout.role == "parameters"
    }
    wrong = {path for path, spec in FLAX.items() if found[path] != spec}
    # The example gives the output kernel (heads, features, model) the names of the others, so that
    # heads are on fsdp and their features, over which attention sums, on tensor. Vectors of the
    # model's features are on fsdp there, and whole here (MaxText, issue 623).
    assert wrong == {
        "block/attention/out/kernel",
        *(path for path, spec in FLAX.items() if spec == ("fsdp",)),
    }
    assert found["block/attention/out/kernel"] == ("tensor", None, "fsdp")
    # The strategy plans the function as it is, state included.
    plan = sa.plan(nnx_step, model, optimizer, tokens, strategy=told.strategy)
    assert plan.mesh == MESH
