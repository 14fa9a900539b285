import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.supervision.budget import Budget


@given(st.integers(0, 5), st.integers(1, 50), st.lists(st.integers(0, 200)))
def test_a_budget_never_grows_beyond_its_beginning(most, recover, ends):
    budget = Budget(most, recover)
    for n_saved in ends:
        left, budget = budget.left, budget.after(200, n_saved)
        assert budget.left == min(left + n_saved // recover, most) - 1
        if budget.is_spent:
            assert left == 0 and n_saved < recover or most == 0
            break


def test_steps_that_no_snapshot_has_give_nothing_back():
    budget = Budget(most=3)
    for left in (2, 1, 0):
        budget = budget.after(n_steps=450)
        assert budget.left == left
    assert budget.after(n_steps=450).is_spent


def test_pauses_grow_only_without_progress():
    budget = Budget(most=9)
    pauses = []
    for n_steps in (0, 0, 0, 3, 0):
        budget = budget.after(n_steps)
        pauses.append(budget.pause)
    assert pauses == [1.0, 2.0, 4.0, 0.0, 1.0]


@pytest.mark.parametrize("wrong", [{"most": -1}, {"steps_to_recover": 0}])
def test_wrong_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match="give"):
        Budget(**wrong)
