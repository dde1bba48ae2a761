"""Options and their switches: one nested value, and the old keywords for one version."""

import dataclasses

import pytest

import shardalg as sa
from shardalg.plan.explain.switches import FLIPPED
from shardalg.planner.propagate.options import SWITCHES
from shardalg.renamed import RenamedWarning


def test_every_switch_is_flipped_but_the_order_of_completion():
    """Completion itself changes without priorities; no switch describes its effect."""
    assert set(SWITCHES) - set(FLIPPED) == {"priorities"}
    assert set(FLIPPED) - set(SWITCHES) == {"keep_gathers", "hoist_gathers", "stream_layers"}


@pytest.mark.parametrize("name", SWITCHES)
def test_old_keywords_and_attributes_are_switches(name):
    flipped = not getattr(sa.Switches(), name)
    wanted = sa.Options(policy="shardy", switches=sa.Switches(**{name: flipped}))
    words = rf"Options\({name}={flipped}\) is an old name.* use Options\(switches=Switches\("
    with pytest.warns(RenamedWarning, match=words) as seen:
        made = sa.Options(policy="shardy", **{name: flipped})
    assert made == wanted
    assert {warned.filename for warned in seen} == {__file__}
    with pytest.warns(RenamedWarning, match=rf"use options\.switches\.{name}\.") as seen:
        assert getattr(made, name) is flipped
    assert {warned.filename for warned in seen} == {__file__}


def test_old_keywords_are_added_to_the_switches_at_hand():
    given = sa.Options(switches=sa.Switches(wide_sums=True))
    with pytest.warns(RenamedWarning):
        made = dataclasses.replace(given, defer_sums=False)
    assert made == sa.Options(switches=sa.Switches(wide_sums=True, defer_sums=False))


def test_settings_are_all_of_it():
    given = sa.Options(strict=True, keep_gathers=7, switches=sa.Switches(pad_blocks=False))
    assert sa.Options.of(given.settings) == given
    assert not hasattr(given, "no_such_option")


def test_switches_are_a_value_of_their_own():
    with pytest.raises(sa.StrategyError, match=r"switches are a Switches.*got \{'defer_sums'"):
        sa.Options(switches={"defer_sums": False})
    with pytest.raises(TypeError, match="positional"):
        sa.Options("gspmd", False, True)
