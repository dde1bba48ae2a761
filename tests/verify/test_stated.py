"""Declarations of a program: types, shapes, modes and shardings at its border."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.spmd import instructions as p
from shardalg.spmd.check import check
from shardalg.verify.verify import verify
from tests.partition.planned import MESH, instructions, numbers, planned
from tests.verify import test_indexed_mutations, test_moving_mutations, test_mutations
from tests.verify.edited import tampered
from tests.verify.mutating import Case, changed, refuted

X, Y = MESH.digits("X"), MESH.digits("Y")
GATHER = Case(
    lambda table, ids: table.at[ids].get(mode="clip"),
    (np.arange(22, dtype=np.float32).reshape(11, 2), np.array([[3, 9], [10, 0]], np.int32)),
    (P("Y"), P()),
    P(),
)
PADDED = Case(
    lambda x: lax.pad(x, np.float32(1), ((1, 2, 0), (0, 0, 0))),
    (np.ones((8, 4), np.float32),),
    (P(None, "Y"),),
    P(None, "Y"),
)
CASES = {
    "moved": test_mutations.CASES["moved"],
    "lookup": test_mutations.CASES["lookup"],
    "element": test_indexed_mutations.CASES["element"],
    "selected": test_moving_mutations.CASES["selected"],
    "convolved": test_moving_mutations.CASES["convolved"],
    "gather": GATHER,
    "padded": PADDED,
}
# The program, the primitive, the parameter and what it becomes; (): the parameter is left out.
PARAMETERS = {
    "sizes of a reshape": ("moved", "reshape", "new_sizes", (2, 8, 1)),
    "sizes of a reshape left out": ("moved", "reshape", "new_sizes", ()),
    "the shape of an iota": ("moved", "iota", "shape", (6,)),
    "the rank of an iota": ("moved", "iota", "shape", (5, 1)),
    "the end of a slice": ("element", "slice", "limit_indices", (1, 5)),
    "trailing padding": ("padded", "pad", "padding_config", ((1, 3, 0), (0, 0, 0))),
    "trailing padding of a window": ("convolved", "conv_general_dilated", "padding", ((0, 1),)),
    "trailing padding of a selection": (
        "selected", "select_and_scatter_add", "padding", ((0, 0), (0, 0), (0, -1)),
    ),
    "another mode": ("gather", "gather", "mode", "FILL_OR_DROP"),
    "indices that promise to be inside": ("gather", "gather", "mode", "PROMISE_IN_BOUNDS"),
    "indices that promise to be unique": ("gather", "gather", "unique_indices", True),
    "indices that promise to be sorted": ("gather", "gather", "indices_are_sorted", True),
    "another precision": ("lookup", "dot_general", "precision", ("HIGHEST", "HIGHEST")),
    "another item type": ("lookup", "dot_general", "preferred_element_type", "bfloat16"),
    "a parameter of another primitive": ("lookup", "dot_general", "mode", "CLIP"),
}  # fmt: skip


def _scaled(x, *, sizes):
    """Another package's primitive, which nothing traces: no row says what its parameters do."""
    return np.asarray(x) * np.float32(sizes[0])


SCALED = Primitive("scaled_by_sizes")
SCALED.def_impl(_scaled)
SCALED.def_abstract_eval(lambda x, *, sizes: x)


def test_nothing_is_restated_of_a_primitive_without_a_row():
    x = numbers(8, 4)
    plan = planned(lambda x: SCALED.bind(x + 1, sizes=(2,)), (x,), (P("X"),))

    def stated(*sizes):
        def restated(apply):
            scales = apply.primitive == SCALED.name
            return replace(apply, params=(("sizes", sizes),)) if scales else apply

        return tampered(plan, p.Apply, restated)

    refuted(plan, stated(3), x)
    assert verify(plan.sharded, stated(2)).ok


@pytest.mark.sampled(14)
@pytest.mark.parametrize("name", PARAMETERS)
def test_what_an_operator_runs_with_is_derived(name):
    program, primitive, param, value = PARAMETERS[name]
    case = CASES[program]
    step = next(
        s
        for s in instructions(case.plan.program.block)
        if isinstance(s.attributes, p.Apply) and s.attributes.primitive == primitive
    )
    params = dict(step.attributes.params) | {param: value}
    kept = tuple((n, v) for n, v in params.items() if v != ())
    wrong = changed(
        case.plan.program, step, replace(step, attributes=replace(step.attributes, params=kept))
    )
    assert check(wrong) is wrong
    assert case.verified(case.plan.program).ok
    assert case.verified(wrong).refuted


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float64"])
def test_an_argument_has_the_item_type_of_its_value(dtype):
    case = test_mutations.CASES["whole"]
    program = case.plan.program
    locals_ = tuple(replace(local, dtype=dtype) for local in program.locals)
    wrong = replace(program, locals=locals_)
    assert check(wrong) is wrong
    report = case.verified(wrong)
    assert {"border", "types"} <= {claim.claim for claim in report.refuted}


def transposed(sharding):
    return replace(sharding, dims=sharding.dims[::-1])


def test_arguments_and_results_lie_as_they_are_annotated():
    """The whole program on other layouts: right by itself, and not what was asked for."""
    fn, arguments = (lambda x: x + 1), (np.ones((8, 8), np.float32),)
    asked, other = (Case(fn, arguments, (spec,), spec) for spec in (P("X", "Y"), P("Y", "X")))
    assert other.verified(other.plan.program).ok
    report = asked.verified(other.plan.program)
    words = "its sharding is the annotated one: [X, Y]"
    assert [claim.words for claim in report.refuted] == [words] * 2


def test_the_mesh_is_the_one_asked_for():
    case = test_mutations.CASES["whole"]
    swapped = sa.Mesh({"X": 2, "Y": 4}, device_ids=(1, 0, 2, 3, 4, 5, 6, 7))
    report = case.verified(replace(case.plan.program, mesh=swapped))
    (claim,) = report.refuted
    assert "program.mesh" in claim.words


def test_a_collective_of_the_user_is_no_operator_of_each_device():
    """The operator names an axis, which only its own instruction may use."""
    fn = jax.shard_map(
        lambda x: lax.psum(x, "X"), mesh=MESH.to_jax(), in_specs=P("X"), out_specs=P()
    )
    case = Case(fn, (np.ones(8, np.float32),), (P("X"),), P())
    (summed,) = (s for s in instructions(case.plan.program.block)
                 if isinstance(s.attributes, p.AllReduce))  # fmt: skip
    primitive = case.plan.graph.nodes[summed.node].primitive
    alone = changed(case.plan.program, summed, replace(summed, attributes=p.Apply(primitive)))
    (result,) = summed.results
    locals_ = tuple(replace(local, origin=None) if local.index == result else local
                    for local in alone.locals)  # fmt: skip
    assert case.verified(case.plan.program).ok
    assert case.verified(replace(alone, locals=locals_)).refuted


@pytest.mark.parametrize("sizes", [(3, 8), (24,), (2, 3, 4)])
def test_what_is_named_for_a_value_has_its_dimensions(sizes):
    """The same elements under other dimensions are another result, whatever the border says."""
    case = Case(lambda x: x.reshape(6, 4), (np.ones((4, 6), np.float32),), (P(),), None)
    case.check()
    program = case.plan.program
    (step,), (made,) = program.block.instructions, program.block.results
    assert step.attributes.primitive == "reshape"
    tampered = changed(program, step, replace(step, attributes=p.Regroup(((2, sizes),))))
    layout = replace(program.result_shardings[0], shape=sizes, dims=((),) * len(sizes))
    locals_ = list(program.locals)
    locals_[made] = replace(locals_[made], shape=sizes, sharding=layout)
    tampered = replace(tampered, locals=tuple(locals_), result_shardings=(layout,))
    check(tampered)
    assert {claim.claim for claim in case.verified(tampered).refuted} == {"types"}


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.complex64])
def test_what_is_filled_in_is_a_number_of_the_type(dtype):
    """1 + 0j equals 1, so claims that were stated before hold: an array of floats takes none."""
    case = Case(
        lambda table, ids: jax.numpy.asarray(table).at[ids].get(mode="fill", fill_value=1),
        (np.arange(22).reshape(11, 2).astype(dtype), np.array([[3, 9], [10, 40]], np.int32)),
        (P("Y"), P()),
        P(),
    )
    case.check()
    tampered = case.mutated(p.MaskIndexed, lambda a: replace(a, fill=1 + 0j))
    check(tampered)
    real = dtype is not np.complex64
    assert [claim.claim for claim in case.verified(tampered).refuted] == ["types"] * real


def test_windows_of_code_that_a_file_lacks_are_counted(tmp_path):
    """JAX cannot be asked for their number, and the row takes what the result has for it."""
    x = np.ones((6, 8), np.float32)

    def pooled(x):
        either = lambda a, b: jnp.maximum(a, b)  # noqa: E731
        return lax.reduce_window(x, -np.inf, either, (2, 1), (1, 1), "VALID")

    sa.plan(pooled, x, mesh=MESH, in_shardings=P(None, "X")).save(tmp_path / "plan.json")
    plan = sa.load_plan(tmp_path / "plan.json")
    (step,) = instructions(plan.program.block)
    padded = replace(step.attributes, params=(("padding", ((0, 3), (0, 0))),))
    block = replace(plan.program.block, instructions=(replace(step, attributes=padded),))
    assert plan.verify().ok
    assert verify(plan.sharded, replace(plan.program, block=block)).refuted
