"""Contracts: statements about plans, at numbers and for all sizes, against plans made there."""

import random
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.plan.contracts.bound_formulas import formula_of
from shardalg.plan.contracts.statements import NoCollective, SomeCollective

SIZES = {"B": 1024, "M": 128, "F": 512}
SPECS = {"up": P("X", "Y"), "bias": P("Y"), "down": P("Y", "X")}
WHERE = ["X divides B", "X divides M", "Y divides M", "Y divides F", "X >= 2", "Y >= 2"]


def step(weights, momentum, x):
    """Return the loss, new weights and momentum of a step with two feed-forward layers."""

    def loss(weights):
        y = x
        for number, weight in enumerate(weights):
            with jax.named_scope(f"layers_{number}"):
                y = y + jax.nn.relu(y @ weight["up"] + weight["bias"]) @ weight["down"]
        return jnp.mean(y**2)

    value, slopes = jax.value_and_grad(loss)(weights)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, slopes)
    return value, jax.tree.map(lambda w, m: w - 0.1 * m, weights, momentum), momentum


def planned(sizes, *, symbolic=False, axes=(2, 4)):
    b, m, f = sizes

    def f32(*shape):
        return jax.ShapeDtypeStruct(shape, "float32")

    weights = [{"up": f32(m, f), "bias": f32(f), "down": f32(f, m)}] * 2
    specs = [SPECS] * 2
    mesh = sa.Mesh({"X": axes[0], "Y": axes[1]}, symbolic=symbolic)
    return sa.plan(
        step, weights, weights, f32(b, m), mesh=mesh,
        in_shardings=(specs, specs, P("X", "Y")), out_shardings=(P(), specs, specs),
        roles=("parameters", "optimizer_state", "data"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def plan():
    return planned(SIZES.values())


@pytest.fixture(scope="module")
def named():
    return planned(sa.dims("B M F", hint=tuple(SIZES.values())), symbolic=True)


def sent(plan, **where):
    """Return (executions, bytes per step) of the collectives with some properties."""
    table = plan.collectives()
    table = table[table["kind"] != "border"]
    for column, word in where.items():
        if not len(table):
            return 0, 0.0
        if column == "axis":
            table = table[table["mesh_axes"].str.split(",").map(set).map({word}.issubset)]
        elif column == "module":
            table = table[table["module"].str.split("/").map(set).map({word}.issubset)]
        else:
            table = table[table[column] == word]
    return int(table["executions"].sum()), float(table["wire_bytes_per_step"].sum())


SUBJECTS = (
    {"kind": "all_gather"},
    {"kind": "all_gather", "axis": "Y", "role": "weight"},
    {"axis": "Y", "role": "gradient", "phase": "update"},
    {"kind": "reduce_scatter", "role": "gradient"},
    {"phase": "backward", "module": "layers_1"},
    {"kind": "all_to_all", "phase": "update"},
    {"region": "root"},
)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_at_numbers_statements_say_what_the_table_says(plan, subject):
    count, total = sent(plan, **subject)
    bounds = {"executions": count, "sent_bytes": total}
    where = {key: word for key, word in subject.items() if key != "kind"}
    kind = subject.get("kind")
    report = sa.contract(
        sa.no(**subject),
        sa.some(**subject),
        *(sa.at_most(kind, **{name: amount}, **where) for name, amount in bounds.items()),
        *(sa.at_most(kind, **{name: amount - 1}, **where) for name, amount in bounds.items()),
    ).check(plan)
    verdicts = [one.ok for one in report.verdicts]
    # Without collectives, an amount of -1 is still too small.
    assert verdicts == [count == 0, count > 0, True, True, False, False]
    broken = report.verdicts[0 if count else 1]
    assert broken.verdict == "refuted"
    assert ("test_contracts.py" in str(broken)) == (count > 0)


def test_a_failure_names_place_annotations_and_repair(plan):
    with pytest.raises(sa.ContractError) as error:
        plan.require(sa.no("all_gather", axis="Y", phase="forward"))
    text = str(error.value)
    for part in ("refuted", "layers_0", "test_contracts.py:", "annotations: argument", "repair: "):
        assert part in text
    assert "repair: argument x as [X, None] instead of [X, Y]" in text
    # Planned so, the collective that fails is gone.
    repaired = plan.replan(sa.Strategy(plan.mesh, in_shardings=([SPECS] * 2, [SPECS] * 2, P("X"))))
    first = plan.collectives().iloc[0]
    where = {key: first[key] for key in ("kind", "op", "phase", "module")}
    assert sent(repaired, axis="Y", **where)[0] < sent(plan, axis="Y", **where)[0]


def test_peak_classes_seconds_and_idle_devices(plan):
    memory = plan.memory
    seconds = plan.cost("h100", overlap="none", software="datasheet").step_time_s
    true = [
        sa.at_most(peak_bytes=memory.peak_bytes),
        sa.at_most(held_bytes=memory.by_class["parameters"], memory_class="parameters"),
        sa.at_most(step_time_s=seconds, hardware="h100"),
        sa.at_most(step_time_s=seconds / 1.05, hardware="h100", tolerance=0.1),
        sa.no_idle_devices(),
        sa.sharded("parameters", "X", above_bytes=4 * SIZES["F"]),
    ]
    assert all(one.verdict == "holds" for one in sa.contract(*true).check(plan).verdicts)
    false = [
        sa.at_most(peak_bytes=memory.peak_bytes - 1),
        sa.at_most(held_bytes=memory.by_class["parameters"] - 1, memory_class="parameters"),
        sa.at_most(step_time_s=seconds * 0.99, hardware="h100"),
        sa.sharded("parameters", "X"),
    ]
    assert all(one.verdict == "refuted" for one in sa.contract(*false).check(plan).verdicts)
    x = jax.ShapeDtypeStruct((8, 8), "float32")
    idle = sa.plan(
        lambda x, w: x @ w, x, x, mesh=sa.Mesh({"X": 2, "Y": 2}), in_shardings=(P("X"), P())
    )
    assert not sa.contract(sa.no_idle_devices()).check(idle).ok


def test_a_phase_that_the_function_does_not_have():
    x = jax.ShapeDtypeStruct((8, 8), "float32")
    plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
    with pytest.raises(sa.ContractError, match=r"no backward phase.*Known are forward"):
        plan.require(sa.no("all_gather", phase="backward"))


TRUE = (
    sa.no("all_gather", axis="Y", role="weight"),
    sa.no(axis="Y", role="gradient", phase="update"),
    sa.some("reduce_scatter", axis="X", role="gradient"),
    sa.at_most(axis="X", role="weight", phase="forward", sent_bytes="2*4*2*M*F*(X-1)//(X*Y)"),
    sa.at_most("all_reduce", role="gradient", sent_bytes="2*8*F*(X-1)/(X*Y)"),
    sa.at_most("all_gather", role="weight", executions=8),
    sa.at_most("all_gather", role="weight", largest_bytes="4*F*M/Y"),
    sa.sharded("optimizer_state", "X", above_bytes="4*F"),
    sa.no_idle_devices(),
)
FALSE = (
    sa.no("all_gather", axis="Y", phase="forward"),
    sa.some("all_gather", axis="Y", role="weight"),
    sa.at_most(axis="X", role="weight", phase="forward", sent_bytes="4*M*F*(X-1)//(X*Y)"),
    sa.at_most("all_gather", role="weight", executions=3),
    sa.at_most(peak_bytes=10**6),
    sa.at_most(peak_bytes="4*B*M + 8*M*F"),
    sa.sharded("optimizer_state", "X"),
)


@pytest.fixture(scope="module")
def verdicts(named):
    """Return the verdict about each statement, for all sizes."""
    report = sa.contract(*TRUE, *FALSE, where=WHERE).check(named)
    return dict(zip((*TRUE, *FALSE), report.verdicts, strict=True))


@pytest.mark.parametrize("statement", TRUE, ids=str)
def test_true_statements_are_proved_for_all_sizes(verdicts, statement):
    verdict = verdicts[statement]
    assert verdict.verdict == "proved", verdict
    assert "X divides B" in verdict.where


@pytest.mark.parametrize("statement", FALSE, ids=str)
def test_false_statements_have_a_point_at_which_a_plan_breaks_them(verdicts, statement):
    verdict = verdicts[statement]
    assert verdict.verdict == "refuted", verdict
    point = dict(pair.split("=") for pair in verdict.where.removeprefix("At ").split(", "))
    sizes = {name: int(size) for name, size in point.items()}
    # A plan made at the point, without named sizes, breaks the statement, too.
    there = planned([sizes[name] for name in SIZES], axes=(sizes["X"], sizes["Y"]))
    bound = getattr(statement, "bound", 0)
    numbers = formula_of(bound, sizes).subs(sizes).number
    if hasattr(statement, "bound"):
        statement = type(statement)(statement.measure, float(numbers), statement.subject)
    assert not sa.contract(statement).check(there).ok


def test_proofs_hold_at_points_of_their_region(named):
    drawn, tried = random.Random(20261128), 0
    for _ in range(400):
        sizes = {
            "B": 1024 * drawn.randint(1, 6), "M": 128 * drawn.randint(1, 3),
            "F": 512 * drawn.randint(1, 4), "X": drawn.choice((2, 4)), "Y": drawn.choice((4, 8)),
        }  # fmt: skip
        if not named._guards.hold(sizes):
            continue
        there = planned([sizes[name] for name in SIZES], axes=(sizes["X"], sizes["Y"]))
        for statement in TRUE:
            if isinstance(statement, NoCollective | SomeCollective):
                assert sa.contract(statement).check(there).ok, (sizes, statement)
        _, total = sent(there, axis="X", role="weight", phase="forward")
        m, f, x, y = (sizes[name] for name in "MFXY")
        assert total <= 2 * 4 * 2 * m * f * (x - 1) // (x * y)
        tried += 1
        if tried == 6:
            break
    assert tried == 6


def test_a_region_of_one_point_is_no_proof(named):
    narrow = sa.contract(
        TRUE[0], where=[f"{n} == {size}" for n, size in {**SIZES, "X": 2, "Y": 4}.items()]
    )
    verdict = narrow.check(named).verdicts[0]
    assert verdict.verdict == "not decided"
    assert "too few sizes" in verdict.where
    # Without free names, the statement is about the hints alone.
    at_hints = sa.contract(TRUE[0], for_all=()).check(named).verdicts[0]
    assert at_hints.verdict == "holds"


def test_what_roles_do_not_tell_is_not_decided():
    x = jax.ShapeDtypeStruct((8, 8), "float32")
    plan = sa.plan(
        lambda w, x: (x @ w).sum(0), x, x, mesh=sa.Mesh({"X": 2}),
        in_shardings=(P("X"), P("X")), roles=("parameters", None),
    )  # fmt: skip
    verdict = sa.contract(sa.no("all_reduce", role="gradient")).check(plan).verdicts[0]
    assert verdict.verdict == "not decided"
    assert "role not known" in verdict.where


def test_lines_of_the_source_may_move(tmp_path):
    source = "import jax\ndef f(x):\n    return (x @ x.T).sum(0)\n"
    plans = []
    for number, text in enumerate((source, "# a comment\n\n" + source)):
        path = tmp_path / f"module_{number}.py"
        path.write_text(text)
        module = {}
        exec(compile(text, str(tmp_path / "module.py"), "exec"), module)
        x = jax.ShapeDtypeStruct((8, 6), "float32")
        mesh = sa.Mesh({"X": 2})
        plans.append(sa.plan(module["f"], x, mesh=mesh, in_shardings=(P("X"),)))
    assert plans[0].diff(plans[1]).is_empty
    assert plans[0].collectives()["source"][0] != plans[1].collectives()["source"][0]
    saved = tmp_path / "plan.json"
    plans[0].save(saved)
    assert sa.contract(sa.unchanged(saved)).check(plans[1]).ok
    other = plans[1].replan(sa.Strategy(plans[1].mesh, in_shardings=(P(None, "X"),)))
    report = sa.contract(sa.unchanged(saved)).check(other)
    assert not report.ok
    assert "plan.json" in str(report)


WRONG = (
    (partial(sa.no, "all_gathr"), "Did you mean all_gather"),
    (partial(sa.no, axis="Z"), "Known are X, Y"),
    (partial(sa.no, role="weights"), "weight"),
    (partial(sa.no, phase="back"), "backward"),
    (partial(sa.no, module="layer_9"), "layers_"),
    (partial(sa.no, region="skan"), "region"),
    (partial(sa.no, axis=3), "give a word"),
    (partial(sa.at_most, sent_bytes="4*Q"), "Q"),
    (partial(sa.at_most, sent_bytes="4*"), "no formula"),
    (partial(sa.at_most, sent_bytes="__import__('os').getcwd()"), "no formula"),
    (partial(sa.at_most, sent_bytes=True), "bound"),
    (partial(sa.at_most, sent_bytes=float("nan")), "finite"),
    (partial(sa.at_most, sent_bytes=1, peak_bytes=1), "2 bounds"),
    (partial(sa.at_most), "0 bounds"),
    (partial(sa.at_most, peak_bytes=1, axis="X"), "no amount of collectives"),
    (partial(sa.at_most, held_bytes=1), "memory_class"),
    (partial(sa.at_most, held_bytes=1, memory_class="weights"), "memory_class"),
    (partial(sa.at_most, step_time_s=1, tolerance=2), "tolerance"),
    (partial(sa.sharded, "parameter", "X"), "parameters"),
    (partial(sa.sharded, "parameters", "x"), "axis"),
    (partial(sa.unchanged, "no/such/file.json"), "does not exist"),
    (partial(sa.unchanged, 3), "file"),
)


@pytest.mark.parametrize(
    ("make", "words"), WRONG, ids=[str(number) for number in range(len(WRONG))]
)
def test_wrong_statements_are_errors(plan, make, words):
    with pytest.raises(sa.ContractError, match=words):
        sa.contract(make()).check(plan)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"where": ["Q divides B"]}, "Q"),
        ({"where": ["B"]}, "no condition"),
        ({"where": ["X == 3"]}, "false at the hints"),
        ({"where": "X divides B"}, "list of texts"),
        ({"for_all": ["Q"]}, "Known are|Did you mean"),
    ],
)
def test_wrong_conditions_are_errors(named, given, words):
    with pytest.raises(sa.ContractError, match=words):
        sa.contract(TRUE[0], **given).check(named)


def test_statements_about_roles_need_roles():
    x = jax.ShapeDtypeStruct((8, 8), "float32")
    plan = sa.plan(lambda x: x.sum(0), x, mesh=sa.Mesh({"X": 2}), in_shardings=(P("X"),))
    for statement in (sa.no(role="weight"), sa.sharded("parameters", "X")):
        with pytest.raises(sa.ContractError, match="has no roles"):
            sa.contract(statement).check(plan)


def test_wrong_calls_are_errors(plan):
    contract = sa.contract(sa.no("all_gather"))
    for call, words in (
        (lambda: contract.check(None), "Pass a Plan"),
        (lambda: plan.require(), "at least one statement"),
        (lambda: plan.require("no all_gather"), "is no statement"),
        (lambda: plan.require(sa.no("all_gather"), where=["B > 2"]), "no named sizes"),
        (lambda: sa.load_contract(3), "path"),
        (lambda: sa.at_most(sent_bytes=[1]), "a bound is a number"),
        (lambda: sa.contract(sa.no("all_gather"), folder=3), "folder"),
        (lambda: contract.hlo("", {"X": 1}, sizes={"M": "a"}), "whole number"),
    ):
        with pytest.raises(sa.ContractError, match=words):
            call()
