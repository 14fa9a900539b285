import functools
import random

import numpy as np
import pytest
from chainer.backends import cuda

from divisible.deferred.keyed_random import keyed_random


def draw_global():
    return random.random(), np.random.rand()


def test_draws_depend_on_the_key_only():
    drawn = {}
    for key in ("0/W", "0/b", "0/W"):
        np.random.rand(3)
        with keyed_random(key):
            values = draw_global()
        assert drawn.setdefault(key, values) == values
    assert drawn["0/W"] != drawn["0/b"]


def test_global_generators_are_put_back_after_an_error():
    random.seed(1)
    np.random.seed(1)
    expected = draw_global()
    random.seed(1)
    np.random.seed(1)
    with pytest.raises(ZeroDivisionError), keyed_random("a"):
        draw_global()
        raise ZeroDivisionError
    assert draw_global() == expected


class Carrier:
    def __init__(self, rng):
        self.rng = rng

    def __call__(self):
        return self.rng.random()


def closure(rng):
    return lambda: rng.random()


def default(rng):
    def draw(own=rng):
        return own.random()

    return draw


@pytest.mark.parametrize(
    "kind", [random.Random, np.random.RandomState, np.random.default_rng]
)
@pytest.mark.parametrize(
    "carry",
    [
        Carrier,
        closure,
        default,
        lambda rng: functools.partial(Carrier.__call__, Carrier(rng)),
        lambda rng: Carrier(rng).__call__,
        lambda rng: functools.partial(lambda rng: rng.random(), rng=rng),
    ],
    ids=["attribute", "closure", "default", "partial", "method", "keyword"],
)
def test_generators_that_a_function_carries(kind, carry):
    rng = kind(3)
    draw = carry(rng)
    drawn = {}
    for key in ("a", "b", "a"):
        with keyed_random(key, draw):
            value = draw()
        assert drawn.setdefault(key, value) == value
    assert drawn["a"] != drawn["b"]
    assert rng.random() == kind(3).random()
    # Another seed of its own is another sequence.
    other = carry(kind(4))
    with keyed_random("a", other):
        assert other() != drawn["a"]


def test_cupys_global_generator(fake_cupy, monkeypatch):
    """With NumPy's generators in the place of CuPy's, where there is no GPU."""
    monkeypatch.setattr(cuda, "available", True)
    random = fake_cupy.random
    before = random.get_random_state()
    with keyed_random("a"):
        first = random.get_random_state().rand()
    with keyed_random("a"):
        assert random.get_random_state().rand() == first
    assert random.get_random_state() is before
    # Where CuPy is installed without a GPU, it raises whatever it is asked for.
    monkeypatch.setattr(fake_cupy, "is_available", lambda: False)
    monkeypatch.setattr(random, "get_random_state", None)
    with keyed_random("a"):
        pass
