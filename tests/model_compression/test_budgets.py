import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_compression.budgets import Budget


@pytest.mark.parametrize(
    "text, base, limit",
    [
        ("accuracy=-0.5", 0.97, 0.965),
        ("validation/main/accuracy=-2%", 0.5, 0.49),
        ("loss=+0.02", 0.3, 0.32),
        ("loss=+2%", 0.5, 0.51),
        ("score=-1", -3.0, -4.0),
        ("score=-50%", -2.0, -3.0),
    ],
)
def test_the_worst_value(text, base, limit):
    budget = Budget.parse(text)
    assert budget.limit(base) == pytest.approx(limit)
    assert str(budget) == text
    worse = -1e-3 if budget.better == "higher" else 1e-3
    assert budget.keeps(base, base) and budget.keeps(base, limit)
    assert not budget.keeps(base, limit + worse)
    assert not budget.keeps(base, math.nan)
    assert not budget.keeps(base, math.inf) and not budget.keeps(base, -math.inf)


@given(st.floats(0, 100), st.sampled_from("+-"), st.sampled_from(["", "%"]))
def test_what_is_printed_is_read(amount, sign, part):
    budget = Budget.parse(f"loss={sign}{amount:g}{part}")
    assert str(Budget.parse(str(budget))) == str(budget)


@pytest.mark.parametrize(
    "text", ["accuracy", "accuracy=0.5", "=-1", "loss=+", "loss=+-1", "loss=+nan", ""]
)
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="is no budget: write the metric"):
        Budget.parse(text)


def test_the_metric_among_those_reported():
    values = {"validation/main/loss": 1.0, "test/main/loss": 2.0, "main/accuracy": 0.5}
    assert Budget.parse("accuracy=-1").name_in(values) == "main/accuracy"
    assert Budget.parse("test/main/loss=+1").name_in(values) == "test/main/loss"
    with pytest.raises(ValueError, match="report several 'loss', but main/accuracy"):
        Budget.parse("loss=+1").name_in(values)
    with pytest.raises(ValueError, match="report no 'perplexity'"):
        Budget.parse("perplexity=+1").name_in(values)
