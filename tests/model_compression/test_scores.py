import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from model_compression.scores import (
    check_granularity,
    group_shape,
    lowest,
    score,
    spread,
    sums,
)

SHAPES = hnp.array_shapes(min_dims=2, max_dims=4, max_side=7)
GRANULARITIES = st.sampled_from(["element", "row", "channel"]) | st.tuples(
    st.integers(1, 5), st.integers(1, 5)
)


@given(SHAPES, GRANULARITIES)
def test_groups_divide_a_weight(shape, granularity):
    numbers = np.arange(np.prod(group_shape(shape, granularity)))
    groups = numbers.reshape(group_shape(shape, granularity))
    of_elements = spread(groups, shape, granularity)
    assert of_elements.shape == shape
    assert set(of_elements.ravel()) == set(numbers)
    # Whoever adds up over the elements of a group gets what sums() gives.
    values = np.random.default_rng(0).normal(size=shape)
    expected = np.bincount(of_elements.ravel(), values.ravel(), len(numbers))
    found = sums(values, granularity)
    np.testing.assert_allclose(found.ravel(), expected, atol=1e-12)


@given(SHAPES, st.tuples(st.integers(1, 4), st.integers(1, 4)))
def test_blocks_are_rectangles_of_the_matrix(shape, block):
    numbers = np.arange(np.prod(group_shape(shape, block)))
    groups = numbers.reshape(group_shape(shape, block))
    matrix = spread(groups, shape, block).reshape(shape[0], -1)
    for (row, column), number in np.ndenumerate(matrix):
        assert number == groups[row // block[0], column // block[1]]


def test_scores_are_what_their_names_say():
    weight = np.array([[3, -4], [0.5, 0]], np.float32)
    assert score("l1", weight, "row").ravel().tolist() == [7, 0.5]
    assert score("l2", weight, "row").ravel().tolist() == [5, 0.5]
    assert score("magnitude", weight, "row").ravel().tolist() == [3.5, 0.25]
    for method in ("l1", "l2", "magnitude"):
        np.testing.assert_array_equal(score(method, weight, "element"), abs(weight))


def test_smaller_blocks_at_the_edge_are_not_less_important_by_mean():
    weight = np.ones((3, 3), np.float32)
    assert (score("magnitude", weight, (2, 2)) == 1).all()


@given(
    hnp.arrays(np.float64, st.integers(1, 40), elements=st.integers(0, 5)),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_pruning_in_two_steps_keeps_to_the_degree_and_to_the_first(scores, one, two):
    first = lowest(scores, np.zeros(len(scores), bool), min(one, two))
    more = lowest(scores, first, max(one, two))
    assert not (first & more).any()
    n_most = len(scores) - 1
    assert first.sum() == min(n_most, int(min(one, two) * len(scores) + 0.5))
    assert (first | more).sum() == min(n_most, int(max(one, two) * len(scores) + 0.5))
    kept = ~(first | more)
    if kept.any() and more.any():
        assert scores[more].max() <= scores[kept].min()


@given(st.integers(1, 9), st.floats(0, 0.999))
def test_one_group_remains(n, degree):
    pruned = np.zeros((n, 1), bool)
    assert lowest(np.ones((n, 1)), pruned, degree).sum() < n


@pytest.mark.parametrize("wrong", ["column", (0, 2), (2,), (2, 2, 2), 4, ("a", "b")])
def test_other_granularities_are_refused(wrong):
    with pytest.raises(ValueError, match="granularity must be one of element"):
        check_granularity(wrong, "a rule")
