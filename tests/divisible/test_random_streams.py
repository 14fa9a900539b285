"""Random numbers by position."""

import threading

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.backends import cuda

from divisible import Divisible, RandomKey, keyed_random_state
from divisible.random_streams import stream_words

X = np.ones((4, 50), np.float32)


def masks(model, x=X, **key):
    """What each layer drew, from the values that are left."""
    seen = []
    layers = [layer for layer in model for layer in (layer, Look(seen))]
    parts = Divisible(*layers)
    # Positions twice as high, which is another model; good enough to compare with.
    with keyed_random_state(RandomKey(**{"seed": 1, "step": 0, **key})):
        parts(x)
    return seen


class Look:
    def __init__(self, seen):
        self._seen = seen

    def __call__(self, x):
        self._seen.append(x.array.copy())
        return x


def draw(model, **key):
    with keyed_random_state(RandomKey(**{"seed": 1, "step": 0, **key})):
        return model(X).array


def test_every_part_of_the_key_matters():
    model = Divisible(F.dropout)
    results = [
        draw(model),
        draw(model, seed=2),
        draw(model, seed=1 + 2**32),
        draw(model, step=1),
        draw(model, microbatch=1),
        draw(model, train=0),
        draw(Divisible(F.relu, F.dropout)),
    ]
    for i, a in enumerate(results):
        for b in results[:i]:
            assert (a != b).any()


def test_a_layer_draws_the_same_wherever_the_model_is_cut():
    model = Divisible(F.dropout, F.relu, F.dropout, F.dropout)
    whole = draw(model)
    for cut in (1, 2, 3):
        y = X
        for part in (model.divide(0, cut), model.divide(cut, 4)):
            with keyed_random_state(RandomKey(1, 0)):
                y = part(y)
        np.testing.assert_array_equal(y.array, whole)


def test_two_nested_models_draw_different_numbers():
    model = Divisible(Divisible(F.dropout), Divisible(F.dropout))
    first, second = masks(model)
    assert ((first == 0) != (second == 0)).any()


def test_the_global_stream_goes_on_as_if_nothing_had_been_drawn():
    np.random.seed(0)
    expected = np.random.rand(3)
    np.random.seed(0)
    draw(Divisible(F.dropout))
    np.testing.assert_array_equal(np.random.rand(3), expected)
    with pytest.raises(ZeroDivisionError), keyed_random_state(RandomKey(0, 0)):
        Divisible(F.dropout, lambda x: 1 / 0)(X)
    # And without a key, the layers draw from it as in any Chainer model.
    np.random.seed(0)
    first = F.dropout(X).array
    np.random.seed(0)
    np.testing.assert_array_equal(Divisible(F.dropout)(X).array, first)


def test_other_threads_are_left_alone():
    found = []
    model = Divisible(lambda x: found.append(np.random.rand()) or x)
    with keyed_random_state(RandomKey(0, 0)):
        model(X)
        # No key there, so no new stream begins.
        thread = threading.Thread(target=model, args=(X,))
        thread.start()
        thread.join()
        model(X)
    assert found[0] == found[2] != found[1]


def test_layers_on_a_gpu(fake_cupy, monkeypatch):
    """With NumPy's generators in the place of CuPy's, where there is no GPU."""
    device = chainer.get_device("@numpy")
    monkeypatch.setattr(cuda, "GpuDevice", type(device))
    random = fake_cupy.random
    before = random.get_random_state()
    drawn = []

    def layer(x):
        drawn.append(random.get_random_state().rand())
        return x

    model = Divisible(layer, layer)
    for step in (0, 0, 1):
        with keyed_random_state(RandomKey(1, step), device):
            model(X)
    assert drawn[:2] == drawn[2:4]
    assert len(set(drawn)) == 4
    assert random.get_random_state() is before


def test_negative_numbers_are_refused():
    with (
        pytest.raises(ValueError, match="must not be negative"),
        keyed_random_state(RandomKey(-1, 0)),
    ):
        pass


def test_other_libraries_get_the_words_of_a_stream():
    found = []

    def look(x):
        found.append(stream_words())
        return x

    model = Divisible(look, look)
    for step in (0, 0, 1):
        with keyed_random_state(RandomKey(1, step)):
            assert stream_words() is None
            model(X)
        assert stream_words() is None
    assert found[0] == found[2] != found[1]
    # Each beginning of a stream is another list.
    assert found[0] is not found[2]
    assert found[4] not in found[:4]
    model(X)
    assert found[-1] is None
