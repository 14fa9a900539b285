import functools

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.link_hooks import SpectralNormalization

from divisible.effects import effect_of

SIZE = 2
SEEN = []


def pooled(x):
    return F.max_pooling_2d(x, SIZE)


def counted(x):
    SEEN.append(1)
    return x


def counted_below(x):
    return counted(pooled(x))


def endless(x):
    return x if x.ndim else endless(x)


class Watching(L.Linear):
    def forward(self, x):
        SEEN.append(x.shape)
        return super().forward(x)


class Plain(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.inner = L.Linear(2, 2)

    def forward(self, x):
        return F.relu(self.inner(x)) * np.float32(SIZE)


class Callable:
    def __call__(self, x):
        return SEEN or x


def hooked():
    link = L.Linear(2, 2)
    link.add_hook(SpectralNormalization())
    return link


@pytest.mark.parametrize(
    "layer",
    [F.relu, pooled, endless, Plain(), L.LSTM(2, 2), functools.partial(F.dropout)],
)
def test_layers_without_effects(layer):
    assert effect_of([layer]) == ""


@pytest.mark.parametrize(
    "layer, words",
    [
        (counted, "counted uses 'SEEN', a list"),
        (counted_below, "counted uses 'SEEN'"),
        (functools.partial(counted), "counted uses 'SEEN'"),
        (lambda x: print(x) or x, "calls print"),
        (Watching(2, 2), "forward uses 'SEEN'"),
        (chainer.Sequential(Watching(2, 2)), "forward uses 'SEEN'"),
        (Callable(), "__call__ uses 'SEEN'"),
        (hooked(), "a Linear has the hook SpectralNormalization"),
    ],
)
def test_layers_with_effects(layer, words):
    assert words in effect_of([F.relu, layer])


def test_hooks_that_watch_all_calls_count():
    with chainer.function_hooks.TimerHook():
        assert effect_of([F.relu]) == "hooks watch all calls"
    with chainer.link_hooks.TimerHook():
        assert effect_of([F.relu]) == "hooks watch all calls"
    assert effect_of([F.relu]) == ""
