"""`shardalg paper`: every value has a prediction, a goal or a reason; nothing is left out."""

import json

from shardalg.cli import main
from shardalg.lab.evaluation.comparison import compare, records, text
from shardalg.lab.evaluation.prediction import (
    GOALS,
    HELD_OUT,
    TRAINED,
    UNITS,
    Compared,
    Goal,
    Prediction,
    Undetermined,
    compared,
    goal,
    summary,
)
from shardalg.lab.evaluation.published import chosen, column, columns


def test_every_measured_value_has_a_goal_or_a_reason():
    asked = [goal(c, quantity) for c in columns() for quantity in c.measured]
    assert len(asked) == 143
    assert all(str(each) for each in asked)
    reasons = {type(each) for each in asked}
    assert reasons == {Goal, Undetermined}
    assert {c.table for c in columns()} == set(GOALS)
    assert {quantity for c in columns() for quantity in c.measured} == set(UNITS)


def test_errors_are_in_per_cent_or_in_points():
    case = column("narrow-bench.c1")
    seconds, share = (
        Compared(case, name, Prediction(1.1 * case.measured[name]))
        for name in ("step_time_s", "flops_util_pct")
    )
    assert (round(seconds.error, 9), seconds.unit) == (10, "%")
    assert (round(share.error, 9), share.unit) == (3.94, "points")


def test_a_value_that_constants_were_fitted_on_counts_for_nothing():
    how = {"c1": TRAINED, "c2": HELD_OUT}

    def predict(case):
        value = Prediction(2 * case.measured["step_time_s"], how.get(case.id[-2:], HELD_OUT))
        return {"step_time_s": value}

    found = summary(compared(chosen(3), {3: predict})).where(quantity="step_time_s")
    assert found["num_values"] == (5,)
    assert found["median_error"] == ("100.0 %",)
    assert found["met"] == ("NO",)


def test_a_table_without_a_model_says_so():
    values = compared(chosen(8), {})
    assert all(value.prediction is None for value in values)
    assert summary(values)["met"] == ("not modelled yet",)
    assert "Not determined by the paper:\n- unet-bench c1 c2 c3" in text(values)


def test_the_command_prints_a_column(capsys):
    assert main(["paper", "--column", "narrow-bench.c4"]) == 0
    printed = capsys.readouterr().out
    assert "Table 3: dense Transformer, narrow layers" in printed
    assert "/ 13.8 " in printed
    assert "Table 2" not in printed


def test_the_data_are_those_of_the_text(capsys):
    assert main(["paper", "--column", "narrow-bench.c4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == records(compare(chosen(name="narrow-bench.c4")))
