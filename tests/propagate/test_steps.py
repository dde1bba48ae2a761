"""Single nodes: which layouts pass, which merge, and who wins."""

import pytest

from shardalg.algebra.mesh import Mesh
from shardalg.planner.propagate import CompletionOptions, Options, propagate
from tests.propagate.small import Builder, annotations, axes, layout


def complete(builder, results, **given):
    graph = builder.graph(*results)
    return propagate(graph, annotations(graph, **given))


def reshape(*sizes):
    return "reshape", {"new_sizes": sizes, "dimensions": None}, sizes


def other(primitive, result, **params):
    return primitive, params, result


ROW_OF_BROADCAST = other("broadcast_in_dim", (3, 8), shape=(3, 8), broadcast_dimensions=(1,))
PART = other("slice", (6, 8), start_indices=(1, 0), limit_indices=(7, 8), strides=None)
ONE_OPERAND = [
    # node, shape of its operand, the operand's axes, axes expected on the result
    (other("transpose", (16, 8), permutation=(1, 0)), (8, 16), ("x", "y"), (("y",), ("x",))),
    (other("reduce_sum", (8,), axes=(1,)), (8, 16), ("x", "y"), (("x",),)),
    (ROW_OF_BROADCAST, (8,), ("y",), ((), ("y",))),
    (reshape(4, 2, 6), (8, 6), ("y", "x"), (("y",), (), ("x",))),
    (reshape(2, 4, 6), (8, 6), (("x", "y"), None), (("x",), ("y",), ())),
    (reshape(2, 4, 6), (8, 6), ("y", None), (("y",), ("y",), ())),
    (reshape(8, 6), (2, 4, 6), ("x", "y", None), (("x", "y"), ())),
    (reshape(16, 6), (4, 4, 6), ("x", "y", None), (("x",), ())),
    (reshape(16, 6), (4, 4, 6), (None, "y", None), ((), ())),
    (other("squeeze", (8,), dimensions=(0,)), (1, 8), (None, "y"), (("y",),)),
    (other("cumsum", (8, 4), axis=0, reverse=False), (8, 4), ("x", "y"), (("x",), ("y",))),
    (PART, (8, 8), ("x", "y"), (("x",), ("y",))),
]


@pytest.mark.parametrize("case", ONE_OPERAND, ids=lambda case: f"{case[0][0]}-{case[1]}-{case[2]}")
def test_forward_through_one_operand(case):
    (primitive, params, out), shape, given, expected = case
    b = Builder()
    made = b.node(primitive, (b.argument(*shape),), out, **params)
    done = complete(b, [made], given={0: layout(shape, *given)})
    assert axes(done.shardings[made]) == expected


@pytest.mark.parametrize("case", ONE_OPERAND[:3], ids=lambda case: case[0][0])
def test_backward_through_one_operand(case):
    (primitive, params, out), shape, given, expected = case
    b = Builder()
    a = b.argument(*shape)
    made = b.node(primitive, (a,), out, **params)
    names = [e[0] if e else None for e in expected]
    done = complete(b, [made], wanted={0: layout(out, *names)})
    reachable = {n for e in expected for n in e}
    assert axes(done.shardings[a]) == tuple((n,) if n in reachable else () for n in given)


def test_dot_merges_both_operands_and_infers_an_operand_from_the_other():
    b = Builder()
    x, w = b.argument(8, 16), b.argument(16, 32)
    made = b.dot(x, w)
    done = complete(b, [made], given={0: layout((8, 16), "x"), 1: layout((16, 32), None, "y")})
    assert axes(done.shardings[made]) == (("x",), ("y",))
    reason = done.reasons[made]
    assert (reason.role, reason.direction, set(reason.sources)) == (
        "contraction",
        "forward",
        {x, w},
    )
    done = complete(b, [made], given={0: layout((8, 16), None, "y")})
    assert axes(done.shardings[w]) == (("y",), ())
    assert done.reasons[w].sources == (x,)


def test_of_a_result_and_another_operand_that_disagree_the_one_not_heard_is_a_conflict():
    b = Builder()
    x, w = b.argument(8, 8), b.argument(8, 8)
    made = b.add(x, x)
    graph = b.graph(b.dot(made, w))
    rows = layout((8, 8), "x", None)
    done = propagate(graph, annotations(graph, {1: rows}, {0: rows}))
    assert done.shardings[made] == rows
    ((value, refused),) = [(c.value, axes(c.refused)) for c in done.conflicts]
    assert (value, refused) == (made, ((), ("x",)))


def test_an_open_dimension_that_could_take_either_of_two_axes_names_the_other():
    b = Builder()
    x = b.argument(8, 8)
    b.annotate(x)
    made = b.add(x, x)
    graph = b.graph(made)
    along = {axis: layout((8, 8), None, axis) for axis in "xy"}
    opened = layout((8, 8), open_dims=(1,))
    done = propagate(graph, annotations(graph, {0: opened}, {0: along["x"]}, {0: along["y"]}))
    kept = axes(done.shardings[x])
    assert kept in [((), ("x",)), ((), ("y",))]
    refused = [axes(c.refused) for c in done.conflicts if c.value == x]
    assert refused == [((), ("y",) if kept == ((), ("x",)) else ("x",))]


@pytest.mark.parametrize("wide", [64, 4])
def test_the_larger_operand_wins_an_axis_that_both_want_and_the_conflict_is_kept(wide):
    b = Builder()
    x, w = b.argument(16, 8), b.argument(8, wide)
    made = b.dot(x, w)
    done = complete(b, [made], given={0: layout((16, 8), "x"), 1: layout((8, wide), None, "x")})
    expected = ((), ("x",)) if wide > 16 else (("x",), ())
    assert axes(done.shardings[made]) == expected
    (conflict,) = [c for c in done.conflicts if c.value == made]
    assert axes(conflict.kept) == expected
    assert axes(conflict.refused) == expected[::-1]
    assert conflict.sources == (x if wide > 16 else w,)


@pytest.mark.parametrize("policy", ["gspmd", "shardy"])
def test_an_annotated_argument_is_refined_on_the_way_where_another_is_open(policy):
    """XLA restores its annotation at the end; derived values keep the finer sharding."""

    def product(open_argument):
        b = Builder()
        x, other = b.argument(8, 8), b.argument(8, 8)
        b_sum = b.annotate(b.add(x, other))
        graph = b.graph(b.node("tanh", (x,), (8, 8)), b_sum)
        given = {0: layout((8, 8), "x")} | ({} if open_argument else {1: layout((8, 8))})
        asked = annotations(graph, given=given, sites={0: layout((8, 8), "x", "y")})
        done = propagate(graph, asked, CompletionOptions.of(Options(policy=policy)))
        assert axes(done.shardings[x]) == (("x",), ())
        assert done.reasons[x].kind == "annotated"
        return axes(done.results[0])

    refined = (("x",), ("y",) if policy == "gspmd" else ())
    assert product(open_argument=True) == refined
    assert product(open_argument=False) == (("x",), ())


def test_look_ahead_overrules_the_larger_operand():
    def product(wanted):
        b = Builder()
        x, w = b.argument(16, 8), b.argument(8, 64)
        made = b.dot(x, w)
        summed = b.node("reduce_sum", (made,), (16,), axes=(1,))
        given = {0: layout((16, 8), "x"), 1: layout((8, 64), None, "x")}
        done = complete(b, [summed], given=given, wanted=wanted)
        return axes(done.shardings[made])

    assert product({}) == ((), ("x",))
    assert product({0: layout((16,), "x")}) == (("x",), ())


def test_the_merges_are_told_with_both_sides():
    b = Builder()
    x, w = b.argument(8, 16), b.argument(16, 32)
    made = b.dot(x, w)
    done = complete(b, [made], given={0: layout((8, 16), "x"), 1: layout((16, 32), None, "y")})
    ((value, first, second, both),) = done.merges
    assert value == made
    assert {axes(first), axes(second)} == {(("x",), ()), ((), ("y",))}
    assert both == done.shardings[made]


def test_pointwise_takes_the_operand_of_most_tiles_first_then_merges():
    b = Builder()
    p, q = b.argument(8, 8), b.argument(8, 8)
    made = b.add(p, q)
    done = complete(b, [made], given={0: layout((8, 8), "x"), 1: layout((8, 8), None, "y")})
    assert axes(done.shardings[made]) == (("x",), ("y",))
    changes = [r for r in done.history if r.value == made]
    assert [axes(r.layout) for r in changes] == [((), ("y",)), (("x",), ("y",))]
    assert [r.level for r in changes] == [0, 1]


def test_partial_layouts_merge_for_the_whole_tensor_or_not_at_all():
    b = Builder()
    p, q = b.argument(8, 8, 8), b.argument(8, 8, 8)
    made = b.add(p, q)
    done = complete(
        b, [made], given={0: layout((8, 8, 8), "x", "y"), 1: layout((8, 8, 8), None, "x", "y")}
    )
    assert axes(done.shardings[made]) == (("x",), ("y",), ())


def test_broadcasts_act_backward_before_forward():
    b = Builder()
    row = b.argument(8)
    wide = b.broadcast(row, (4, 8), (1,))
    x = b.argument(4, 8)
    made = b.add(x, wide)
    done = complete(b, [made], given={1: layout((4, 8), "x", "y")})
    assert axes(done.shardings[row]) == (("y",),)
    assert axes(done.shardings[wide]) == (("x",), ("y",))
    assert done.reasons[row].level == 2


def test_uneven_completed_borders_are_replicated_and_annotated_ones_are_kept():
    b = Builder()
    x, w = b.argument(6, 8), b.argument(8, 8)
    made = b.dot(x, w)
    done = complete(b, [made], given={0: layout((6, 8), "y")})
    assert axes(done.shardings[x]) == (("y",), ())
    assert axes(done.shardings[made]) == ((), ())
    assert done.reasons[made].kind == "border"
    done = complete(b, [made], given={0: layout((6, 8), "y")}, wanted={0: layout((6, 8), "y")})
    assert axes(done.results[0]) == (("y",), ())
    assert axes(done.shardings[made]) == (("y",), ())


def test_constants_and_nodes_without_a_rule_stop_propagation():
    b = Builder()
    x = b.argument(8, 8)
    c = b.value((8, 8), "constant")
    b.constants.append((c, None))
    made = b.add(x, c)
    odd = b.node("no_such_primitive", (made,), (8, 8))
    done = complete(b, [odd], given={0: layout((8, 8), "x", "y")})
    assert axes(done.shardings[made]) == (("x",), ("y",))
    assert done.shardings[c].is_replicated
    assert done.shardings[odd].is_replicated
    assert done.reasons[odd].kind == "replicated"


def test_a_result_annotation_leaves_the_value_free_where_it_is_annotated_itself():
    b = Builder()
    x = b.argument(8, 8)
    done = complete(
        b, [x, x], given={0: layout((8, 8), "x")}, wanted={1: layout((8, 8), None, "y")}
    )
    assert [axes(s) for s in done.results] == [(("x",), ()), ((), ("y",))]


@pytest.mark.parametrize("axes_of_mesh", [{"x": 1, "y": 1}, {}, {"x": 1, "y": 4}])
def test_axes_of_size_one_and_one_device_are_legal(axes_of_mesh):
    mesh = Mesh(axes_of_mesh)
    b = Builder()
    made = b.dot(b.argument(8, 0), b.argument(0, 1))
    graph = b.graph(made)
    names = list(axes_of_mesh)
    given = {0: layout((8, 0), *names, mesh=mesh)}
    done = propagate(graph, annotations(graph, given=given, mesh=mesh))
    assert done.shardings[made].parts == (1, 1)


FACTORS = [
    # What XLA's GSPMD makes of these, asked with jax 0.10.2: a factorisation's batch goes forward
    # alone, a solve's also back to the right side.
    ("cholesky", {"symmetrize_input": False}, 1, {0: "x"}, (), ("x",)),
    ("cholesky", {"symmetrize_input": False}, 1, {1: "x"}, (None,), ("x",)),
    ("triangular_solve", None, 2, {0: "x"}, ("x", "x"), ("x",)),
    ("triangular_solve", None, 2, {1: "y"}, (None, "y"), ("y",)),
    ("triangular_solve", None, 2, {0: "x", 1: "y"}, ("x", "y"), ("x",)),
    ("triangular_solve", None, 2, {2: "x"}, (None, "x"), ("x",)),
    ("triangular_solve", None, 2, {0: (None, "x")}, (None, None), (None,)),
    ("triangular_solve", None, 2, {1: (None, "y")}, (None, None), (None,)),
]
SOLVE = {
    "left_side": True, "lower": True, "transpose_a": False, "conjugate_a": False,
    "unit_diagonal": False,
}  # fmt: skip


@pytest.mark.parametrize("case", FACTORS, ids=lambda case: f"{case[0]}-{case[3]}")
def test_batches_of_factors_and_solves(case):
    primitive, params, count, given, operands, results = case
    b, shape = Builder(), (8, 16, 16)
    arguments = tuple(b.argument(*shape) for _ in range(count))
    made = b.node(primitive, arguments, shape, **(params or SOLVE))
    pairs = {k: (a, None) if isinstance(a, str) else a for k, a in given.items()}
    at = {k: layout(shape, *pair, None) for k, pair in pairs.items()}
    wanted = {0: at.pop(count)} if count in at else None
    done = complete(b, [made], given=at, **({"wanted": wanted} if wanted else {}))
    found = [axes(done.shardings[v])[0] for v in (*arguments, made)]
    expected = [*(operands or ("x",)), *results]
    assert found == [(axis,) if axis else () for axis in expected]
