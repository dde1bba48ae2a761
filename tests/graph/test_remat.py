"""Policies of rematerialisation: the trace is that of `jax.checkpoint` written by hand."""

import threading

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.graph.serial import graph_hash
from shardalg.graph.tracing.remat import CHECKPOINTS, SCANS, policy_names, rematerialised
from shardalg.graph.tracing.trace import trace
from shardalg.planner.rematerialised import inputs_with_remat

WEIGHTS = jax.ShapeDtypeStruct((4, 8, 8), "float32")
X = jax.ShapeDtypeStruct((32, 8), "float32")
POLICIES = ["nothing_saveable", "dots_saveable", "everything_saveable"]


def layer(hidden, w):
    return jnp.sin(jnp.sin(hidden @ w)), None


def gradient(body):
    def loss(weights, x):
        return (jax.lax.scan(body, x, weights)[0] ** 2).mean()

    return jax.grad(loss)


def by_hand(policy, **more):
    return jax.checkpoint(layer, policy=getattr(jax.checkpoint_policies, policy), **more)


@pytest.mark.parametrize("policy", POLICIES)
def test_scans_and_checkpoints_are_traced_as_written_by_hand(policy):
    found = set()
    scans = trace(rematerialised(gradient(layer), policy, SCANS, found), WEIGHTS, X)
    hand = trace(gradient(by_hand(policy, prevent_cse=False)), WEIGHTS, X)
    assert graph_hash(scans) == graph_hash(hand)
    fn = gradient(by_hand("dots_saveable"))
    changed = trace(rematerialised(fn, policy, CHECKPOINTS, found), WEIGHTS, X)
    assert graph_hash(changed) == graph_hash(trace(gradient(by_hand(policy)), WEIGHTS, X))
    assert found == {SCANS, CHECKPOINTS}


def test_jitted_layers_are_traced_again_for_each_policy():
    inner = jax.jit(jax.checkpoint(lambda x, w: layer(x, w)[0]))
    fn = jax.grad(lambda w, x: inner(inner(x, w[0]), w[1]).sum())

    def count(policy):
        found = set()
        made = trace(rematerialised(fn, policy, CHECKPOINTS, found), WEIGHTS, X)
        assert found == {CHECKPOINTS}
        return sum(node.primitive == "sin" for node in made.nodes)

    counts = [count(policy) for policy in (*POLICIES, *POLICIES)]
    assert counts[:3] == counts[3:]
    assert counts[0] > counts[2] == 4
    assert sum(node.primitive == "sin" for node in trace(fn, WEIGHTS, X).nodes) == counts[0]


def test_only_differentiated_scans_get_a_checkpoint():
    """Gradients of microbatches are a scan around the scan over layers, and not differentiated."""

    def step(weights, batches):
        def add(sums, x):
            return sums + gradient(layer)(weights, x), None

        return jax.lax.scan(add, jnp.zeros_like(weights), batches)[0]

    batches = jax.ShapeDtypeStruct((3, 32, 8), "float32")
    made = trace(rematerialised(step, "nothing_saveable", SCANS, set()), WEIGHTS, batches)
    assert sum(region.kind == "remat" for region in made.regions) == 1
    found = set()
    trace(rematerialised(lambda x: jax.lax.scan(layer, x, WEIGHTS_OF_ONE)[0], "dots_saveable",
                         SCANS, found), X)  # fmt: skip
    assert not found


WEIGHTS_OF_ONE = jnp.ones((1, 8, 8))


def test_other_threads_keep_their_own_policies():
    found, waiting, going = {}, threading.Event(), threading.Event()

    def slow(weights, x):
        waiting.set()
        going.wait(20)
        return gradient(by_hand("nothing_saveable"))(weights, x)

    def work():
        fn = rematerialised(slow, "everything_saveable", CHECKPOINTS, set())
        found["changed"] = len(trace(fn, WEIGHTS, X).nodes)

    thread = threading.Thread(target=work)
    thread.start()
    assert waiting.wait(20)
    plain = len(trace(gradient(by_hand("nothing_saveable")), WEIGHTS, X).nodes)
    going.set()
    thread.join()
    assert found["changed"] < plain


def test_sites_move_by_their_names():
    """A site inside of a layer is computed twice with rematerialisation."""

    def named(hidden, w):
        return jnp.sin(sa.annotate(jnp.sin(hidden @ w), "hidden")), None

    mesh = sa.Mesh({"X": 4})
    strategy = sa.Strategy(mesh, (None, P("X")), sites={"hidden": P("X")})
    plan = sa.plan(gradient(named), WEIGHTS, X, strategy=strategy)
    made, annotations = inputs_with_remat(plan._traced, plan._annotations, "nothing_saveable")
    assert len(plan.graph.sites) < len(made.graph.sites)
    assert {site.text() for site in annotations.sites} == {"[X, None]"}


def test_policies_are_those_of_jax():
    for name in policy_names():
        assert callable(getattr(jax.checkpoint_policies, name))
    assert "save_only_these_names" not in policy_names()
