"""Answers that are checked by planning again: what removes a collective, what a layout costs."""

from shardalg.explain.collective import CollectiveExplanation as CollectiveExplanation
from shardalg.explain.collective import explain_collective as explain_collective
from shardalg.explain.trials import Trials as Trials
from shardalg.explain.why_not import WhyNot as WhyNot
from shardalg.explain.why_not import annotated_as as annotated_as
from shardalg.explain.why_not import why_not as why_not
