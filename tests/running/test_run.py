"""`shardalg run` in several processes equals one process and one device, and ends when one dies."""

import os
import re
import socket
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import shardalg as sa
from shardalg.cli import main
from tests.running import modules

ROOT = Path(__file__).resolve().parents[2]
MESH = ["--mesh", "X=2,Y=4"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    for name in ("transformer", "residual", "uneven", "killed", "elsewhere"):
        (tmp_path / f"{name}.py").write_text(getattr(modules, name.upper()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return tmp_path


def module(text):
    found = {}
    exec(text, found)
    return found


def close(got, want, path):
    assert got.shape == want.shape, path
    assert np.abs(got - want).max() <= 1e-5 * max(1.0, np.abs(want).max()), path


def ran(*arguments):
    assert main(["run", *arguments, *MESH, "--out", "out.npz", "--time-limit", "200"]) == 0
    with np.load("out.npz") as file:
        return dict(file)


def check_training(name, processes):
    """Twenty steps: state and gradients of the last, every loss."""
    given = module(getattr(modules, name.upper()))
    command = [f"{name}.py:step", "--processes", str(processes), "--steps", "20"]
    found = ran(*command, "--carry", "0:0")
    state, *data = given["args"]()
    step, losses = jax.jit(given["step"]), []
    for _ in range(20):
        state, grads, loss = step(state, *data)
        losses.append(loss)
    want = [*jax.tree.leaves((state, grads)), np.asarray(losses)]
    assert len(found) == len(want)
    for (path, got), expected in zip(found.items(), want, strict=True):
        close(got, np.asarray(expected), path)
    assert losses[-1] < losses[0]


def check_uneven(processes):
    given = module(modules.UNEVEN)
    found = ran("uneven.py:both", "--processes", str(processes), "--steps", "2", "--carry", "0:0")
    whole = [read(tuple(slice(0, n) for n in shape)) for read, shape in zip(
        given["arrays"](), given["SHAPES"], strict=True
    )]  # fmt: skip
    first = jax.jit(given["both"])(*whole)
    second = jax.jit(given["both"])(first[0], *whole[1:])
    want = [*jax.tree.leaves(second[:3]), np.asarray([first[3], second[3]])]
    for (path, got), expected in zip(found.items(), want, strict=True):
        close(got, np.asarray(expected), path)


@pytest.mark.slow
def test_a_train_step_in_two_processes(here, capsys):
    check_training("transformer", 2)
    shown = capsys.readouterr().out
    assert "2 processes" in shown
    assert re.search(r"step 20: [\d.]+ m?s  result\[2\] \d", shown)


@pytest.mark.slow
def test_batch_norm_and_orders_of_the_devices_in_two_processes(here):
    """Values are sent between the processes if the order of all devices changes."""
    given = module(modules.RESIDUAL)
    plan = sa.plan(given["step"], *given["args"](), strategy=given["strategy"])
    sent = plan.collectives()
    turned = sent[(sent["kind"] == "collective_permute") & (sent["mesh_axes"] == "X,Y")]
    assert len(turned) >= 3  # images that enter; into the other order, and back for gradients
    check_training("residual", 2)


@pytest.mark.slow
def test_uneven_arrays_given_by_blocks(here):
    check_uneven(2)


@pytest.mark.slow
def test_four_processes(here):
    check_training("transformer", 4)
    check_training("residual", 4)
    check_uneven(4)


@pytest.mark.slow
def test_a_killed_process_ends_the_run(here, capsys):
    (here / "out.npz").write_text("of before")
    start = time.monotonic()
    command = ["run", "killed.py:add", "--mesh", "X=2", "--processes", "2", "--steps", "1000000"]
    assert main([*command, "--carry", "0:0", "--out", "out.npz", "--time-limit", "100"]) == 2
    assert time.monotonic() - start < 60
    shown = capsys.readouterr()
    assert "process 1 of 2 was killed by signal 9" in shown.err
    assert (here / "out.npz").read_text() == "of before"
    assert [p.name for p in here.glob(".*")] == []


@pytest.mark.slow
def test_an_array_that_lies_elsewhere(here, capsys):
    """Process 0 ends by its error, although process 1 blocks on it."""
    command = ["run", "elsewhere.py:add", "--mesh", "X=2", "--processes", "2"]
    assert main([*command, "--time-limit", "100"]) == 2
    shown = capsys.readouterr()
    assert "x: laid out as NamedSharding" in shown.out
    assert "process 0 of 2 ended with status 2" in shown.err


def test_a_time_limit(here, capsys):
    command = ["run", "killed.py:add", "--mesh", "X=2", "--processes", "2", "--time-limit", "1"]
    assert main(command) == 2
    assert "still runs after the time limit of 1 s" in capsys.readouterr().err


WRONG = {
    "more processes than devices": (
        ["--processes", "16"],
        "--processes 16 does not divide 8 devices",
    ),
    "no divisor": (["--processes", "3"], "Write one of 1, 2, 4, 8"),
    "none": (["--processes", "0"], "--processes 0 does not divide 8 devices"),
    "carry": (["--carry", "0-0"], "write RESULT:ARGUMENT"),
    "steps": (["--steps", "0"], "at least 1"),
    "no folder": (["--out", "no/out.npz"], "no folder no"),
    "argument": (["--carry", "0:7"], "no argument 7"),
    "result": (["--carry", "7:0", "--steps", "2"], "no result 7"),
    "unlike": (
        ["--carry", "1:0", "--steps", "2"],
        "x: got float32[5,3], planned for float32[5, 7]",
    ),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_is_an_error_without_a_traceback(here, capsys, name):
    arguments, words = WRONG[name]
    assert main(["run", "uneven.py:both", *MESH, *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    # Of arguments that are unlike, each has a line between what is wrong and what to do.
    assert error.count("\n") == (3 if name == "unlike" else 1)


def test_a_mesh_of_another_size_than_the_machine(here, capsys):
    assert main(["run", "killed.py:add", "--mesh", "X=16"]) == 2
    assert "needs 16 devices" in capsys.readouterr().err


def test_shapes_do_not_run(here, capsys):
    (here / "uneven.py").write_text(modules.UNEVEN.replace("def arrays", "def others"))
    assert main(["run", "uneven.py:both", *MESH]) == 2
    assert "args() gives shapes" in capsys.readouterr().err


def test_a_port_in_use(here, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        assert main(["run", "uneven.py:both", *MESH, "--processes", "2", "--port", port]) == 2
    assert f"port {port} of 127.0.0.1 cannot be had" in capsys.readouterr().err
