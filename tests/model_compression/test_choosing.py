import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_compression.choosing import least_loss, most_saved

TRIALS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 20)),
    min_size=1,
    max_size=7,
)


def choices(layers):
    """All choices of at most one trial of each layer."""
    for chosen in itertools.product([False, True], repeat=len(layers)):
        numbers = [i for i, is_in in enumerate(chosen) if is_in]
        if len({layers[i] for i in numbers}) == len(numbers):
            yield numbers


@given(TRIALS, st.integers(1, 30))
def test_the_least_loss_that_saves_enough(trials, wanted):
    layers = [layer for layer, _, _ in trials]
    losses = np.array([loss for _, loss, _ in trials], float)
    saved = np.array([[save for _, _, save in trials]], float)
    enough = [c for c in choices(layers) if saved[0, c].sum() >= wanted]
    found = least_loss(layers, saved, losses, [wanted])
    if not enough:
        assert found is None
        return
    assert found in enough
    least = min(losses[c].sum() for c in enough)
    assert losses[found].sum() == least
    # Of equal losses, the least change.
    alike = [saved[0, c].sum() for c in enough if losses[c].sum() == least]
    assert saved[0, found].sum() == min(alike)


@given(TRIALS, st.integers(0, 20))
def test_the_most_saved_within_a_budget(trials, budget):
    layers = [layer for layer, _, _ in trials]
    losses = np.array([loss for _, loss, _ in trials], float)
    saved = np.array([save for _, _, save in trials], float)
    found = most_saved(layers, saved, losses, budget)
    within = [c for c in choices(layers) if losses[c].sum() <= budget]
    assert found in [*choices(layers)] and losses[found].sum() <= budget
    assert saved[found].sum() == max(saved[c].sum() for c in within)


def test_without_trials_nothing_is_chosen():
    assert most_saved([], np.zeros(0), np.zeros(0), 1.0) == []
    assert least_loss([], np.zeros((1, 0)), np.zeros(0), [1.0]) is None


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e9])
def test_amounts_may_be_in_any_unit(unit):
    saved = unit * np.array([[3.0, 1.0, 2.0]])
    losses = np.array([5.0, 1.0, 2.0])
    assert least_loss(["a", "b", "c"], saved, losses, [3 * unit]) == [1, 2]


def test_small_losses_are_compared_beside_a_large_one():
    random = np.random.default_rng(0)
    layers = [layer for layer in "abcdefgh" for _ in range(4)]
    losses = 1e-3 * random.integers(1, 50, 32)
    saved = random.integers(1, 100, (1, 32)).astype(float)
    expected = losses[least_loss(layers, saved, losses, [300.0])].sum()
    layers, losses = [*layers, "i"], np.append(losses, 1e5)
    found = least_loss(layers, np.append(saved, [[1.0]], axis=1), losses, [300.0])
    assert losses[found].sum() == pytest.approx(expected)
