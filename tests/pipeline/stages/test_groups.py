"""Groups of microbatches through a stage, against one microbatch after the other."""

import contextlib

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

import chainer_kernels
from divisible import Divisible, pop, stash
from divisible.schedules import Schedule
from divisible.schedules.actions import Action
from pipeline import ActionError, Pipeline
from tests.support.examples import examples

M = 4


class Reports(chainer.Chain):
    """Reports the mean of its input."""

    def forward(self, x):
        chainer.report({"mean": F.mean(x)}, self)
        return x


class Counts(chainer.Link):
    """Has a persistent value that each call changes."""

    def __init__(self):
        super().__init__()
        self.add_persistent("n_calls", np.zeros(()))

    def forward(self, x):
        self.n_calls += 1
        return x


def centered(x):
    return x - F.broadcast_to(F.mean(x, axis=0, keepdims=True), x.shape)


def noisy(x):
    return x + np.random.randn(*x.shape).astype(x.dtype)


def two_dropouts(x):
    return F.dropout(F.relu(F.dropout(x, 0.3)))


def dropout_within_samples(x):
    """Drops out of three rows for each sample."""
    return F.reshape(F.dropout(F.reshape(x, (-1, 2)), 0.4), x.shape)


def dropout_across_samples(x):
    """Drops out where samples are not along the first axis."""
    return F.transpose(F.dropout(F.transpose(x)))


LAYERS = {
    "linear": lambda: L.Linear(6, 6),
    "dropout": lambda: F.dropout,
    "relu": lambda: F.relu,
    "norm": lambda: L.BatchNormalization(6),
    "layer norm": lambda: L.LayerNormalization(6),
    "reports": Reports,
    "counts": Counts,
    "centered": lambda: centered,
    "noise": lambda: noisy,
    "two dropouts": lambda: two_dropouts,
    "dropout and noise": lambda: lambda x: noisy(F.dropout(x)),
    "dropout within": lambda: dropout_within_samples,
    "dropout across": lambda: dropout_across_samples,
    "pair": lambda: lambda x: (x, 2 * x),
}


def build(names, has_skip, recomputes):
    np.random.seed(0)
    model = Divisible(L.Linear(6, 6))
    if has_skip:
        model.append(stash("a"))
    for number, name in enumerate(names):
        model.append(LAYERS[name](), recompute=recomputes and number % 2 == 0)
        if name == "pair":
            model.append(F.add)
    if has_skip:
        model.append(pop("a", F.add))
    return model.append(L.Linear(6, 4)) or model


def schedule_of(groups, weights):
    """Returns all forwards, then all backwards, of groups of some microbatches."""
    ends = np.cumsum(groups).tolist()
    parts = [range(end - n, end) for n, end in zip(groups, ends)]
    row = [Action(0, "F", part) for part in parts]
    if not weights:
        row += [Action(0, "B", part) for part in parts]
    else:
        row += [Action(0, "I", part) for part in parts]
        row.append(Action(0, "W", range(M)))
    return Schedule([row], n_microbatches=M)


def train(schedule, names, n_samples, has_skip=False, recomputes=False, dtype="f"):
    with chainer.using_config("dtype", np.dtype(dtype)):
        model = build(names, has_skip, recomputes)
    random = np.random.RandomState(1)
    x = random.randn(n_samples, 6).astype(dtype)
    t = random.randint(0, 4, n_samples).astype("i")
    with Pipeline(model, MPI.COMM_SELF, schedule=schedule) as pipe:
        results = [pipe.step(x, t), pipe.step(x, t)]
        results.append(pipe.evaluate(x, t))
        outputs = pipe.predict(x)
        params = [param.grad for _, param in sorted(model.namedparams())]
        values = [
            np.asarray(vars(link)[name])
            for _, link in sorted(model.namedlinks())
            for name in sorted(link._persistent)
        ]
    return results, [np.asarray(outputs), *params, *values]


@examples(30)
@given(
    st.lists(st.sampled_from([*LAYERS]), max_size=5),
    st.sampled_from([[2, 2], [4], [1, 3], [3, 1], [1, 1, 2]]),
    st.integers(1, 11),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_a_group_computes_what_its_microbatches_do(
    names, groups, n_samples, has_skip, recomputes, weights
):
    if {"norm", "centered"} & {*names}:
        # One sample minus its mean is rounding only.
        n_samples += 8
    options = names, n_samples, has_skip, recomputes
    single, expected = train(schedule_of([1] * M, False), *options)
    results, found = train(schedule_of(groups, weights), *options)
    for one, other in zip(results, single):
        assert one.keys() == other.keys()
        for name, value in other.items():
            assert one[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=5e-4)


def test_float16_in_groups():
    single, expected = train(schedule_of([1] * M, False), ["linear"], 8, dtype="e")
    results, found = train(schedule_of([4], True), ["linear"], 8, dtype="e")
    assert results[0]["loss"] == pytest.approx(single[0]["loss"], rel=1e-2)
    for one, other in zip(found, expected):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, atol=2e-2)


def calls_of(names, groups):
    """Returns how often a layer behind some others is called in a third minibatch."""
    calls = []
    model = build(names, False, False)
    model.insert(len(model) - 1, lambda x: calls.append(len(x)) or x)
    x, t = np.random.randn(8, 6).astype("f"), np.zeros(8, "i")
    with Pipeline(model, MPI.COMM_SELF, schedule=schedule_of(groups, False)) as pipe:
        for _ in range(2):
            pipe.step(x, t)
        calls.clear()
        pipe.step(x, t)
    return calls


def test_layers_run_once_for_a_group():
    assert calls_of(["dropout", "norm"], [4]) == [8]
    assert calls_of([], [1, 3]) == [2, 6]


class Dropouts(chainer.FunctionHook):
    """Counts the calls of dropout."""

    name = "Dropouts"

    def __init__(self):
        self.n_calls = 0

    def forward_preprocess(self, function, in_data):
        self.n_calls += function.label == "Dropout"


@pytest.mark.parametrize(
    "layer, n_calls",
    [
        (F.dropout, 1),
        (two_dropouts, 2),
        (dropout_within_samples, 1),
        (dropout_across_samples, M),
        (lambda x: noisy(F.dropout(x)), M),
    ],
)
def test_dropout_runs_once_for_a_group(layer, n_calls):
    model = Divisible(L.Linear(6, 6), layer, L.Linear(6, 4))
    x, t = np.random.randn(8, 6).astype("f"), np.zeros(8, "i")
    with Pipeline(model, MPI.COMM_SELF, schedule=schedule_of([4], False)) as pipe:
        pipe.step(x, t)
        with Dropouts() as dropouts:
            pipe.step(x, t)
    assert dropouts.n_calls == n_calls


class Recurrent(chainer.Chain):
    """Two layers of LSTM with dropout over texts of one length, or of several."""

    def __init__(self, has_one_length):
        super().__init__()
        self.has_one_length = has_one_length
        with self.init_scope():
            self.lstm = L.NStepLSTM(2, 3, 4, 0.4)

    def forward(self, x):
        steps = F.reshape(x, (len(x), 2, 3))
        lengths = [2 - (not self.has_one_length and i % 2) for i in range(len(x))]
        texts = [steps[i, :length] for i, length in enumerate(lengths)]
        _, _, ys = self.lstm(None, None, texts)
        return F.stack([y[-1] for y in ys])


@pytest.mark.parametrize("has_one_length", [True, False])
@pytest.mark.parametrize("has_kernels", [True, False])
def test_dropout_within_recurrent_layers(has_one_length, has_kernels):
    found, n_calls = [], []
    for groups in ([1] * M, [1, 3]):
        np.random.seed(0)
        model = Divisible(L.Linear(6, 6), Recurrent(has_one_length))
        x, t = np.random.RandomState(1).randn(12, 6).astype("f"), np.arange(12) % 4
        schedule = schedule_of(groups, False)
        with (
            contextlib.nullcontext() if has_kernels else chainer_kernels.disabled(),
            Pipeline(model, MPI.COMM_SELF, schedule=schedule) as pipe,
        ):
            pipe.step(x, t.astype("i"))
            with Dropouts() as dropouts:
                loss = pipe.step(x, t.astype("i"))["loss"]
        found.append([param.grad for _, param in sorted(model.namedparams())])
        found[-1].append(loss)
        n_calls.append(dropouts.n_calls)
    for one, other in zip(*found):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert (n_calls[1] < n_calls[0]) is has_one_length


class Sized(L.Linear):
    """Gets its size, and draws its weights, at its first call."""

    n_calls = 0

    def forward(self, x):
        self.n_calls += 1
        return super().forward(x)


def test_a_layer_that_draws_its_weights_runs_once_later():
    layer = Sized(None, 4)
    x, t = np.random.randn(8, 6).astype("f"), np.zeros(8, "i")
    schedule = schedule_of([4], False)
    with Pipeline(Divisible(layer), MPI.COMM_SELF, schedule=schedule) as pipe:
        for _ in range(2):
            pipe.step(x, t)
        n_before = layer.n_calls
        pipe.step(x, t)
    assert layer.n_calls == n_before + 1


def test_dropout_is_that_of_each_microbatch():
    masks, seen = [], []
    for groups in ([1] * M, [4], [1, 3]):
        model = Divisible(F.dropout, lambda x: seen.append(x.array.copy()) or x)
        x, t = np.ones((8, 6), "f"), np.zeros(8, "i")
        schedule = schedule_of(groups, False)
        with Pipeline(model, MPI.COMM_SELF, schedule=schedule, seed=3) as pipe:
            pipe.step(x, t)
            seen.clear()
            pipe.step(x, t)
        masks.append(np.concatenate(seen))
    np.testing.assert_array_equal(masks[0], masks[1])
    np.testing.assert_array_equal(masks[0], masks[2])


class Carries(chainer.Chain):
    """Goes on from its last call."""

    def __init__(self):
        super().__init__()
        self.total = 0.0

    def forward(self, x):
        self.total = self.total + 1.0
        return x * self.total


@pytest.mark.parametrize(
    "layer, message",
    [
        (F.sum, "a value between layers has none: Variable"),
        (lambda x: F.concat([x, x[:1]], 0), "a value between layers has the shape"),
        (Carries(), "change from call to call"),
    ],
)
def test_layers_that_cannot_run_in_groups(layer, message):
    model = Divisible(L.Linear(6, 6), layer, L.Linear(6, 4))
    x, t = np.ones((8, 6), "f"), np.zeros(8, "i")
    with (
        Pipeline(model, MPI.COMM_SELF, schedule=schedule_of([4], False)) as pipe,
        pytest.raises(
            ActionError, match="0F0-3 failed .* microbatches 0 to 3"
        ) as error,
    ):
        pipe.step(x, t)
    assert message in str(error.value) and "in layer 1" in str(error.value)
    assert "groups of 1" in str(error.value)


def test_samples_of_several_lengths():
    lengths = iter([3, 3, 2, 2] * 9)

    def shortened(x):
        return x[:, : next(lengths)]

    model = Divisible(shortened, lambda x: F.sum(x, axis=1, keepdims=True) * np.ones(4))
    x, t = np.ones((8, 6), "f"), np.zeros(8, "i")
    with (
        Pipeline(model, MPI.COMM_SELF, schedule=schedule_of([4], False)) as pipe,
        pytest.raises(ActionError, match=r"float32 \(2,\) and float32 \(3,\)"),
    ):
        pipe.step(x, t)


def test_a_group_of_one_microbatch_finds_out_nothing():
    """A minibatch with one sample comes first; then rows would be mixed."""
    found = []
    for groups in ([1] * M, [4]):
        np.random.seed(0)
        model = Divisible(L.Linear(6, 6), centered, L.Linear(6, 4))
        x, t = np.random.RandomState(1).randn(8, 6).astype("f"), np.arange(8) % 4
        t = t.astype("i")
        schedule = schedule_of(groups, False)
        with Pipeline(model, MPI.COMM_SELF, schedule=schedule) as pipe:
            pipe.step(x[:1], t[:1])
            found.append([pipe.step(x, t)["loss"] for _ in range(2)])
    assert found[1] == pytest.approx(found[0], rel=1e-5)
