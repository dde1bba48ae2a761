"""Values kept for the backward pass, compared with the brute-force cheapest choice."""

from dataclasses import replace
from itertools import combinations

import jax
import jax.numpy as jnp
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import shardalg as sa
from shardalg.costs import fusion
from shardalg.costs.compute import contracts
from shardalg.costs.memory import liveness
from shardalg.costs.saved_activations import _reached_beside_flow, last_uses, lifetimes
from shardalg.graph.ir import Graph, Node, Region, Signature, Value, ValueType
from shardalg.lab import table1_strategies as table1
from shardalg.models.training import part
from shardalg.models.transformer import Config
from shardalg.spmd.instructions import AllGather, Apply
from tests.costs.unpartitioned import program_of

MATMUL = (("dimension_numbers", (((1,), (0,)), ((), ()))),)


def graph_of(steps, results, sizes):
    """Return the graph of steps (primitive, operands).

    Value 0 is the argument x of 8x8, 1 the weight of 8x8.
    """
    types = [ValueType((8, 8), "float32")] * 2 + [ValueType((8, 8), size) for size in sizes]
    values = tuple(
        Value(i, t, "argument" if i < 2 else "node", f"v{i}") for i, t in enumerate(types)
    )
    nodes = tuple(
        Node(
            i,
            Signature(
                primitive,
                MATMUL if primitive == "dot_general" else (),
                tuple(types[v] for v in operands),
                (types[i + 2],),
            ),
            operands,
            (i + 2,),
        )
        for i, (primitive, operands) in enumerate(steps)
    )
    root = Region(0, "root", None, None, (0, 1), results, tuple(range(len(nodes))), 1)
    return Graph(values, nodes, (root,), (), (0, 1), results, ("x", "w"), ("y",))


def split_at(program, border):
    """Return the program with its instructions from `border` on in the backward pass."""
    instructions = tuple(
        replace(ins, phase="forward" if i < border else "backward")
        for i, ins in enumerate(program.block.instructions)
    )
    return replace(program, block=replace(program.block, instructions=instructions))


def lives(program, graph):
    return lifetimes(program, graph, program.block)


def kept(program, graph):
    last = lives(program, graph).last
    phases = [ins.phase for ins in program.block.instructions]
    border = phases.index("backward")
    made = {v for ins in program.block.instructions[:border] for v in ins.results}
    return {v for v in made if border <= last.get(v, -1) < len(phases)}


@st.composite
def forwards(draw):
    """Random forward passes of products and pointwise operators, with random reads at the end."""
    count = draw(st.integers(2, 7))
    steps = []
    for i in range(count):
        primitive = draw(st.sampled_from(["dot_general", "add", "tanh"]))
        pick = st.integers(0, i + 1)
        operands = (draw(pick), 1) if primitive == "dot_general" else (draw(pick), draw(pick))
        steps.append((primitive, operands[: 1 if primitive == "tanh" else 2]))
    reads = draw(st.lists(st.integers(2, count + 1), min_size=1, max_size=3, unique=True))
    sizes = draw(st.lists(st.sampled_from(["float32", "bfloat16"]), min_size=count, max_size=count))
    return steps, reads, sizes


def cheapest(steps, reads, sizes):
    """Fewest bytes of forward values from which all reads follow by pointwise operators."""
    bytes_of = {i + 2: 64 * (4 if size == "float32" else 2) for i, size in enumerate(sizes)}

    def follows(value, held):
        if value < 2 or value in held:
            return True
        primitive, operands = steps[value - 2]
        return primitive != "dot_general" and all(follows(v, held) for v in operands)

    choices = (c for n in range(len(steps) + 1) for c in combinations(bytes_of, n))
    return min(
        sum(bytes_of[v] for v in c) for c in choices if all(follows(v, set(c)) for v in reads)
    )


@given(forwards())
def test_the_cut_is_the_cheapest_set_of_values_that_rebuilds_every_read(case):
    steps, reads, sizes = case
    backward = [("tanh", (v,)) for v in reads]
    border = len(steps)
    graph = graph_of([*steps, *backward], (), [*sizes, *["float32"] * len(reads)])
    program = split_at(program_of(graph), border)
    held = kept(program, graph)
    assert sum(program.locals[v].bytes for v in held) == cheapest(steps, reads, sizes)


def test_a_chain_of_pointwise_operators_keeps_its_narrowest_input():
    steps = [("dot_general", (0, 1)), ("tanh", (2,)), ("tanh", (3,)), ("add", (3, 4))]
    graph = graph_of(steps, (5,), ["bfloat16", "float32", "float32", "float32"])
    program = split_at(program_of(graph), 3)
    assert kept(program, graph) == {2}
    last = lives(program, graph).last
    assert (last[2], last[3]) == (3, 2)


def test_a_program_without_a_backward_pass_is_left_alone():
    graph = graph_of([("tanh", (0,)), ("add", (2, 0))], (3,), ["float32"] * 2)
    program = program_of(graph)
    block = program.block
    assert lives(program, graph).last == last_uses(block.instructions, block.results)


@pytest.mark.parametrize("rebuild", [False, True])
def test_the_peak_counts_what_is_kept(rebuild):
    steps = [("dot_general", (0, 1)), ("tanh", (2,)), ("dot_general", (3, 1)), ("add", (3, 4))]
    graph = graph_of(steps, (5,), ["bfloat16", "float32", "float32", "float32"])
    program = split_at(program_of(graph), 2)
    found = liveness(program, graph, rebuild=rebuild)
    arguments = 2 * 8 * 8 * 4
    # the second product reads tanh (256 bytes) or what rebuilds it (128), and writes 256
    assert found.peak_bytes == arguments + (128 if rebuild else 256) + 256


def test_what_fused_operators_read_lives_until_they_run():
    steps = [("dot_general", (0, 1)), ("tanh", (2,)), ("dot_general", (2, 1)), ("add", (3, 4))]
    graph = graph_of([*steps, ("dot_general", (5, 4))], (6,), ["float32"] * 5)
    found = lives(program_of(graph), graph)
    assert found.sources == {3: {2}}
    assert found.last[2] == 3  # tanh is made inside the sum


def test_a_product_and_the_sum_behind_it_are_one_kernel():
    """Only the sum is written, over what is added: three products that are added up take two."""
    steps = [("dot_general", (0, 1)), ("dot_general", (0, 0)), ("add", (2, 3))]
    steps += [("dot_general", (1, 1)), ("add", (4, 5)), ("dot_general", (6, 6))]
    graph = graph_of(steps, (7,), ["float32"] * 6)
    program = program_of(graph)
    found = lives(program, graph)
    assert found.sources == {3: set(), 5: set()}
    one = 8 * 8 * 4
    assert liveness(program, graph, rebuild=True).peak_bytes == (2 + 2) * one
    assert liveness(program, graph).peak_bytes == (2 + 2) * one


def test_sums_are_kept_and_not_made_again():
    """A row of 8 sums is less than the product that they are sums of, which nothing else reads."""

    def loss(w, x):
        h = x @ w
        return jnp.sum(jnp.tanh(h.sum(axis=1)) @ x)

    x = jax.ShapeDtypeStruct((8, 8), "float32")
    plan = sa.plan(jax.grad(loss), x, x, mesh=sa.Mesh({"X": 1}))
    found = lives(plan.program, plan.graph)
    shapes = [plan.program.locals[v].shape for v in found.kept]
    assert shapes == [(8,)]


def test_what_is_gathered_again_is_kept():
    """Weights are cast, then gathered in both passes: the compiler casts them once."""
    config, mesh = Config(B=4, S=8, M=16, H=32, N=4, D=4), sa.Mesh({"X": 2, "Y": 4})
    step = part("train_step")
    plan = sa.plan(
        step.function(config),
        *step.arguments(config),
        strategy=table1.finalized(mesh, config),
        roles=step.roles(),
    )
    block = plan.program.block
    border = [i.phase for i in block.instructions].index("backward")
    sent = [
        {i.operands[0] for i in side if isinstance(i.attributes, AllGather)}
        for side in (block.instructions[:border], block.instructions[border:])
    ]
    again = sent[0] & sent[1] - set(block.arguments)
    assert len(again) >= 6 * config.L  # the weights of a layer, and what its products read
    assert again <= lives(plan.program, plan.graph).kept


AMOUNTS = [0, 1, 2, 3, 5, 1 << 44, (1 << 70) - 1, 1 << 70]


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from(AMOUNTS)),
        min_size=1,
        max_size=14,
        unique_by=lambda arc: arc[:2],
    )
)
# The first path, over 0 and 1, leaves no second one unless it is taken back between them.
@example([(4, 0, 1), (0, 1, 1), (1, 5, 1), (4, 2, 1), (2, 1, 1), (0, 3, 1), (3, 5, 1)])
def test_a_cut_of_any_sizes_is_exact(arcs):
    """Capacities of few bits, and of more than 64, are cut as by a comparison of all subsets."""
    arcs = [(a, b, n) for a, b, n in arcs if a != b]
    reached = _reached_beside_flow(arcs, 4, 5)
    sides = [{4, *c} for k in range(5) for c in combinations(range(4), k)]
    paid = {frozenset(s): sum(n for a, b, n in arcs if a in s and b not in s) for s in sides}
    least = min(paid.values())
    smallest = frozenset.intersection(*(s for s, n in paid.items() if n == least))
    assert reached == smallest


@pytest.mark.sampled(1)
@pytest.mark.parametrize("strategy", table1.STRATEGIES)
def test_traits_are_what_the_rows_of_each_instruction_say(strategy):
    """The bits of `traits` equal the answers of the functions that decide one trait each."""
    config = Config(B=8, S=8, M=16, H=32, N=4, D=4, V=32, L=2)
    chosen, mesh = part("train_step"), sa.Mesh({"X": 2, "Y": 2})
    layout = table1.STRATEGIES[strategy](mesh, config)
    plan = sa.plan(chosen.function(config), *chosen.arguments(config), strategy=layout)
    block, graph = plan.program.block, plan.graph
    for one, bits in zip(block.instructions, fusion.traits(block, graph), strict=True):
        signature = None if one.node is None else graph.nodes[one.node].signature
        is_apply = type(one.attributes) is Apply and signature is not None
        assert bool(bits & fusion.FUSES) == fusion.fuses(one, graph)
        assert bool(bits & fusion.REDUCES) == fusion.reduces(one, graph)
        assert bool(bits & fusion.CONTRACTS) == (is_apply and contracts(signature))
    assert fusion.traits(block, graph) is fusion.traits(block, graph)
