"""XLA asked live: its completion, aligned with ours."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.errors import LoweringError
from shardalg.graph.ops.canonicalize.normalise import normalise
from shardalg.graph.tracing.trace import trace
from shardalg.planner.propagate import Strategy, propagate, resolve
from shardalg.xla import align, dump

MESH = sa.Mesh({"x": 2, "y": 4})


def layer(x, w, v):
    def step(carry, weights):
        hidden = sa.annotate(jax.nn.relu(carry @ weights[0]), "hidden")
        return carry + hidden @ weights[1], hidden.sum()

    out, sums = jax.lax.scan(step, x, (w, v))
    return jax.nn.softmax(out, axis=-1), sums


def asked(partitioner):
    if partitioner not in dump.partitioners():
        pytest.skip(f"jax {jax.__version__} has no partitioner {partitioner}")
    shapes = ((8, 16), (3, 16, 32), (3, 32, 16))
    graph = normalise(trace(layer, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)))
    strategy = Strategy(MESH, (P("x"), None, None), sites={"hidden": P(None, "y")})
    annotations = resolve(graph, strategy)
    done = propagate(graph, annotations)
    return done, dump.ask(graph, annotations, partitioner, jax.devices()[:8])


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_xla_asked_live_is_aligned_value_by_value(partitioner):
    done, told = asked(partitioner)
    found = align.matches(done, told.module, told.results)
    kinds = {match.kind for match in found}
    assert kinds == {"argument", "result", "dot", "reduce"}
    aligned = [value for value, _ in align.aligned(done, told.module)]
    assert len(aligned) == len(set(aligned)) == 6
    assert told.collectives
    assert [str(m) for m in found if not m.agrees] == []


def test_one_device_has_nothing_to_compare():
    graph = trace(lambda x: x + 1, jax.ShapeDtypeStruct((4,), jnp.float32))
    with pytest.raises(LoweringError, match="partitioned nothing"):
        dump.ask(graph, resolve(graph, Strategy(sa.Mesh({"x": 1}))))


def test_a_partitioner_that_jax_lacks_is_refused_by_name():
    with pytest.raises(LoweringError, match="no partitioner 'alpa'"), dump.using("alpa"):
        pass


def mirrored(x):
    return jnp.flip(x, 1)


def odd(x):
    return x.reshape(10, 12)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [mirrored, odd])
def test_layouts_that_are_no_digits_or_no_spec_are_no_error(function):
    """GSPMD mirrors the devices of a reversal, and splits reshapes as no spec can."""
    if "gspmd" not in dump.partitioners():
        pytest.skip(f"jax {jax.__version__} has no partitioner gspmd")
    x = jax.ShapeDtypeStruct((12, 10), jnp.float32)
    made = sa.plan(function, x, mesh=sa.Mesh({"a": 4, "b": 2}), in_shardings=(P("a", "b"),))
    assert str(made.compare_xla("gspmd"))


@pytest.mark.parametrize("position", [jnp.argmax, jnp.argmin])
def test_an_extreme_and_its_position_are_two_reductions_of_xlas(position):
    """Operand and shape are equal; the position is a second result of its own."""

    def gate(x):
        extreme = jnp.max if position is jnp.argmax else jnp.min
        return extreme(x, -1) * position(x, -1)

    x = jax.ShapeDtypeStruct((8, 16, 4), jnp.float32)
    plan = sa.plan(gate, x, mesh=MESH, in_shardings=(P("x"),))
    told = dump.ask(plan.graph, plan._annotations, "shardy", jax.devices()[:8])
    opcodes = {
        plan.graph.nodes[plan.graph.producer[value]].primitive: len(instruction.leaves)
        for value, instruction in align.aligned(plan._sharded, told.module)
    }
    assert opcodes == {plan.graph.nodes[0].primitive: 1, position.__name__: 2}
    assert plan.compare_xla("shardy").told.collectives == told.collectives
