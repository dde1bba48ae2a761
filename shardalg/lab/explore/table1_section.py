"""The paper's Table 1, derived from symbolic plans at the paper's sizes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from shardalg.costs.analyses.scaling import Scaling
from shardalg.lab.explore.settings import Settings
from shardalg.lab.explore.strategies import LAYER, TRAIN_STEP, plans_of
from shardalg.lab.table1 import (
    MESH,
    SIZES,
    Costs,
    costs_of,
    difference,
    layer_costs,
    scaling_curves,
    table,
)
from shardalg.lab.table1_strategies import ORDERS, STRATEGIES, count_annotations, tensors_per_layer
from shardalg.models.transformer import Config
from shardalg.pictures import png
from shardalg.plan.plan import Plan
from shardalg.show.html import Picture, Section
from shardalg.sizes.formula import Formula
from shardalg.tables import Table

HINTS = Settings(SIZES, MESH)
"""The first column of the paper's Table 2: its sizes are the hints of the symbolic sizes."""
INTRODUCTION = """The paper's Table 1 (GSPMD, arXiv:2105.04663), not written down but derived: the
attention and feed-forward layers are traced with named sizes, planned at the hints {hints} on
{mesh}, and every byte of the programs is priced in those names. **Memory** is what one device
holds: the float32 parameters, and what the forward pass leaves for the backward one (a minimum cut:
pointwise operators and reductions rebuild the rest). **Communication** is what one device sends in
both passes, on rings: of weights and their gradients, and of activations, which are the values that
have a dimension of the data. An **order** leaves out what another term bounds wherever all sizes
are at least 1 and no shard is empty, then keeps the mesh axes alone. The formulas hold where
{conditions}."""
APART = """What two norms and two residuals per layer add to that (the whole layer less its parts):
{statistics}. {orders}."""
UNCHANGED = "None of it changes an order"
STEP = """The same of the whole train step (embedding, {layers} scanned layers, cross-entropy,
Adafactor): what each further layer adds, the coefficient of `L`. Norms and residuals are in it, a
scan keeps what jax stacks, without a cut through its body, and `update_communication` is
Adafactor's, whose statistics of each weight are reduced over the mesh."""
ANNOTATIONS = """A strategy annotates {found} tensors per layer, {share:.2%} of the {tensors}
that one more layer adds to the XLA graph of the train step (the paper: 7, and 0.7 %)."""
CHOICES = """A plan is made at its hints; where another choice becomes the cheaper one, a layer has
another program, and other formulas. These conditions are the nearest: `margin` is by how much they
hold at the hints, as a share of the larger side, `flips` the sizes at which they turn."""
MOST_CHOICES = 3
CURVES = """The same formulas over the size of one mesh axis, the other one at its hint, as far as
their conditions hold: on these scales a cost of order 1/X is a straight line that falls."""
CAPTION = "Bytes of one device in one layer, against the size of each mesh axis."


def sections(settings: Settings = HINTS) -> tuple[Section, ...]:
    """Return the sections that derive Table 1 of the GSPMD paper from plans.

    They compare derived orders with the paper's, list conditions on the sizes and costs that the
    table leaves out, and draw the costs over the mesh.
    """
    parts = layer_costs(settings.config, settings.mesh, settings.strategies)
    layers = plans_of(settings, LAYER)
    return (
        _derived(settings, parts),
        _choices(layers),
        _apart(settings, parts, layers),
        curves(parts),
    )


def _derived(settings: Settings, parts: Mapping[str, Costs]) -> Section:
    """Return the section with Table 1 of the GSPMD paper as it is derived from plans.

    Args:
      parts: the costs of attention and feed-forward, by strategy.
    """
    first = next(iter(parts.values()))
    sizes = ", ".join(f"{n}={v}" for n, v in first.hints.items() if n not in settings.mesh.shape)
    facts = dict.fromkeys(fact for found in parts.values() for fact in found.facts)
    words = INTRODUCTION.format(
        hints=sizes, mesh=repr(settings.mesh), conditions=", ".join(map(str, facts))
    )
    paper = {name: ORDERS[name] for name in parts}
    derived = table(parts, paper)
    same = derived["equal"].count("yes")
    sentence = f"Table 1: {same} of {len(derived)} orders of the planned layers are the paper's."
    shown = (words, derived, _annotations(settings))
    return Section("Table 1, derived", shown, conclusion=sentence)


def _annotations(settings: Settings) -> str:
    """Return text: how many tensors of a layer each strategy annotates, as a share of all."""
    counts = sorted(
        count_annotations(settings.config, STRATEGIES[name](settings.mesh, settings.config))
        for name in settings.strategies
    )
    tensors = tensors_per_layer(Config())
    found = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    return ANNOTATIONS.format(found=found, tensors=tensors, share=counts[-1] / tensors)


def _choices(layers: Mapping[str, Plan]) -> Section:
    return Section("Where the strategies' plans change", (CHOICES, nearest(layers)))


def nearest(plans: Mapping[str, Plan], count: int = MOST_CHOICES) -> Table:
    """Return, for each plan, its `count` choices that other sizes would change first."""
    columns = ("condition", "margin", "place", "decides", "flips")
    rows = []
    for name, plan in plans.items():
        # Only a condition that compares two choices has the words "rather than" in this column.
        # Others, such as divisibility, choose nothing and do not belong in a table of choices.
        weighed = (row for row in plan._conditions_table if "rather than" in row["decides"])
        rows += [(name, *(row[c] for c in columns)) for row in islice(weighed, count)]
    return Table(("strategy", *columns), tuple(rows))


def _apart(settings: Settings, parts: Mapping[str, Costs], layers: Mapping[str, Plan]) -> Section:
    """Return a section with the costs that are not in Table 1.

    These are the costs of norms and residuals (the layer without its `parts`), and of one more
    layer in a train step. `layers` has the plan of a whole layer by strategy.
    """
    whole = {name: costs_of(layers[name]) for name in parts}
    added = {name: whole[name].scaling - found.scaling for name, found in parts.items()}
    steps = {name: costs_of(plan, per="L") for name, plan in plans_of(settings, TRAIN_STEP).items()}
    words = STEP.format(layers=settings.config.L)
    hints = next(iter(parts.values())).hints
    apart = APART.format(statistics=_statistics(added), orders=_orders(parts, whole))
    return Section("Beside Table 1", (apart, difference(added, hints), words, table(steps)))


def _statistics(added: Mapping[str, Scaling]) -> str:
    """Return text that names the sizes on which the costs of norms and residuals depend.

    Args:
      added: these costs by strategy.
    """
    values = (value for found in added.values() for value in found.values())
    names = {name for value in values for name in Formula.of(value).names}
    # The paper's M, H, N and D are sizes of features: of the model, the hidden layer, heads.
    features = sorted(names & set("MHND"))
    if features:
        return f"values of (B, S) and of {', '.join(features)}"
    return "statistics of (B, S), each reduced where M is sharded"


def _orders(parts: Mapping[str, Costs], whole: Mapping[str, Costs]) -> str:
    """Return a sentence that names the strategies whose orders norms and residuals change.

    Args:
      parts: the costs of attention and feed-forward. whole: the costs of the whole layer.
    """
    changed = [name for name, found in parts.items() if whole[name].orders != found.orders]
    return f"It changes orders of {', '.join(changed)}" if changed else UNCHANGED


def curves(parts: Mapping[str, Costs]) -> Section:
    """Return a section with the curves of each cost over the size of each mesh axis."""
    picture = Picture("scaling", png(scaling_curves(parts)), CAPTION)
    return Section("Costs against the mesh", (CURVES, picture))
