import json
from dataclasses import replace

import pytest

from shardalg.costs.hardware import Hardware, from_json, load, names
from shardalg.errors import HardwareError

ENTRY = [{"value": 1e9, "source": "data sheet"}]
GOOD = {"schema": "shardalg.hardware/1", "name": "toy", "figures": {"hbm_bytes": ENTRY}}


@pytest.mark.parametrize("name", names())
def test_every_shipped_figure_has_a_source_and_survives_a_round_trip(name):
    hardware = load(name)
    assert all(len(source.source) > 20 for source in hardware.sources)
    assert from_json(json.loads(json.dumps(hardware.to_json()))) == hardware


def test_conflicting_sources_are_kept_and_the_first_is_used():
    table = load("tpu_v3").table()
    links = table.where(figure="link_bytes_per_s")
    assert links["value"] == (8.3e10, 1.0e11, 8.2e10)
    assert links["used"] == (True, False, False)
    assert load("tpu_v3").link_bytes_per_s == 8.3e10


def test_figures_without_a_source_are_written_under_the_name_of_the_hardware():
    made = Hardware("mine", (("float32", 1e12),), link_bytes_per_s=1e9, rebuilds=True)
    made = made.with_links({"X": 5e8})
    back = from_json(made.to_json())
    assert replace(back, sources=()) == made
    assert {source.source for source in back.sources} == {"mine"}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"rebuilds": "yes"}, "'rebuilds' is 'yes'"),
        ({"schema": "other"}, "schema 'other'"),
        ({"name": None}, "'name' or 'figures' is missing"),
        ({"figures": {"speed": ENTRY}}, "unknown figure 'speed'"),
        ({"figures": {"peak_flops_per_s": ENTRY}}, "unknown figure 'peak_flops_per_s'"),
        ({"figures": {"hbm_bytes": 3}}, "hbm_bytes is 3"),
        ({"figures": {"hbm_bytes": []}}, r"hbm_bytes is \[\]"),
        ({"figures": {"hbm_bytes": [{"value": 1.0}]}}, "where it is from"),
        ({"figures": {"hbm_bytes": [{"value": -1, "source": "x"}]}}, "a positive number"),
        ({"figures": {"hbm_bytes": [{"value": "1", "source": "x"}]}}, "a positive number"),
    ],
)
def test_a_malformed_file_is_an_error_that_names_the_figure(change, match):
    with pytest.raises(HardwareError, match=match):
        from_json({**GOOD, **change}, where="toy.json")


def test_unknown_names_and_broken_files(tmp_path):
    with pytest.raises(HardwareError, match=r"the names are .*tpu_v3"):
        load("tpu_v9")
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(GOOD)[:30])
    with pytest.raises(HardwareError, match="cut short"):
        load(str(path))


def test_impossible_figures():
    with pytest.raises(HardwareError, match=r"link_bytes_per_s.*0"):
        Hardware("toy", link_bytes_per_s=0)
    with pytest.raises(HardwareError, match="nan"):
        Hardware("toy", (("float32", float("nan")),))
