"""Certificates of searches: what they prove, and what the check refuses."""

import copy
import itertools
import json
import random
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardalg as sa
from shardalg.cli import main
from shardalg.errors import CertificateError
from shardalg.plan.search import check_certificate
from shardalg.plan.search.bound_certificate import Certificate, digest_of, read_certificate
from shardalg.plan.search.check_certificate import check
from shardalg.plan.search.minimising.factor_graph import FactorGraph
from shardalg.plan.search.minimising.minimum import minimum
from tests.search.test_minimum import least, random_factors


def step(weights, x):
    """Return the loss and new weights after a step of gradient descent."""

    def loss(weights):
        y = x
        for weight in weights:
            y = jnp.tanh(y @ weight)
        return (y.astype("float32") ** 2).mean()

    value, slopes = jax.value_and_grad(loss)(weights)
    return value, [w - 0.1 * slope for w, slope in zip(weights, slopes, strict=True)]


ARGS = (
    [jax.ShapeDtypeStruct((1024, 1024), "bfloat16")] * 2,
    jax.ShapeDtypeStruct((512, 1024), "bfloat16"),
)


@pytest.fixture(scope="module")
def found():
    return sa.search(step, *ARGS, hardware="h100:4")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(0, 60, 12))
def test_it_proves_the_minimum(first):
    for seed in range(first, first + 12):
        factors = random_factors(seed)
        content = Certificate("random costs", factors, minimum(factors)).content()
        proved, expected = check(content), least(factors)
        assert proved.cost_ps == expected, seed
        # Duals are rounded to whole numbers, of which each edge loses less than two.
        assert expected - 2 * len(factors.edges) - 1 <= proved.bound_ps <= expected, seed


@pytest.mark.slow
def test_every_mesh_of_a_search_has_one(found, tmp_path, capsys):
    for number, row in enumerate(found.rows):
        path = tmp_path / f"{number}.json"
        row.certificate.save(path)
        proved = check(read_certificate(path))
        assert proved.bound_ps / 1e12 == pytest.approx(row.bound_s, rel=1e-6)
        assert main(["certificate", "check", str(path)]) == 0
        assert "proved" in capsys.readouterr().out
    compressed = tmp_path / "a.json.gz"
    found.rows[0].certificate.save(compressed)
    assert read_certificate(compressed) == read_certificate(tmp_path / "0.json")


def edits(content, draw):
    """Yield edited copies of a certificate's content, each of another kind."""

    def edited():
        return copy.deepcopy(content)

    for _ in range(3):
        one = edited()
        one["solution"][draw.randrange(len(one["solution"]))] = 10**6
        yield "label that does not exist", one
        one = edited()
        one["cost_ps"] -= 1
        yield "lower cost", one
        one = edited()
        one["bound_ps"] += 1 + draw.randrange(1000)
        yield "higher bound", one
        one = edited()
        del one["steps"][draw.randrange(len(one["steps"])) :]
        one["duals"] = []
        yield "no proof", one
        one = edited()
        one["costs"][draw.randrange(len(one["costs"]))][0] = -5
        yield "negative cost", one
        one = edited()
        one["steps"].insert(0, [draw.randrange(len(one["costs"])), 0, 0])
        yield "label removed for itself", one
        one = edited()
        one["steps"].insert(0, [10**6])
        yield "variable that does not exist", one
        one = edited()
        del one[draw.choice(["costs", "matrices", "edges", "steps", "duals", "solution"])]
        yield "missing entry", one


def test_edited_content_is_refused(found):
    content = found.rows[0].certificate.content()
    accepted, tried = [], 0
    for kind, one in edits(content, random.Random(20261128)):
        tried += 1
        try:
            check(one)
            accepted.append(kind)
        except CertificateError:
            pass
    assert tried >= 20
    assert accepted == []


def frustrated(seed):
    """Return a complete factor graph, of which the linear program is fractional."""
    rng, factors = np.random.default_rng(seed), FactorGraph()
    for _ in range(7):
        factors.add_variable(rng.integers(0, 4, 3))
    for one, other in itertools.combinations(range(7), 2):
        factors.add_edge(one, other, rng.integers(0, 40, (3, 3)).astype(float))
    return factors


@pytest.mark.parametrize("seed", [5, 7])
def test_branches_prove_the_minimum_of_a_fractional_program(seed):
    factors = frustrated(seed)
    found = minimum(factors)
    assert found.tree is not None
    assert found.cost_ps == least(factors)
    content = Certificate("random costs", factors, found).content()
    edges = len(factors.edges)
    assert least(factors) - 2 * edges <= check(content).bound_ps <= least(factors)
    # Without the branches the bound is smaller, and a part that is left out proves nothing.
    with pytest.raises(CertificateError, match="proves"):
        check({**content, "tree": None})
    variable, labels, one, other = content["tree"]
    for tree in ([variable, labels, one, [[]]], [variable, labels, [[]], other]):
        with pytest.raises(CertificateError, match="proves"):
            check({**content, "tree": tree})
    for tree in ([variable, labels, one], [99, labels, one, other], []):
        with pytest.raises(CertificateError, match="missing or malformed"):
            check({**content, "tree": tree})


def proof_of(factors, solution, steps, duals):
    """Return the content of a certificate with any solution, steps and duals."""
    content = Certificate("random costs", factors, minimum(factors)).content()
    cost = round(factors.total(solution))
    return {
        **content,
        **{"solution": solution, "cost_ps": cost, "steps": steps, "duals": duals},
        "bound_ps": -(10**15),
    }


def bound_of_random_proof(seed):
    """Return the bound of steps and duals that are drawn, or None if they are refused."""
    factors, draw = random_factors(seed), random.Random(seed)
    steps = []
    for _ in range(draw.randrange(4)):
        one = draw.randrange(len(factors.costs))
        labels = range(len(factors.costs[one]))
        steps.append(draw.choice([[one], [one, draw.choice(labels), draw.choice(labels)]]))
    dual = [
        [i, j, *([draw.randrange(-9, 9) for _ in factors.costs[n]] for n in (i, j))]
        for i, j in factors.edges
    ]
    # Label 0 is possible everywhere, and seldom the best.
    solution = [0] * len(factors.costs)
    try:
        return check(proof_of(factors, solution, steps, [dual, dual])).bound_ps
    except CertificateError:
        return None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(0, 120, 20))
def test_no_steps_and_duals_prove_more_than_the_minimum(first):
    bounds = {seed: bound_of_random_proof(seed) for seed in range(first, first + 20)}
    assert any(bound is not None for bound in bounds.values())
    for seed, bound in bounds.items():
        assert bound is None or bound <= least(random_factors(seed)), seed


# In 3080 an infinite cost meets one that is infinitely smaller.
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "seeds", [(3080, *range(9)), *(range(n, n + 15) for n in range(9, 114, 15))]
)
def test_a_solution_that_is_not_the_best_does_not_raise_the_bound(seeds):
    for seed in seeds:
        factors = random_factors(seed)
        content = Certificate("random costs", factors, minimum(factors)).content()
        solution = [0] * len(factors.costs)
        found = check(proof_of(factors, solution, content["steps"], content["duals"] * 2))
        assert found.bound_ps <= least(factors) <= found.cost_ps, seed


def test_a_label_is_removed_only_for_a_better_one():
    factors = FactorGraph()
    one, other = factors.add_variable([1, 5]), factors.add_variable([0, 0])
    factors.add_edge(one, other, np.array([[0.0, 3.0], [0.0, 0.0]]))
    check(proof_of(factors, [0, 0], [[one, 1, 0]], []))
    for steps in ([[one, 0, 1]], [[one, 1, 1]], [[one, 1, 0], [one, 1, 0]], [[one, -1, 0]]):
        with pytest.raises(CertificateError):
            check(proof_of(factors, [0, 0], steps, []))


def test_files_that_are_none_are_refused(found, tmp_path, capsys):
    path = tmp_path / "a.json"
    with pytest.raises(CertificateError, match=r"is no certificate: FileNotFoundError"):
        read_certificate(path)
    found.rows[0].certificate.save(path)
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    with pytest.raises(CertificateError, match=r"is no certificate: JSONDecodeError"):
        read_certificate(path)
    path.write_text(text.replace('"cost_ps":', '"cost_ps":1', 1))
    with pytest.raises(CertificateError, match="was edited"):
        read_certificate(path)
    content = json.loads(text)
    content["schema"] = "shardalg.certificate/9"
    path.write_text(json.dumps(content))
    with pytest.raises(CertificateError, match="has the schema"):
        read_certificate(path)
    # A forged digest does not make a wrong bound true.
    content = json.loads(text)
    del content["digest"]
    content["bound_ps"] += 10**6
    content["digest"] = digest_of(content)
    path.write_text(json.dumps(content))
    assert main(["certificate", "check", str(path)]) == 2
    assert "proves" in capsys.readouterr().err


SOURCE = """import jax

def f(x, w):
    return jax.nn.relu(x @ w) @ w.T

def g(x, w):
    return jax.nn.relu(x @ w) + 1

def args():
    return tuple(jax.ShapeDtypeStruct(s, "bfloat16") for s in ((4096, 512), (512, 512)))
"""


def test_the_table_is_made_again_from_the_function(tmp_path, monkeypatch, capsys):
    (tmp_path / "here.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    files = ["--certificate", "a.json.gz"]
    assert main(["search", "here.py:f", "--hardware", "h100:4", "--axes", "1", *files]) == 0
    again = ["certificate", "check", "a.json.gz", "--table"]
    assert main([*again, "here.py:f", "--sample", "20", "--json"]) == 0
    found = json.loads("{" + capsys.readouterr().out.partition("{")[2])
    assert found["samples"] > 10
    # The planner decides loops anew, so that single plans are cheaper than their entry.
    assert found["median_error"] < 0.005 < found["largest_error"] < 0.5
    assert main([*again, "here.py:f", "--sample", "3"]) == 0
    assert "3 solutions with one other entry" in capsys.readouterr().out
    assert main([*again, "here.py:g"]) == 2
    assert "the certificate has not the table of this function" in capsys.readouterr().err
    assert main(["certificate", "check", "a.json.gz", "--sample", "3"]) == 2
    assert "--sample needs the function" in capsys.readouterr().err


def test_a_bound_within_a_budget_is_proved(found, tmp_path, capsys):
    budget = 0.8 * found.rows[0].peak_bytes
    over = sa.family(meshes=[found.best.mesh])
    tight = sa.search(step, *ARGS, hardware="h100:4", memory_bytes=budget, over=over)
    path = tmp_path / "tight.json"
    tight.rows[0].certificate.save(path)
    assert main(["certificate", "check", str(path), "--json"]) == 0
    proved = json.loads(capsys.readouterr().out)
    assert proved["bound_s"] == pytest.approx(tight.bound_s, rel=1e-6)
    assert found.bound_s <= tight.bound_s * (1 + 1e-9)


def test_the_check_imports_no_solver():
    lines = Path(check_certificate.__file__).read_text().splitlines()
    words = (line.split() for line in lines if line.startswith(("import ", "from ")))
    imported = {word[1] for word in words}
    assert imported == {"__future__", "typing", "numpy", "shardalg.errors"}
    assert len(lines) <= 200
