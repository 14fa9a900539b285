"""Class labels: which are taken, and which count."""

from functools import partial

import chainer.functions as F
import numpy as np
import pytest

from pipeline.stages.labels import highest_label, label_left_out


@pytest.mark.parametrize(
    "labels, ignored, highest",
    [
        ([0, 3, 1], -1, 3),
        ([2, -1], -1, 2),
        ([-1, -1], -1, -1),
        ([], -1, -1),
        ([4, 7, 7], 7, 4),
    ],
)
def test_the_highest_label_to_learn(labels, ignored, highest):
    assert highest_label(np.array(labels, np.int32), ignored) == highest


def test_probabilities_are_no_labels():
    assert highest_label(np.full((2, 3), 1 / 3, np.float32), -1) == -1


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, bool])
def test_other_types_are_refused(dtype):
    with pytest.raises(TypeError, match=r"astype\('int32'\)"):
        highest_label(np.zeros(2, dtype), -1)


def test_negative_labels_are_refused():
    with pytest.raises(ValueError, match="label -2: labels start at 0, and only -1"):
        highest_label(np.array([1, -2, -1]), -1)


@pytest.mark.parametrize(
    "function, label",
    [
        (F.softmax_cross_entropy, -1),
        (partial(F.softmax_cross_entropy, ignore_label=5), 5),
        (partial(F.softmax_cross_entropy, normalize=False), None),
        (F.accuracy, None),
        (partial(F.accuracy, ignore_label=2), 2),
        (F.mean_squared_error, None),
    ],
)
def test_the_label_that_a_mean_leaves_out(function, label):
    assert label_left_out(function) == label
