"""Texts with Shardy's attributes: layouts as Shardy gives them, or an error that names the line."""

import jax
import numpy as np
import pytest

import shardalg as sa
from shardalg.graph.evaluate import evaluate
from shardalg.spmd.host.simulate import simulate

T = "tensor<8x8xf32>"
SHARDY = sa.Options(policy="shardy")


def main(body, *arguments, result="", mesh='["a"=2, "b"=4]', kind=T):
    """Return a program of these lines; arguments `%x`, `%y` have their shardings."""

    def said(sharding):
        return f" {{sdy.sharding = #sdy.sharding<@m, {sharding}>}}" if sharding else ""

    given = ", ".join(
        f"%{name}: {kind}{said(sharding)}" for name, sharding in zip("xyz", arguments, strict=False)
    )
    return (
        f"sdy.mesh @m = <{mesh}>\nsdy.mesh @one = <[], device_ids=[1]>\n"
        f"func.func @main({given}) -> ({kind}{said(result)}) {{\n{body}}}"
    )


def per_value(*shardings):
    return f"{{sdy.sharding = #sdy.sharding_per_value<[{', '.join(shardings)}]>}}"


def moved(name, *words, sharding, before='[{"a"}, {}]'):
    """Negate, then apply an operator that moves its result; Shardy needs both shardings."""
    head = f"  %0 = stablehlo.negate %x {per_value(f'<@m, {before}>')} : {T}\n  %1 = sdy.{name} "
    return f"{head}{' '.join(words)} {sharding} : {T}\n  return %1 : {T}\n"


NEGATE = f"  %0 = stablehlo.negate %x ATTRIBUTES : {T}\n  return %0 : {T}\n"
AT_A, AT_B = '<@m, [{"a"}, {}]>', '<@m, [{}, {"b"}]>'
A = '[{"a"}, {}]'
PARTIAL = '<@m, [{"a"}, {}], unreduced={"b"}>'
READ = {
    "a sharding on an operator": (
        main(NEGATE.replace("ATTRIBUTES", per_value(AT_B)), A), "result", "[None, b]",
    ),
    "a reshard": (
        main(moved("reshard", "%0", sharding=AT_B), A), "result", "[None, b]",
    ),
    "an all_gather": (
        main(moved("all_gather", '[{"a"}, {}]', "%0", sharding="out_sharding=<@m, [{}, {}]>"), A),
        "result", "[None, None]",
    ),
    "an all_slice": (
        main(
            moved("all_slice", '[{}, {"b"}]', "%0",
                  sharding='out_sharding=<@m, [{"a"}, {"b"}]>'), A),
        "result", "[a, b]",
    ),
    "an all_to_all": (
        main(moved("all_to_all", '[{"a"}: 0->1]', "%0",
                   sharding='out_sharding=<@m, [{}, {"a"}]>'), A),
        "result", "[None, a]",
    ),
    "a collective_permute": (
        main(moved("collective_permute", "%0", sharding='out_sharding=<@m, [{"b", "a"}, {}]>',
                   before='[{"a", "b"}, {}]'),
             '[{"a", "b"}, {}]'),
        "result", "[(b, a), None]",
    ),
    "a constant": (
        main(f"  %0 = sdy.constant {per_value(AT_A)} dense<2.0> : {T}\n"
             f"  %1 = stablehlo.add %x, %0 : {T}\n  return %1 : {T}\n", "[{?}, {?}]"),
        "result", "[a, None]",
    ),
    "replicated axes": (main(NEGATE.replace("ATTRIBUTES", ""), A + ', replicated={"b"}'),
                        "argument", "[a, None]"),
    "an open dimension": (main(NEGATE.replace("ATTRIBUTES", ""), '[{"a"}, {?}]'),
                          "argument", "[a, None]"),
    "open axes": (main(NEGATE.replace("ATTRIBUTES", ""), '[{"a", ?}, {}]',
                       result='[{"a", "b"}, {}]'), "argument", "[(a, b), None]"),
    "open axes inside": (
        main(NEGATE.replace("ATTRIBUTES", per_value("<@m, [{\"a\", ?}, {?}]>")), "[{?}, {?}]",
             result='[{"a", "b"}, {}]'), "argument", "[(a, b), None]"),
    "sub-axes": (main(NEGATE.replace("ATTRIBUTES", ""), '[{"b":(2)2}, {"b":(1)2}]'),
                 "argument", "[b.1, b.0]"),
    "an uneven border": (
        main(NEGATE.replace("ATTRIBUTES", "").replace(T, "tensor<6x8xf32>"), '[{"b"}, {}]',
             kind="tensor<6x8xf32>"), "argument", "[b, None]"),
    "a constraint that nobody reads": (
        main(f"  %0 = stablehlo.negate %x : {T}\n"
             f'  %1 = sdy.sharding_constraint %0 {AT_B} : {T}\n  return %0 : {T}\n', ""),
        "result", "[None, b]",
    ),
    "the first of two priorities": (
        main(f"  %0 = stablehlo.add %x, %y : {T}\n  return %0 : {T}\n",
             '[{"a"}p1, {?}p1]', '[{?}, {"a"}]'), "result", "[None, a]"),
    "the second of two priorities": (
        main(f"  %0 = stablehlo.add %x, %y : {T}\n  return %0 : {T}\n",
             '[{"a"}, {?}]', '[{?}p1, {"a"}p1]'), "result", "[a, None]"),
    "a computation on no manual axes": (
        main(f"  %0 = sdy.manual_computation(%x) in_shardings=[{AT_A}] out_shardings=[{AT_A}] "
             f"manual_axes={{}} (%z: {T}) {{\n    %1 = stablehlo.negate %z : {T}\n"
             f"    sdy.return %1 : {T}\n  }} : ({T}) -> {T}\n  return %0 : {T}\n", ""),
        "result", "[a, None]",
    ),
    "a sum that an all_reduce makes": (
        main(f"  %0 = stablehlo.dot %x, %y {per_value(AT_A)} : ({T}, {T}) -> {T}\n"
             f'  %1 = sdy.all_reduce {{"b"}} %0 out_sharding=<@m, [{{"a"}}, {{}}]> : {T}\n'
             f"  return %1 : {T}\n", '[{"a"}, {"b"}]', '[{"b"}, {}]'), "result", "[a, None]"),
    "a sum that an operator leaves unreduced": (
        main(f"  %0 = stablehlo.dot %x, %y {per_value(PARTIAL)} : ({T}, {T}) -> {T}\n"
             f"  %1 = stablehlo.add %0, %0 {per_value(PARTIAL)} : {T}\n"
             f'  %2 = sdy.all_reduce {{"b"}} %1 out_sharding=<@m, [{{"a"}}, {{}}]> : {T}\n'
             f"  return %2 : {T}\n", '[{"a"}, {"b"}]', '[{"b"}, {}]'), "result", "[a, None]"),
    "a constraint that leaves a sum unreduced": (
        main(f"  %0 = stablehlo.dot %x, %y : ({T}, {T}) -> {T}\n"
             f"  %1 = sdy.sharding_constraint %0 {PARTIAL} : {T}\n  return %1 : {T}\n",
             '[{"a"}, {"b"}]', '[{"b"}, {}]'), "result", "[a, None]"),
    "a mesh that the sharding states": (
        main(NEGATE.replace("ATTRIBUTES", ""), A).replace("<@m, ", '<mesh<["a"=2, "b"=4]>, '),
        "argument", "[a, None]"),
    "shardings of a function that is called": (
        main(f"  %0 = call @g(%x) : ({T}) -> {T}\n  return %0 : {T}\n", A)
        + f"\nfunc.func private @g(%x: {T} {{sdy.sharding = #sdy.sharding{AT_B}}}) -> {T} {{\n"
        + f"  %0 = stablehlo.negate %x : {T}\n  return %0 : {T}\n}}",
        "result", "[None, b]"),
    "a sum that a reduce_scatter makes": (
        main(f"  %0 = stablehlo.dot %x, %y {per_value(AT_A)} : ({T}, {T}) -> {T}\n"
             f'  %1 = sdy.reduce_scatter [{{}}, {{"b"}}] %0 '
             f'out_sharding=<@m, [{{"a"}}, {{"b"}}]> : {T}\n'
             f"  return %1 : {T}\n", '[{"a"}, {"b"}]', '[{"b"}, {}]'), "result", "[a, b]"),
}  # fmt: skip


@pytest.mark.sampled(14)
@pytest.mark.parametrize("name", READ)
def test_layouts_are_those_of_shardy(name):
    text, place, want = READ[name]
    plan = sa.plan(sa.read_stablehlo(text), options=SHARDY)
    assert getattr(plan.program, f"{place}_shardings")[0].text() == want
    assert plan.verify().ok
    rng = np.random.default_rng(0)
    shapes = [plan.graph.values[v].type.shape for v in plan.graph.arguments]
    given = [rng.integers(0, 9, shape).astype("float32") for shape in shapes]
    for found, right in zip(
        simulate(plan.program, plan.graph, *given), evaluate(plan.graph, *given), strict=True
    ):
        np.testing.assert_array_equal(found, right)


def test_the_order_of_the_devices_is_the_texts():
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    mesh = f'["a"=2, "b"=4], device_ids={order}'
    text = main(NEGATE.replace("ATTRIBUTES", ""), A, result=A, mesh=mesh)
    plan = sa.plan(sa.read_stablehlo(text), options=SHARDY)
    assert plan.mesh == sa.Mesh({"a": 2, "b": 4}, order)
    assert plan.collectives().empty
    inside = main(NEGATE.replace("ATTRIBUTES", per_value(AT_A)), A, result=A, mesh=mesh)
    assert sa.plan(sa.read_stablehlo(inside), options=SHARDY).collectives().empty


def test_blocks_that_are_unreduced_along_manual_axes_are_summed():
    """Each of the four devices along b adds its block to the result."""
    text = main(
        f"  %0 = sdy.manual_computation(%x) in_shardings=[{AT_A}] out_shardings=[{PARTIAL}] "
        f'manual_axes={{"a", "b"}} (%z: tensor<4x8xf32>) {{\n'
        "    %1 = stablehlo.negate %z : tensor<4x8xf32>\n    sdy.return %1 : tensor<4x8xf32>\n"
        f"  }} : ({T}) -> {T}\n  return %0 : {T}\n", A,
    )  # fmt: skip
    plan = sa.plan(sa.read_stablehlo(text), options=SHARDY)
    given = np.arange(64, dtype="float32").reshape(8, 8)
    np.testing.assert_array_equal(simulate(plan.program, plan.graph, given)[0], -4 * given)
    assert plan.verify().ok


def test_an_unreduced_sum_is_scattered_in_one_step():
    text = main(
        f"  %0 = stablehlo.dot %x, %y {per_value(PARTIAL)} : ({T}, {T}) -> {T}\n"
        '  %1 = sdy.reduce_scatter [{}, {"b"}] %0 '
        f'out_sharding=<@m, [{{"a"}}, {{"b"}}]> : {T}\n  return %1 : {T}\n',
        '[{"a"}, {"b"}]', '[{"b"}, {}]',
    )  # fmt: skip
    found = sa.plan(sa.read_stablehlo(text), options=SHARDY).collectives()
    assert found[["kind", "mesh_axes"]].values.tolist() == [["reduce_scatter", "b"]]


def selected(direction, operands):
    """Return a text that scatters a source to the elements which a comparison selects."""
    kind = "(tensor<f32>, tensor<f32>) -> tensor<i1>"
    lines = (
        "  %c = stablehlo.constant dense<0.0> : tensor<f32>",
        "  %s = stablehlo.constant dense<2.0> : tensor<4x4xf32>",
        '  %0 = "stablehlo.select_and_scatter"(%x, %s, %c) <{window_dimensions = array<i64: 2, 2>,',
        "    window_strides = array<i64: 2, 2>}> ({",
        "  ^bb0(%a: tensor<f32>, %b: tensor<f32>):",
        f"    %1 = stablehlo.compare {direction}, {operands} : {kind}",
        "    stablehlo.return %1 : tensor<i1>",
        "  }, {",
        "  ^bb0(%a: tensor<f32>, %b: tensor<f32>):",
        "    %1 = stablehlo.add %a, %b : tensor<f32>",
        "    stablehlo.return %1 : tensor<f32>",
        f"  }}) : ({T}, tensor<4x4xf32>, tensor<f32>) -> {T}",
        f"  return %0 : {T}",
    )
    return main("\n".join(lines) + "\n", A)


@pytest.mark.parametrize("direction", ["GE", "LE"])
def test_a_selection_by_the_largest_or_the_smallest_is_read(direction):
    plan = sa.plan(sa.read_stablehlo(selected(direction, "%a, %b")), options=SHARDY)
    given = np.random.default_rng(0).permutation(64).astype("float32").reshape(8, 8)
    blocks = given.reshape(4, 2, 4, 2)
    best = blocks.max((1, 3)) if direction == "GE" else blocks.min((1, 3))
    want = np.where(blocks == best[:, None, :, None], 2.0, 0.0).reshape(8, 8)
    np.testing.assert_array_equal(simulate(plan.program, plan.graph, given)[0], want)


ONE = "<@one, []>"
REFUSED = {
    "an operator on one device": (
        main(NEGATE.replace("ATTRIBUTES", per_value(ONE)), A),
        r"text.mlir:4: stablehlo.negate: .*device 1 alone"),
    "a barrier": (
        main(moved("propagation_barrier", "%0 allowed_direction=NONE", sharding=""), A),
        r"text.mlir:5: sdy.propagation_barrier"),
    "a group": (
        main(f"  sdy.sharding_group %x group_id=0 : {T}\n  return %x : {T}\n", A),
        r"text.mlir:4: sdy.sharding_group"),
    "the number of a partition": (
        main(f"  %0 = stablehlo.partition_id : tensor<ui32>\n  return %x : {T}\n", A),
        r"text.mlir:4: stablehlo.partition_id"),
    "a sum of what is no partial sum": (
        main(f'  %0 = sdy.all_reduce {{"a"}} %x out_sharding=<@m, [{{}}, {{}}]> : {T}\n'
             f"  return %0 : {T}\n", "[{}, {}]"),
        r"text.mlir:4: sdy.all_reduce of a value that is no partial sum"),
    "an argument of partial sums": (
        main(NEGATE.replace("ATTRIBUTES", ""), A + ', unreduced={"b"}'),
        r'text.mlir:3: argument 0 of shape \(8, 8\): .*unreduced={"b"}> has partial sums .*'
        "Leave out unreduced="),
    "a result of partial sums": (
        main(NEGATE.replace("ATTRIBUTES", ""), A, result=A + ', unreduced={"b"}'),
        r"text.mlir:5: result 0 of shape \(8, 8\): .* has partial sums .*Leave out unreduced="),
    "a computation on summands": (
        main(f"  %0 = sdy.manual_computation(%x) in_shardings=[{PARTIAL}] out_shardings=[{AT_A}] "
             f'manual_axes={{"a", "b"}} (%z: tensor<4x8xf32>) {{\n'
             "    sdy.return %z : tensor<4x8xf32>\n"
             f"  }} : ({T}) -> {T}\n  return %0 : {T}\n", A),
        "text.mlir:4: sdy.manual_computation with an operand unreduced along b"),
    **{
        f"a selection by {direction} of {operands}": (
            selected(direction, operands),
            "text.mlir:6: stablehlo.select_and_scatter of computations other than ge or le")
        for direction, operands in (
            ("GT", "%a, %b"), ("LT", "%a, %b"), ("EQ", "%a, %b"), ("NE", "%a, %b"),
            ("GE", "%b, %a"), ("LE", "%b, %a"),
        )
    },
    "a priority inside": (
        main(NEGATE.replace("ATTRIBUTES", per_value('<@m, [{"a"}p1, {}]>')), "[{?}, {?}]"),
        r"text.mlir:4: stablehlo.negate: .*priorities"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_with_its_line(name):
    text, message = REFUSED[name]
    with pytest.raises(sa.ShardalgError, match=message):
        sa.plan(sa.read_stablehlo(text))


def test_complex_numbers_of_two_doubles_are_not_made_smaller():
    kind = "tensor<4xcomplex<f64>>"
    text = f"func.func @main(%x: {kind}) -> {kind} {{\n  return %x : {kind}\n}}"
    with pytest.raises(sa.TraceError, match="jax_enable_x64"):
        sa.read_stablehlo(text)
    with jax.enable_x64(True):
        assert sa.read_stablehlo(text).jaxpr.in_avals[0].dtype == "complex128"
