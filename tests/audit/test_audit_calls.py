"""`sa.audit` and `sa.audit_hlo` on a small layer: verdicts, reports and errors."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardalg as sa
from shardalg.cli import main
from shardalg.xla.audit.audit_calls import partitioned

STRUCT = jax.ShapeDtypeStruct
ARGS = (STRUCT((16, 8), "float32"), STRUCT((8, 12), "float32"), STRUCT((12, 8), "float32"))
IN, OUT = (P("x"), P(None, "y"), P("y")), P("x")


def layer(x, w, v):
    return jnp.maximum(x @ w, 0) @ v


@pytest.fixture(scope="module")
def texts():
    return partitioned(layer, ARGS, sa.Mesh({"x": 2, "y": 2}), IN, OUT)


def faulty(texts, opcode, line):
    """Return the text after partitioning with another line for the first instruction."""
    lines = texts.after.splitlines()
    at = next(i for i, row in enumerate(lines) if f" {opcode}(" in row)
    lines[at] = line(lines[at])
    return "\n".join(lines)


def without_all_reduce(texts):
    def line(row):
        head, _, rest = row.partition("all-reduce(")
        return f"{head}copy({rest.split(')')[0]})"

    return faulty(texts, "all-reduce", line)


def test_a_right_program_is_proved(texts):
    found = sa.audit_hlo(texts.before, texts.after)
    assert found.verdict == "proved"
    assert found.ok
    assert found.devices == 4
    assert set(found.table()["status"]) == {"proved"}
    assert repr(found).startswith("proved: ")
    assert json.loads(found.to_json())["verdict"] == "proved"
    assert "test_audit_calls.py" in str(found.table()["source"])


def test_a_missing_all_reduce_is_refuted(texts):
    found = sa.audit_hlo(texts.before, without_all_reduce(texts))
    assert found.verdict == "refuted"
    assert not found.ok
    assert "pending" in found.refuted[0].why
    assert repr(found).splitlines()[1].startswith("refuted: ")


def test_groups_along_another_axis_are_refuted(texts):
    groups = "replica_groups={{0,2},{1,3}}"
    found = sa.audit_hlo(
        texts.before,
        faulty(texts, "all-reduce", lambda row: row.split("replica_groups")[0] + groups
               + ", to_apply=" + row.split("to_apply=")[1]),
    )  # fmt: skip
    assert found.refuted[0].opcode == "all-reduce"
    assert found.refuted[0].device is not None


def test_a_function_is_audited():
    found = sa.audit(
        layer, *ARGS, mesh=sa.Mesh({"x": 2, "y": 2}), in_shardings=IN, out_shardings=OUT
    )
    assert found.verdict == "proved"


def test_arrays_are_arguments_too():
    arrays = [jnp.ones(struct.shape) for struct in ARGS]
    found = sa.audit(layer, *arrays, mesh=sa.Mesh({"x": 2, "y": 2}), in_shardings=IN)
    assert found.verdict == "proved"


def test_the_command(texts, tmp_path, capsys):
    before, after, wrong = (tmp_path / name for name in ("before.txt", "after.txt", "wrong.txt"))
    before.write_text(texts.before)
    after.write_text(texts.after)
    wrong.write_text(without_all_reduce(texts))
    assert main(["audit", str(before), str(after), "--table"]) == 0
    assert "all-reduce" in capsys.readouterr().out
    assert main(["audit", str(before), str(wrong), "--save", str(tmp_path / "a.json")]) == 1
    assert json.loads((tmp_path / "a.json").read_text())["verdict"] == "refuted"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (lambda t: t.before, lambda t: t.after[: len(t.after) - 300], "cut short|cannot be read"),
        (lambda t: t.after, lambda t: t.after, "is partitioned already"),
        (lambda t: t.before, lambda t: t.before, "is not partitioned yet"),
        (lambda t: t.before, lambda t: t.after.replace("num_partitions=4", "num_partitions=2"),
         "4 and 2 partitions"),
        (lambda t: t.before, lambda t: t.after.replace("jit(layer)", "jit(other)"),
         "different programs"),
        (lambda t: t.before, lambda t: t.after.replace("is_scheduled=false", "")
         .replace("HloModule ", "HloModule is_scheduled=true, ", 1), "after optimisation"),
        (lambda t: t.before, lambda t: t.after.replace("dot(%param.0", "dot(%all-reduce")
         .replace("dot(%param", "dot(%all-reduce"), "out of order: .* which a later line"),
        (lambda t: t.before, lambda t: t.after.replace("parameter(1)", "parameter(0)"),
         "has parameters .* in "),
        (lambda t: "nothing", lambda t: t.after, "no file that can be read"),
    ],
)  # fmt: skip
def test_bad_texts_have_clear_errors(texts, before, after, words):
    with pytest.raises(sa.NotationError, match=words):
        sa.audit_hlo(before(texts), after(texts))


def test_an_audit_needs_a_mesh_of_two_devices():
    with pytest.raises(sa.LoweringError, match="no mesh is given"):
        sa.audit(layer, *ARGS)
    with pytest.raises(sa.LoweringError, match="partitioned nothing"):
        sa.audit(layer, *ARGS, mesh=sa.Mesh({"x": 1}))
