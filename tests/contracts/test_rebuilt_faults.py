"""Contracts catch the faults of public reports that the logical-axis rules are tested with."""

import jax
import pytest

import shardalg as sa
from tests.logical_rules.test_lint_function import EXPECTED, loaded


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:jax.nn.one_hot input:DeprecationWarning")
@pytest.mark.parametrize("name", EXPECTED)
def test_a_fault_breaks_its_contract_and_the_repair_keeps_it(name):
    case, arrays, step = loaded(name)
    asked = EXPECTED[name]["contract"]
    where, bound = dict(asked["where"]), asked["bound"]
    kind = where.pop("kind", None)
    measure = {"largest_at_most": "largest_bytes", "sent_at_most": "sent_bytes"}[asked["kind"]]
    contract = sa.contract(sa.at_most(kind, **{measure: bound}, **where))
    named = {key: names for key, (_, names) in case.PARAMS.items()}
    marked = arrays.keys() - {"params", "x"}
    args = {k: jax.ShapeDtypeStruct(s, "float32") for k, (s, _) in case.PARAMS.items()}
    x = jax.ShapeDtypeStruct(case.DATA[0], "float32")
    for which in ("bad", "good"):
        sites = {key: arrays[key][2] for key in marked}
        rules = sa.logical_rules(case.RULES[which], case.MESH)
        strategy = rules.strategy((named, case.DATA[1]), sites=sites)
        plan = sa.plan(step, args, x, strategy=strategy, roles=("parameters", "data"))
        (verdict,) = contract.check(plan).verdicts
        assert verdict.ok is asked[which]
        if which == "bad":
            place = str(verdict)
            assert ".py:" in place
            assert "annotation" in place
