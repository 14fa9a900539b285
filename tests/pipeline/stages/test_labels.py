"""Class labels: which are taken, and which count."""

from functools import partial

import chainer.functions as F
import numpy as np
import pytest

from pipeline.stages.labels import check_labels, highest_label, label_left_out, unwrap


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
        (F.sigmoid_cross_entropy, -1),
        (partial(F.sigmoid_cross_entropy, normalize=False), None),
        (F.binary_accuracy, -1),
        (F.accuracy, None),
        (partial(F.accuracy, ignore_label=2), 2),
        (F.mean_squared_error, None),
    ],
)
def test_the_label_that_a_mean_leaves_out(function, label):
    assert label_left_out(function) == label


class OwnLoss:
    """A loss of the user's own, which calls a function that it keeps."""

    def __init__(self):
        self.func = F.softmax_cross_entropy
        self.keywords = {"ignore_label": 5}

    def __call__(self, y, t):
        return self.func(y, t, ignore_label=0)


def test_a_loss_with_an_attribute_func_is_no_partial():
    loss = OwnLoss()
    assert unwrap(loss) == (loss, {})
    assert label_left_out(loss) is None


def scores(*shape):
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    "y, t, message",
    [
        (
            scores(3, 4),
            np.zeros((3, 1), int),
            r"shape \(3,\): use t.reshape\(len\(t\)\)",
        ),
        (
            scores(3, 4, 2),
            np.zeros((3, 1, 2), int),
            r"labels of the shape \(3, 2\): use t.reshape\(len\(t\), 2\)",
        ),
        (scores(3, 4), np.eye(4)[:3].astype(int), r"if they are one-hot, use t.argmax"),
        (scores(3, 4), np.zeros((3, 2), int), r"takes labels of the shape \(3,\)$"),
        (scores(3, 4), scores(3, 5), r"the last layer returned \(3, 4\)"),
        (scores(3), np.zeros(3, int), r"takes scores of the shape \(samples, classes"),
        (scores(3, 4), np.zeros(2, int), "has 3 samples but 2 targets"),
        (scores(3, 4), np.full(3, 4), "has the label 4, but the model has 4 outputs"),
    ],
)
def test_targets_that_do_not_fit_are_refused(y, t, message):
    highest = -1 if t.dtype.kind == "f" else t.max()
    with pytest.raises(ValueError, match=message):
        check_labels(0, y, t, highest, -1)


@pytest.mark.parametrize(
    "y, t",
    [
        (scores(3, 4), np.zeros(3, int)),
        (scores(3, 4, 2, 2), np.zeros((3, 2, 2), int)),
        (scores(3, 4), scores(3, 4)),
        (scores(0, 4), np.zeros(0, int)),
    ],
)
def test_targets_that_fit(y, t):
    check_labels(0, y, t, 0, -1)
