import functools
import random
import types

import numpy as np
import pytest
from chainer.backends import cuda

from divisible.keyed_random import keyed_random


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


class NumPyForCuPy(np.random.RandomState):
    def __init__(self, seed, method=100):
        super().__init__(seed)


def test_cupys_global_generator(monkeypatch):
    """With NumPy's generators in the place of CuPy's, where there is no GPU."""
    current = [NumPyForCuPy(9)]
    fake = types.SimpleNamespace(
        RandomState=NumPyForCuPy,
        get_random_state=lambda: current[0],
        set_random_state=lambda state: current.__setitem__(0, state),
    )
    monkeypatch.setattr(cuda, "available", True)
    curand = types.SimpleNamespace(CURAND_RNG_PSEUDO_PHILOX4_32_10=161)
    fake = types.SimpleNamespace(random=fake, cuda=types.SimpleNamespace(curand=curand))
    monkeypatch.setattr(cuda, "cupy", fake)
    before = current[0]
    with keyed_random("a"):
        first = current[0].rand()
    with keyed_random("a"):
        assert current[0].rand() == first
    assert current[0] is before
