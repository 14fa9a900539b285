"""Means over samples that count, however the microbatches have them."""

import functools
import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from divisible import Divisible
from pipeline import Pipeline, PipelineEvaluator
from pipeline.stages.counted_mean import CountedMean
from tests.support.matrix import matrix

N, N_CLASSES = 10, 4
_rng = np.random.RandomState(0)
X = _rng.normal(size=(N, 6)).astype(np.float32)
# In three microbatches, of 4, 3 and 3 samples, one, three and two of them count.
T = np.array([-1, -1, 2, -1, 0, 3, 1, 1, 2, -1], np.int32)
# Nothing of the first microbatch counts.
LATE = np.where(np.arange(N) < 4, -1, np.abs(T)).astype(np.int32)
NOTHING = np.full(N, -1, np.int32)
MANY = _rng.randint(0, 2, (N, N_CLASSES)).astype(np.int32)
MANY[:2], MANY[4, 1:], MANY[9, 0] = -1, -1, -1
CLASS_WEIGHT = np.array([1, 2, 3, 4], np.float32)


def told(y, t):
    """A mean over some samples, with their number; of no sample it is no number."""
    n = (t != -1).sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        return F.sum(F.softmax_cross_entropy(y, t, reduce="no")) / n, n


def weighted(y, t):
    """A mean by weights of the classes, which says the sum of them."""
    weights = np.where(t == -1, 0, CLASS_WEIGHT[t])
    losses = F.softmax_cross_entropy(y, t, class_weight=CLASS_WEIGHT, reduce="no")
    return F.sum(losses) / max(weights.sum(), 1e-6), weights.sum()


class Steps:
    """Each of several steps is a mean of its own."""

    def __call__(self, y, t):
        losses = [F.sigmoid_cross_entropy(y[:, i], t[:, i]) for i in range(N_CLASSES)]
        return sum(losses) / N_CLASSES


def each_sample(y, t):
    losses = [
        F.sigmoid_cross_entropy(y[i : i + 1], t[i : i + 1]) for i in range(len(y))
    ]
    return sum(losses) / len(y)


def numpy_accuracy(y, t):
    counts = t != -1
    return (y.array.argmax(axis=1) == t)[counts].mean()


def told_accuracy(y, t):
    counts = t != -1
    return (y.array.argmax(axis=1) == t)[counts].sum() / max(
        1, counts.sum()
    ), counts.sum()


EXACT = {
    "softmax": (F.softmax_cross_entropy, T),
    "lambda": (lambda y, t: F.softmax_cross_entropy(y, t), T),
    "lambda, nothing first": (lambda y, t: 2 * F.softmax_cross_entropy(y, t), LATE),
    "of all": (functools.partial(F.softmax_cross_entropy, normalize=False), T),
    "lambda of all": (lambda y, t: F.softmax_cross_entropy(y, t, normalize=False), T),
    "weights": (
        functools.partial(F.softmax_cross_entropy, class_weight=CLASS_WEIGHT),
        T,
    ),
    "lambda with weights": (
        lambda y, t: F.softmax_cross_entropy(y, t, class_weight=CLASS_WEIGHT),
        T,
    ),
    "label 2": (lambda y, t: F.softmax_cross_entropy(y, t, ignore_label=2), np.abs(T)),
    "mean": (lambda y, t: F.mean(F.softmax_cross_entropy(y, t, reduce="no")), T),
    "two heads": (
        lambda y, t: F.softmax_cross_entropy(y, t) + F.softmax_cross_entropy(2 * y, t),
        T,
    ),
    "regularized": (
        lambda y, t: F.softmax_cross_entropy(y, t) + F.mean(CLASS_WEIGHT[1:] * 1.5),
        T,
    ),
    "regularized, summed": (
        lambda y, t: F.softmax_cross_entropy(y, t) + F.sum(CLASS_WEIGHT[1:] * 1.5),
        T,
    ),
    "double backprop": (
        functools.partial(F.softmax_cross_entropy, enable_double_backprop=True),
        T,
    ),
    "sigmoid": (F.sigmoid_cross_entropy, MANY),
    "lambda sigmoid": (lambda y, t: F.sigmoid_cross_entropy(y, t), MANY),
    "flat": (lambda y, t: F.sigmoid_cross_entropy(F.flatten(y), t.ravel()), MANY),
    "some": (lambda y, t: F.sigmoid_cross_entropy(y[:, 1:], t[:, 1:]), MANY),
    "sigmoid of all": (
        functools.partial(F.sigmoid_cross_entropy, normalize=False),
        MANY,
    ),
    "each sample": (each_sample, MANY),
    "squares": (F.mean_squared_error, MANY.astype(np.float32)),
    "differences": (F.mean_absolute_error, MANY.astype(np.float32)),
    "sum": (lambda y, t: F.sum((y - t) ** 2) / len(t), MANY.astype(np.float32)),
    "signs": (lambda y, t: F.mean((y[:, 0] - t.astype("f")) ** 2), np.sign(T - 1)),
    "told": (told, T),
    "told, nothing first": (told, LATE),
    "told weights": (weighted, T),
}

UNKNOWN = {
    "masked": (lambda y, t: told(y, t)[0], T),
    "average": (
        lambda y, t: F.average(
            F.softmax_cross_entropy(y, t, reduce="no"), weights=(t != -1).astype("f")
        ),
        T,
    ),
    "double backprop": (
        lambda y, t: F.softmax_cross_entropy(y, t, enable_double_backprop=True),
        T,
    ),
    "selected": (lambda y, t: F.softmax_cross_entropy(y[t >= 0], t[t >= 0]), T),
    "selected squares": (lambda y, t: F.mean(y[t >= 0] ** 2), T),
    "steps": (Steps(), MANY),
    "two tasks": (lambda y, t: F.softmax_cross_entropy(y, t) + F.mean(y**2), T),
    "two tasks, summed": (
        lambda y, t: F.softmax_cross_entropy(y, t) + F.sum(y**2) / len(t),
        T,
    ),
}


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def net():
    np.random.seed(0)
    return Divisible(L.Linear(6, 5), F.tanh, L.Linear(5, N_CLASSES))


def serial(function, t):
    model = net()
    loss = function(model(X), t)
    loss = loss[0] if isinstance(loss, tuple) else loss
    model.cleargrads()
    loss.backward()
    return float(loss.array), {path: p.grad for path, p in model.namedparams()}


def check_equal(pipe, t, expected, gradients):
    assert pipe.step(X, t)["loss"] == pytest.approx(expected, rel=1e-5)
    for stage in pipe.stages.values():
        for path, param in stage.namedparams():
            np.testing.assert_allclose(param.grad, gradients[path], 1e-4, 1e-6)
    assert pipe.evaluate(X, t)["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("n_microbatches", [3, 12, *matrix(1, 7, 10)])
@pytest.mark.parametrize("name", EXACT)
def test_a_loss_is_that_of_the_undivided_minibatch(name, n_microbatches):
    function, t = EXACT[name]
    expected = serial(function, t)
    options = {"lossfun": function, "accfun": None}
    with Pipeline(
        net().divide(), MPI.COMM_SELF, n_microbatches=n_microbatches, **options
    ) as pipe:
        check_equal(pipe, t, *expected)


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_loss_that_cannot_be_seen_through_is_warned_of_once(name):
    function, t = UNKNOWN[name]
    options = {"lossfun": function, "accfun": None}
    with Pipeline(net().divide(), MPI.COMM_SELF, n_microbatches=3, **options) as pipe:
        with pytest.warns(UserWarning, match="lossfun, .*'return loss, n'") as found:
            pipe.step(X, t)
        assert found[0].filename == __file__
        pipe.step(X, t)
        pipe.evaluate(X, t)


@pytest.mark.parametrize(
    "accfun, t",
    [
        (F.binary_accuracy, MANY),
        (lambda y, t: F.binary_accuracy(y, t), MANY),
        (lambda y, t: F.accuracy(y, t), np.abs(T)),
        (lambda y, t: F.accuracy(y, t, ignore_label=-1), T),
        (told_accuracy, T),
    ],
)
def test_an_accuracy_is_that_of_the_undivided_minibatch(accfun, t):
    expected = accfun(net()(X), t)
    expected = expected[0] if isinstance(expected, tuple) else expected
    options = {"lossfun": lambda y, t: F.mean(y), "accfun": accfun}
    with Pipeline(net().divide(), MPI.COMM_SELF, n_microbatches=3, **options) as pipe:
        for call in (pipe.step, pipe.evaluate):
            result = call(X, t)["accuracy"]
            assert result == pytest.approx(float(chainer.as_array(expected)))


def test_an_accuracy_without_functions_of_chainer_is_warned_of():
    options = {"accfun": numpy_accuracy}
    with Pipeline(net().divide(), MPI.COMM_SELF, n_microbatches=3, **options) as pipe:
        pipe.evaluate(X, np.abs(T))
        with pytest.warns(UserWarning, match="accfun, numpy_accuracy, seems to leave"):
            pipe.evaluate(X, T)


@pytest.mark.parametrize(
    "function",
    [F.softmax_cross_entropy, lambda y, t: F.softmax_cross_entropy(y, t), weighted],
)
def test_where_nothing_counts_the_gradients_are_zero(function):
    options = {"lossfun": function, "accfun": None}
    with Pipeline(net().divide(), MPI.COMM_SELF, n_microbatches=3, **options) as pipe:
        check_equal(pipe, NOTHING, *serial(function, NOTHING))


def test_a_classifier_and_what_it_reports():
    def make():
        np.random.seed(1)
        accfun = functools.partial(F.accuracy, ignore_label=-1)
        return L.Classifier(L.Linear(N_CLASSES, N_CLASSES), accfun=accfun)

    model, head = net(), make()
    loss = head(model(X), T)
    head.cleargrads()
    loss.backward()
    lossfun = make()
    with Pipeline(
        net().divide(), MPI.COMM_SELF, n_microbatches=3, lossfun=lossfun, accfun=None
    ) as pipe:
        for call in (pipe.step, pipe.evaluate):
            result = call(X, T)
            for name in ("loss", "/loss/loss"):
                assert result[name] == pytest.approx(float(loss.array), rel=1e-5)
            accuracy = float(head.accuracy.array)
            assert result["/loss/accuracy"] == pytest.approx(accuracy)
    W = lossfun.predictor.W
    np.testing.assert_allclose(W.grad, head.predictor.W.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("name", ["lambda", "lambda sigmoid", "told", "told weights"])
def test_evaluation_is_the_mean_over_the_data_set(name, at_once):
    function, t = EXACT[name]
    expected, _ = serial(function, t)
    iterator = chainer.iterators.SerialIterator(
        list(zip(X, t)), 2, repeat=False, shuffle=False
    )
    options = {"lossfun": function, "accfun": None}
    with Pipeline(net().divide(), MPI.COMM_SELF, n_microbatches=2, **options) as pipe:
        result = PipelineEvaluator(iterator, pipe, at_once=at_once)()
    assert result["main/loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "n, message",
    [
        (-1, "lossfun says that it counts -1 samples"),
        (float("nan"), "lossfun says that it counts nan samples"),
        (np.ones(2), r"not array\(\[1., 1.\]\) as that number"),
        (chainer.Variable(np.ones((), "f")), r"not variable\(1.\) as that number"),
        (True, "not True as that number"),
        ("3", "not '3' as that number"),
    ],
)
def test_numbers_of_samples_that_are_none_are_refused(n, message):
    options = {"lossfun": lambda y, t: (F.mean(y), n), "accfun": None}
    pipe = Pipeline(net().divide(), MPI.COMM_SELF, n_microbatches=3, **options)
    with pytest.raises(RuntimeError, match=message):
        pipe.step(X, T)


def test_a_loss_says_its_number_always_or_never():
    def sometimes(y, t):
        return (F.mean(y), 3) if len(y) == 3 else F.mean(y)

    pipe = Pipeline(net().divide(), MPI.COMM_SELF, n_microbatches=3, lossfun=sometimes)
    with pytest.raises(RuntimeError, match="or for none: it does for microbatch 1"):
        pipe.step(X, T)


@pytest.mark.parametrize(
    "function, expected",
    [
        (F.softmax_cross_entropy, int((T != -1).sum())),
        (functools.partial(F.softmax_cross_entropy, ignore_label=2), 8),
        (F.mean_squared_error, N),
        (told, None),
        (L.Classifier(L.Linear(6, N_CLASSES)), None),
    ],
)
def test_how_many_count_is_known_beforehand_of_some_functions(function, expected):
    mean = CountedMean("lossfun", function)
    parts = np.split(T, [4, 7])
    mean.start([(part,) for part in parts], parts)
    assert mean.n_known == expected
    if expected is not None:
        assert mean.correction == 1
