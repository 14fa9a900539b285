import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_compression.progress import CURVES, Progress

RULE = "Prune('l1')"


def test_one_step_is_due_from_its_moment_on():
    course = Progress.checked((2, "epoch"), None, None, "cubic", RULE)
    assert [course.due(100, epoch) for epoch in (0, 1.99, 2, 9)] == [0, 0, 1, 1]
    assert course.share(1) == 1


@given(
    st.integers(0, 50),
    st.integers(1, 60),
    st.integers(2, 12),
    st.sampled_from(sorted(CURVES)),
)
def test_every_step_comes_once_and_the_last_one_at_the_end(begin, length, n, curve):
    end = begin + length
    course = Progress.checked((begin, "iteration"), (end, "iteration"), n, curve, RULE)
    due = [course.due(iteration, 0) for iteration in range(end + 2)]
    assert due == sorted(due)
    assert due[begin] == 1 and (begin == 0 or due[begin - 1] == 0)
    assert due[end] == n and due[end - 1] < n
    shares = [course.share(step) for step in range(n + 1)]
    assert shares[0] == 0 and shares[-1] == 1 and shares == sorted(shares)


@pytest.mark.parametrize("n", [3, 7, 10])
def test_steps_in_parts_of_an_epoch_come_at_their_minibatches(n):
    course = Progress.checked((1, "epoch"), (4, "epoch"), n, "linear", RULE)
    per_epoch = 7
    due = [course.due(i, i / per_epoch) for i in range(5 * per_epoch)]
    assert due[per_epoch] == 1
    assert due[4 * per_epoch] == n
    assert {*range(1, n + 1)} <= set(due)


@pytest.mark.parametrize(
    "begin, end, steps, curve, words",
    [
        ((3, "epoch"), (3, "epoch"), None, "cubic", "ends at epoch 3, but begins at"),
        ((3, "epoch"), (40, "iteration"), None, "cubic", "in the same unit"),
        ((3, "hours"), None, None, "cubic", "begin must be a number and 'epoch'"),
        ((-1, "epoch"), None, None, "cubic", "begin must be"),
        (3, None, None, "cubic", "begin must be"),
        (("x", "epoch"), None, None, "cubic", "begin must be"),
        ((0, "epoch"), (2, "epoch"), 1, "cubic", "steps must be 2 or more"),
        ((0, "epoch"), None, 5, "cubic", "5 steps need an end"),
        ((0, "epoch"), None, None, "square", "curve must be one of cubic, linear"),
    ],
)
def test_a_course_that_cannot_be_followed_is_refused(begin, end, steps, curve, words):
    with pytest.raises(ValueError, match=words) as caught:
        Progress.checked(begin, end, steps, curve, RULE)
    assert RULE in str(caught.value)
