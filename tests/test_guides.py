"""The pages of concepts and of questions print as shown; each public name has one question."""

import doctest
import importlib.util
from pathlib import Path

import pytest

import shardalg as sa

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["concepts.md", "api_by_question.md"])
def test_the_examples_of_a_guide_run(name):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = doctest.testfile(str(DOCS / name), module_relative=False, optionflags=flags)
    assert found.attempted > 8
    assert not found.failed


def test_every_public_name_has_one_question():
    spec = importlib.util.spec_from_file_location("docs_of_guides", DOCS / "conf.py")
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    listed = [name for names in conf.by_question().values() for name in names]
    assert sorted(listed) == sorted(sa.__all__)
    assert not conf.by_question()["More"]
