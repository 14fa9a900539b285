"""The samples of the language model."""

import numpy as np
import pytest

from examples.language_model.data import Samples, in_columns


def samples(n, n_positions=3):
    words = np.arange(n * n_positions, dtype="i").reshape(n, n_positions)
    return Samples(words, words + 1)


def test_minibatches_continue_their_columns():
    found = in_columns(samples(7), 2)
    assert found.x[:, 0].tolist() == [0, 9, 3, 12, 6, 15]
    np.testing.assert_array_equal(found.t, found.x + 1)


def test_more_columns_than_samples_are_refused():
    message = "256 samples of a minibatch are more than the 7 of 60 words .* take fewer"
    with pytest.raises(ValueError, match=message):
        in_columns(samples(7, 60), 256)
