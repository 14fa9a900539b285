"""Random numbers of modules, and microbatches that run as one."""

from contextlib import nullcontext

import chainer
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from divisible import RandomKey, keyed_random_state  # noqa: E402
from divisible.random_streams import begin_stream  # noqa: E402
from pipeline.stages.groups import Group, LayerCalls, Part  # noqa: E402
from torch_layers import TorchLayer  # noqa: E402

X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
# Dropout draws, and drops nothing: the outputs alone do not tell.
MODULES = [
    (nn.Linear(6, 3), LayerCalls.ONCE),
    (nn.BatchNorm1d(6), LayerCalls.EACH),
    (nn.Dropout(1e-9), LayerCalls.EACH),
]


def test_masks_do_not_depend_on_the_order_of_the_memory():
    x = np.ones((2, 3, 4, 5), np.float32)
    channels_last = x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
    assert not channels_last.flags.c_contiguous
    layer, key, found = TorchLayer(nn.Dropout()), RandomKey(1, 0, 0), []
    for array in (x, channels_last):
        leaf = chainer.Variable(array)
        with keyed_random_state(key):
            begin_stream(key, 0)
            y = layer(leaf)
        y.grad = np.ones_like(y.array)
        y.backward()
        found.append((y.array, leaf.grad))
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("module, expected", MODULES, ids=str)
def test_groups_run_once_unless_a_module_normalizes_or_draws(module, expected):
    layer, calls = TorchLayer(module), {}
    parts = [Part(i, 2, RandomKey(1, 0, i)) for i in range(2)]
    group = Group(parts, calls, lambda values: nullcontext())
    with keyed_random_state(parts[0].key):
        begin_stream(parts[0].key, 0)
        group.call(0, layer, layer, (chainer.Variable(X),))
    assert calls[0, True] is expected
