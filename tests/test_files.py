"""Writing a file keeps what is not the writer's: links, devices, pipes, read-only files."""

import errno
import os
import re
import stat
from pathlib import Path

import pytest

import shardalg as sa
from benchmarks import result
from shardalg.errors import PlanFileError
from shardalg.files import write_whole
from shardalg.show.html import Page, Picture, Section
from shardalg.tables import Table

ROOT = Path(__file__).parents[1]
PAGE = Page("A page", "It leads.", (Section("S", (Picture("p", b"\x89PNG", "what"),)),))


def small_plan():
    return sa.plan(lambda x: x, 1.0, mesh=sa.Mesh({"X": 1}))


WRITERS = {
    "plan": (lambda folder: small_plan().save(folder / "plan.json"), "plan.json"),
    "page": (lambda folder: PAGE.write(folder), "report.html"),
    "markdown": (lambda folder: PAGE.write(folder), "report.md"),
    "picture": (lambda folder: PAGE.write(folder), "p.png"),
    "benchmark": (
        lambda folder: result.Result("b", "It is.", Table(("a",), ((1,),)), {}).save(folder),
        "b.json",
    ),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_writer_writes_through_a_link_and_keeps_it(writer, tmp_path):
    write, name = WRITERS[writer]
    (tmp_path / "kept").mkdir()
    target, link = tmp_path / "kept" / "target", tmp_path / name
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to("kept/target")
    write(tmp_path)
    assert link.is_symlink()
    assert link.read_bytes() == target.read_bytes() != b"old"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert [path.name for path in target.parent.iterdir()] == ["target"]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_writer_leaves_a_read_only_file(writer, tmp_path):
    write, name = WRITERS[writer]
    (tmp_path / name).write_text("old")
    (tmp_path / name).chmod(0o444)
    with pytest.raises((PermissionError, PlanFileError), match="the file is read-only"):
        write(tmp_path)
    assert (tmp_path / name).read_text() == "old"
    assert not list(tmp_path.glob(".*"))


def test_a_link_to_nothing_is_made_something(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "new")
    write_whole(tmp_path / "link", "text")
    assert (tmp_path / "new").read_text() == "text"
    assert (tmp_path / "link").is_symlink()


def test_links_in_a_circle(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(OSError, match=r"symbolic links.*a'$") as caught:
        write_whole(tmp_path / "a", "text")
    assert caught.value.errno == errno.ELOOP
    assert (tmp_path / "a").is_symlink()


def test_a_device_stays_a_device():
    with pytest.raises(PlanFileError, match="/dev/full cannot be written: No space left"):
        small_plan().save("/dev/full")
    small_plan().save("/dev/null")
    for name in ("/dev/full", "/dev/null"):
        assert stat.S_ISCHR(os.stat(name).st_mode)


def test_a_pipe_is_written_into(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "text")
    assert os.read(reader, 10) == b"text"
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    os.close(reader)


def test_a_folder_is_not_replaced(tmp_path):
    with pytest.raises(PlanFileError, match="cannot be written: Is a directory"):
        small_plan().save(tmp_path)


def test_a_name_that_no_file_has(tmp_path):
    for name in ("a\0b", "x" * 300):
        with pytest.raises(PlanFileError, match="cannot be written"):
            small_plan().save(tmp_path / name)
        with pytest.raises(PlanFileError, match="cannot be read"):
            sa.load_plan(tmp_path / name)


def test_the_longest_name_of_a_file(tmp_path):
    write_whole(tmp_path / ("x" * 255), "text")
    assert (tmp_path / ("x" * 255)).read_text() == "text"


def test_nothing_writes_files_otherwise():
    """But XLA's and a run's processes, in a folder of their own that is gone with them."""
    writing = re.compile(r"write_(text|bytes)\(|\bopen\([^)]*[\"'][wax]")
    found = {
        str(path.relative_to(ROOT))
        for folder in ("shardalg", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        if writing.search(path.read_text())
    }
    assert found == {
        "shardalg/files.py",
        "shardalg/lower/running/processes.py",
        "shardalg/xla/aot.py",
        "shardalg/xla/aot_process.py",
        "shardalg/xla/apart.py",
        "shardalg/xla/xla_process.py",
    }
