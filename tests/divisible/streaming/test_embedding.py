"""Streamed embeddings compute what resident ones do, and touch the rows they need."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.optimizer_hooks import GradientClipping, GradientNoise, WeightDecay
from hypothesis import given
from hypothesis import strategies as st

from divisible import Divisible, deferred_init
from divisible.streaming import Streamed, mapped
from divisible.streaming.embedding_parameter import EmbeddingParameter, _runs

N_WORDS, WIDTH = 60, 6


def model(streamed, ignored=None, dtype=np.float32):
    """An embedding of three words, and a layer."""
    with chainer.using_config("dtype", dtype), deferred_init(seed=2):
        words = L.EmbedID(N_WORDS, WIDTH, ignore_label=ignored)
        if streamed:
            words = Streamed(words, segment=7)
        return Divisible(words, L.Linear(3 * WIDTH, 4)).divide()


def train(stage, optimizer, hooks=(), rule_hooks=(), n_steps=6, n_parts=2):
    """Returns the losses of some steps, each of some microbatches."""
    optimizer.setup(stage)
    for hook in hooks:
        optimizer.add_hook(hook)
    for hook in rule_hooks:
        stage[0].W.update_rule.add_hook(hook)
    random, losses = np.random.RandomState(0), []
    for _ in range(n_steps):
        stage.cleargrads()
        x = random.randint(-1 if stage[0].ignore_label == -1 else 0, 9, (8, 3))
        for part in np.array_split(x.astype("i"), n_parts):
            y = stage(part)
            loss = F.mean_squared_error(y, np.ones_like(y.array))
            loss.backward()
            losses.append(float(loss.array))
        optimizer.update()
    return losses


def optimizers():
    yield "SGD", lambda: chainer.optimizers.SGD(0.1)
    yield "MomentumSGD", lambda: chainer.optimizers.MomentumSGD(0.1)
    yield "Adam", chainer.optimizers.Adam


@pytest.mark.parametrize("make", [make for _, make in optimizers()])
@pytest.mark.parametrize("ignored", [None, -1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_trains_bit_for_bit_as_a_resident_one(make, ignored, dtype):
    resident, streamed = (model(each, ignored, dtype) for each in (False, True))
    assert train(streamed, make()) == train(resident, make())
    np.testing.assert_array_equal(streamed[0].W.array, resident[0].W.array)
    np.testing.assert_array_equal(streamed[0].W.grad, resident[0].W.grad)


class Doubles:
    """A hook that leaves zeros, and none that this package knows."""

    name, call_for_each_param, timing = "Doubles", True, "pre"

    def __call__(self, rule, param):
        param.grad *= 2


@pytest.mark.parametrize("make", [make for _, make in optimizers()])
@pytest.mark.parametrize(
    "hooks",
    [
        {"hooks": [GradientClipping(0.01)]},
        {"hooks": [WeightDecay(0.1)]},
        {"rule_hooks": [WeightDecay(0.1)]},
        {"rule_hooks": [Doubles()]},
    ],
)
def test_hooks_see_all_rows(make, hooks):
    resident, streamed = (model(each) for each in (False, True))
    np.testing.assert_allclose(
        train(streamed, make(), **hooks), train(resident, make(), **hooks), rtol=1e-5
    )
    np.testing.assert_allclose(
        streamed[0].W.array, resident[0].W.array, rtol=1e-4, atol=1e-6
    )


def test_a_hook_that_writes_to_all_rows_once_leaves_nothing():
    stage = model(True)
    optimizer = chainer.optimizers.SGD(0.1)
    train(stage, optimizer, [GradientNoise(1.0)], n_steps=2)
    optimizer.remove_hook("GradientNoise")
    before = stage[0].W.array.copy()
    stage.cleargrads()
    F.sum(stage(np.array([[1, 2, 2]], "i"))).backward()
    optimizer.update()
    changed = np.flatnonzero((stage[0].W.array != before).any(1))
    assert changed.tolist() == [1, 2]
    assert np.flatnonzero(stage[0].W.grad.any(1)).tolist() == [1, 2]


def test_plain_descent_visits_the_rows_of_a_minibatch_alone(monkeypatch):
    stage, fetched = model(True), []
    prefetch = mapped.MappedArray.prefetch
    monkeypatch.setattr(
        mapped.MappedArray,
        "prefetch",
        lambda self, first, last: (
            fetched.append((first, last)),
            prefetch(self, first, last),
        ),
    )
    optimizer = chainer.optimizers.SGD(0.1).setup(stage)
    for ids in ([50, 3, 4], [3, 20, 20]):
        stage.cleargrads()
        F.sum(stage(np.array([ids], "i"))).backward()
        optimizer.update()
    assert set(fetched) == {(3, 5), (50, 51), (3, 4), (20, 21)}
    assert np.flatnonzero(stage[0].W.grad.any(1)).tolist() == [3, 20]


@pytest.mark.parametrize("ids", [[60], [-1], [-2, 5]])
def test_ids_of_no_row_are_refused(ids):
    stage = model(True)
    with pytest.raises(
        ValueError, match="no row in .* 60 rows: give ids from 0 to 59$"
    ):
        stage[0](np.array(ids, "i"))
    with pytest.raises(ValueError, match="from 0 to 59, or -1 for nothing$"):
        model(True, ignored=-1)[0](np.array([60, -1], "i"))


def test_what_an_embedding_has_not():
    with deferred_init(seed=0):
        words = L.EmbedID(9, 3)
    with pytest.raises(ValueError, match="activation=relu: an embedding has none"):
        Streamed(words, activation=F.relu)
    stage = Divisible(Streamed(words)).divide()
    y = F.sum(stage(np.array([1], "i")))
    with pytest.raises(RuntimeError, match="no double backward"):
        y.backward(enable_double_backprop=True)


def test_without_an_id_nothing_has_a_gradient():
    stage = model(True, ignored=-1)
    stage.cleargrads()
    F.sum(stage(np.full((2, 3), -1, "i"))).backward()
    assert not stage[0].W.grad.any()


@given(st.lists(st.integers(0, 30), min_size=1))
def test_runs_are_the_rows(rows):
    rows = np.sort(np.array(rows))
    runs = list(_runs(rows))
    assert [i for first, last in runs for i in range(first, last)] == sorted({*rows})
    assert all(last < first for (_, last), (first, _) in zip(runs, runs[1:]))


@given(st.lists(st.integers(0, 22)), st.integers(1, 25))
def test_each_row_is_visited_once_within_a_segment(rows, n):
    rows = np.sort(np.array(rows, int))
    with deferred_init(seed=0):
        W = Streamed(L.EmbedID(23, 2), segment=n).W
    assert isinstance(W, EmbeddingParameter)
    parts = [rows[part] for part in W.visiting(rows, {"array"})]
    assert [*np.concatenate([rows[:0], *parts])] == [*rows]
    assert all(len(part) and part[0] // n == part[-1] // n for part in parts)
