import functools

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.gradient_check import check_backward
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax

from model_compression import Distillation


def batch(seed, shape, ignored=0.0):
    rng = np.random.default_rng(seed)
    y, scores = (rng.normal(0, 2, shape) for _ in range(2))
    labels = shape[:1] + shape[2:]
    t = rng.integers(shape[1], size=labels)
    return y, np.where(rng.random(labels) < ignored, -1, t).astype(np.int32), scores


def by_the_paper(y, t, scores, weight, temperature):
    """Sample by sample; both terms by their definitions."""
    found = []
    for i, *rest in np.argwhere(t >= 0):
        mine, theirs = y[(i, slice(None), *rest)], scores[(i, slice(None), *rest)]
        hard = -log_softmax(mine)[t[(i, *rest)]]
        p, q = softmax(theirs / temperature), softmax(mine / temperature)
        soft = temperature**2 * (p * np.log(p / q)).sum()
        found.append((1 - weight) * hard + weight * soft)
    return np.mean(found) if found else 0.0


@given(
    st.integers(0, 99),
    st.sampled_from([(3, 4), (2, 5, 3), (1, 2, 2, 3)]),
    st.sampled_from([0.0, 0.4, 1.0]),
    st.floats(0, 1),
    st.floats(0.5, 8),
)
def test_the_loss_is_that_of_its_definition(seed, shape, ignored, weight, temperature):
    y, t, scores = batch(seed, shape, ignored)
    loss, n_labels = Distillation(weight=weight, temperature=temperature)(y, t, scores)
    assert n_labels == (t >= 0).sum()
    expected = by_the_paper(y, t, scores, weight, temperature)
    np.testing.assert_allclose(loss.array, expected, rtol=1e-8, atol=1e-8)


def test_gradients_are_those_of_the_definition():
    y, t, scores = batch(1, (3, 4, 2), 0.3)
    lossfun = Distillation(weight=0.7, temperature=3.0)
    check_backward(
        lambda y: lossfun(y, t, scores)[0], y, np.ones(()), dtype=np.float64, atol=1e-6
    )


@pytest.mark.parametrize("weight", [0, 1])
def test_at_the_ends_one_of_the_two_counts(weight):
    y, t, scores = batch(2, (5, 4))
    loss = functools.partial(Distillation(weight=weight), y)
    other = scores[::-1].copy() if weight == 0 else scores
    labels = t[::-1].copy() if weight == 1 else t
    assert float(loss(labels, other)[0].array) == float(loss(t, scores)[0].array)
    if weight == 0:
        expected = F.softmax_cross_entropy(y, t)
        np.testing.assert_allclose(loss(t, scores)[0].array, expected.array)
    else:
        assert abs(float(loss(t, y)[0].array)) < 1e-12


def test_masked_classes_and_ignored_labels_count_nothing():
    y, t, scores = batch(6, (4, 3))
    t[1] = -1
    scores[:, 2] = -np.inf
    scores[1] = np.nan
    variable = chainer.Variable(y)
    loss, _ = Distillation(weight=1.0)(variable, t, scores)
    p, q = softmax(scores[:, :2], axis=1), softmax(y, axis=1)[:, :2]
    found = (p * np.log(p / q)).sum(axis=1)[[0, 2, 3]].mean()
    np.testing.assert_allclose(loss.array, found)
    loss.backward()
    assert np.isfinite(variable.grad).all() and not variable.grad[1].any()
    # What is no number where it counts is not hidden.
    scores[0] = np.nan
    assert np.isnan(Distillation(weight=1.0)(y, t, scores)[0].array)


@pytest.mark.parametrize("score", [-np.inf, -1000.0])
def test_a_class_that_both_mask_counts_nothing(score):
    y, t, scores = batch(7, (4, 3))
    t %= 2
    scores[:, 2] = score
    lossfun = Distillation(weight=0.5)
    few = chainer.Variable(y[:, :2].copy())
    expected, _ = lossfun(few, t, scores[:, :2])
    expected.backward()
    masked = chainer.Variable(np.where(np.arange(3) == 2, -np.inf, y))
    loss, _ = lossfun(masked, t, scores)
    loss.backward()
    np.testing.assert_allclose(loss.array, expected.array)
    np.testing.assert_allclose(masked.grad[:, :2], few.grad, atol=1e-12)
    assert not masked.grad[:, 2].any()


def test_without_a_teacher_it_is_the_cross_entropy():
    y, t, _ = batch(2, (5, 4), 0.3)
    loss, n_labels = Distillation(weight=0.9)(y, t)
    assert float(loss.array) == float(F.softmax_cross_entropy(y, t).array)
    assert n_labels == (t >= 0).sum()


def test_the_teacher_gets_no_gradients():
    y, t, scores = map(chainer.Variable, batch(3, (2, 3)))
    loss, _ = Distillation()(y, t, scores)
    loss.backward()
    assert y.grad is not None and scores.grad is None


def test_the_dtype_is_that_of_the_scores():
    y, t, scores = batch(4, (2, 3))
    loss, _ = Distillation()(y.astype(np.float32), t, scores)
    assert loss.dtype == np.float32


def test_the_accuracy_is_that_of_the_model():
    y = np.eye(3, dtype=np.float32)
    accuracy, n_labels = Distillation().accuracy(y, np.array([0, 1, -1]), y[::-1])
    assert (float(accuracy.array), n_labels) == (1.0, 2)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"weight": 1.1}, "weight must be from 0 to 1, not 1.1"),
        ({"weight": float("nan")}, "weight must be from 0 to 1"),
        ({"temperature": 0}, "temperature must be a number above 0, not 0"),
        ({"temperature": float("inf")}, "temperature must be"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Distillation(**options)


def test_scores_of_other_samples_are_refused():
    y, t, scores = batch(5, (4, 3))
    with pytest.raises(ValueError, match=r"have the shape \(2, 3\), but those of the"):
        Distillation()(y, t, scores[:2])
