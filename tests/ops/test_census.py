"""Every primitive that jax has is in the table, a call, an annotation, or left out by name."""

import json
import subprocess
import sys

import jax
import pytest

from shardalg.costs import fusion
from shardalg.graph.ops.rows import BUILDERS, EXCLUDED, REASONS
from shardalg.graph.tracing.control_flow import INDEXED
from shardalg.graph.tracing.opened import READERS as HANDLERS
from shardalg.planner.propagate.gspmd import step, tuple_steps
from shardalg.planner.propagate.shardy import lowered

# In one of the versions of jax that pyproject.toml allows, not in the other.
ONLY_BEFORE = """
box_get box_set call closed_call core_map log_extend log_read new_box new_log pbroadcast_done
pbroadcast_start psum_start shard_alike unreduced_psum_start unreduced_reduce_scatter_start
"""
ONLY_SINCE_0_11 = """
log2 one_minus_square program_order relayout unreduced_pmax unreduced_pmin xla_metadata_call
"""
OWN = {"annotate", "grouped_dot", "join_ends", "positions", "rotate", "row_groups"}


@pytest.fixture(scope="module")
def installed():
    found = subprocess.run(
        [sys.executable, "-m", "tests.ops.census"], capture_output=True, text=True, check=True
    )
    return set(json.loads(found.stdout))


def test_every_primitive_of_jax_is_accounted_for(installed, show):
    places = {"row": BUILDERS, "call or annotation": HANDLERS, "left out": EXCLUDED}
    counts = {name: len(installed & set(place)) for name, place in places.items()}
    show(f"jax {jax.__version__}: {len(installed)} primitives, {counts}")
    unknown = installed - set(BUILDERS) - set(HANDLERS) - set(EXCLUDED)
    assert not unknown, (
        "add a row (graph/ops/families), a call (graph/tracing) or a reason (ops.excluded)"
    )


def test_nothing_is_named_that_jax_does_not_have(installed):
    named = set(BUILDERS) | set(HANDLERS) | set(EXCLUDED)
    elsewhere = {*ONLY_BEFORE.split(), *ONLY_SINCE_0_11.split(), *OWN}
    assert not named - installed - elsewhere


TABLES = {
    "costs": (fusion.VIEWS, fusion.READS_PART, fusion.SAME_BUFFER),
    "propagate": (
        *(step.LATER, *step.BOXES, tuple_steps.ARGUMENTS),
        *(lowered.NOTHING, lowered.NUMBERS_THROUGH, lowered.LATER),
    ),
}


@pytest.mark.parametrize("room", TABLES)
def test_what_a_table_of_another_room_names_is_a_primitive(room):
    """A name that there is not (`scatter_add` of `scatter-add`) would never be met."""
    named = {name for table in TABLES[room] for name in table if isinstance(name, str)}
    assert named - set(BUILDERS) - set(HANDLERS) - set(EXCLUDED) == set()


def test_no_primitive_is_named_twice():
    listed = [name for names in REASONS.values() for name in names.split()]
    assert len(listed) == len(set(listed))
    assert not set(BUILDERS) & set(EXCLUDED)
    assert not set(HANDLERS) & set(EXCLUDED)
    # A site is a node of its own primitive; bits of other kinds of keys stay what they are.
    # Indices are made wide where they are narrow. A product whose batch is ragged stays.
    both = {"annotate", "random_bits", "ragged_dot_general", *INDEXED}
    assert set(BUILDERS) & set(HANDLERS) == both
