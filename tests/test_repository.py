"""The repository is self-contained: locked by hash, no addresses, set up by its own commands."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import shardalg

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements" / "dev.txt").read_text()
TOOLS = (ROOT / "requirements" / "tools.txt").read_text()
TARGETS = (
    "setup",
    "explore",
    "test",
    "lint",
    "notebooks",
    "bench",
    "oracle",
    "proofs",
    "lock",
    "clean",
)

# Put together, so that this file does not hold what it looks for.
REGISTRIES = ["pypi" + ".org", "python" + "hosted", "registry.npm" + "js", "debian" + ".org"]
MACHINE_PATHS = ["/ro" + "ot/", "/wo" + "rk/", "/ho" + "me/", ".." + "/shared"]


def tracked_files():
    """Files under version control; in an unpacked source archive all files but the ignored ones."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("no git checkout here: nothing says which files are the repository's")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def requirements(lock):
    """(name, version, marker, number of hashes) of each entry."""
    entries = re.split(r"\n(?=[a-z0-9])", lock.strip(), flags=re.IGNORECASE)
    for entry in entries:
        name, version = re.match(r"([\w.-]+)==([\w.]+)", entry).groups()
        marker = re.search(r" ; ([^\\]+?) *\\", entry)
        yield name, version, marker[1] if marker else "", entry.count("--hash=sha256:")


@pytest.mark.parametrize("lock", [LOCK, TOOLS], ids=["dev", "tools"])
def test_every_requirement_has_one_version_and_hashes(lock):
    entries = list(requirements(lock))
    assert entries
    assert [name for name, _, _, hashes in entries if not hashes] == []


def test_one_lock_serves_both_interpreters():
    jax = {marker: version for name, version, marker, _ in requirements(LOCK) if name == "jax"}
    assert {m: v.rsplit(".", 1)[0] for m, v in jax.items()} == {
        "python_full_version < '3.12'": "0.10",
        "python_full_version >= '3.12'": "0.11",
    }


def test_the_lock_covers_the_declared_dependencies_and_nothing_for_tpus():
    locked = {name for name, *_ in requirements(LOCK)}
    groups = PROJECT["dependency-groups"]
    declared = [*PROJECT["project"]["dependencies"], *groups["test"], *groups["dev"]]
    names = {re.match(r"[\w-]+", d)[0] for d in declared if isinstance(d, str)}
    assert names <= locked
    assert not [name for name in locked if "tpu" in name or "cuda" in name]
    assert PROJECT["project"]["optional-dependencies"]["tpu"] == ["libtpu"]


def test_no_file_names_a_registry_or_a_path_of_one_machine():
    found = []
    for path in tracked_files():
        text = path.read_text(errors="ignore")
        marks = [mark for mark in (*REGISTRIES, *MACHINE_PATHS) if mark in text]
        found += [f"{path.relative_to(ROOT)}: {mark}" for mark in marks]
    assert not found, "\n".join(found)


def test_the_version_is_said_once():
    assert PROJECT["project"]["version"] == shardalg.__version__
    assert f"## {shardalg.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
def test_make_knows_the_target(target):
    run = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_make_says_which_interpreter_is_missing(tmp_path):
    run = subprocess.run(
        ["make", "setup", "PYTHON=python0.0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )
    assert run.returncode != 0
    assert "'python0.0' is no Python >= 3.11" in run.stderr


def test_ci_runs_the_readme_command():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("exec make test")
    readme = ROOT / "README.md"
    assert "make test" in readme.read_text()


def test_every_public_name_resolves_and_is_documented():
    for name in shardalg.__all__:
        assert getattr(shardalg, name).__doc__, name
    assert set(shardalg.__all__) <= set(dir(shardalg))
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_this_name'"):
        _ = shardalg.nothing_of_this_name
