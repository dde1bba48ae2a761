"""The pages of the API have an entry for every public member of every public class."""

import importlib.util
import inspect
import re
import warnings
from pathlib import Path

import pytest

import shardalg as sa

CONF = Path(__file__).resolve().parents[1] / "docs" / "conf.py"
CLASSES = [name for name in sa.__all__ if inspect.isclass(getattr(sa, name))]


def members(kind):
    """Return the public members that classes of this package give a class."""
    return {
        name
        for base in kind.__mro__
        if base.__module__.startswith("shardalg")
        for name in vars(base)
        if not name.startswith("_")
    }


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    """Names that the pages document: as Sphinx builds them, without the guides."""
    pytest.importorskip("sphinx", reason="no sphinx here")
    from sphinx.application import Sphinx

    spec = importlib.util.spec_from_file_location("docs_conf", CONF)
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    folder = tmp_path_factory.mktemp("docs")
    (folder / "index.rst").write_text("API\n===\n\n.. toctree::\n\n   api/index\n")
    conf.write_api(folder / "api")
    options = {
        "extensions": ["sphinx.ext.autodoc", "sphinx.ext.napoleon"],
        "autodoc_typehints": conf.autodoc_typehints,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Sphinx warns of its own extensions
        app = Sphinx(
            folder, None, folder / "out", folder / "trees", "dummy", options, status=None,
            warning=None,
        )  # fmt: skip
        app.build()
    return set(app.env.domains["py"].data["objects"])


def test_every_public_member_has_an_entry(entries):
    missing = []
    for name in CLASSES:
        kind = getattr(sa, name)
        own = f"{kind.__module__}.{kind.__qualname__}"
        assert own in entries
        # Fields of a dataclass are described in the text of the class.
        words = set(re.findall(r"\w+", kind.__doc__))
        fields = set(getattr(kind, "__dataclass_fields__", ())) & words
        wanted = sorted(members(kind) - fields)
        missing += [f"{name}.{m}" for m in wanted if f"{own}.{m}" not in entries]
    assert not missing, " ".join(missing)


def test_a_plan_has_the_members_of_all_its_questions(entries):
    own = f"{sa.Plan.__module__}.Plan."
    found = {entry.removeprefix(own) for entry in entries if entry.startswith(own)}
    assert {"explain", "verify", "cost", "collectives", "sweep", "at", "draw", "lower"} <= found
    assert len(found) >= 40
