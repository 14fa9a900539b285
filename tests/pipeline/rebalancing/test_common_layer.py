"""Ranks are compared by one layer."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, deferred_init, pop, stash
from divisible.layer_pass import timed_layers
from pipeline.rebalancing.common_layer import (
    CommonLayer,
    choose_layer,
    relative_speeds,
    seconds_of,
    shortest_mean,
)
from pipeline.rebalancing.layer_costs import SaidOfLayers


def said(forwards, inputs):
    return SaidOfLayers(forwards, (), inputs)


ROW = (((4, 3), "float32"),)


def model():
    return Divisible(
        L.Linear(3, 3), F.relu, stash("a"), L.Linear(3, 3), pop("a"), L.Linear(3, 2)
    )


def test_the_longest_forward_is_chosen_but_no_very_long_one():
    first = said({0: 0.1, 1: 0.02, 2: 0.2}, {0: ROW, 1: ROW, 2: ROW})
    second = said({3: 9.0, 4: 0.2, 5: 0.15}, {3: ROW, 4: ROW, 5: ROW})
    # Ends of skips compute nothing by themselves.
    assert choose_layer(model(), [first, second]) == CommonLayer(5, ROW)
    only_long = said({3: 9.0, 0: 3.0}, {3: ROW, 0: ROW})
    assert choose_layer(model(), [only_long]).position == 0
    # One whose input is no array cannot be computed from its shapes.
    odd = said({0: 0.1, 1: 0.02}, {0: None, 1: ROW})
    assert choose_layer(model(), [odd]).position == 1
    assert choose_layer(model(), [said({0: 0.1}, {0: None})]) is None
    tied = model()
    tied.tie("/0/W", "/3/W")
    assert choose_layer(tied, [first]).position == 1


def test_shapes_and_dtypes_of_inputs_are_seen():
    net = Divisible(L.EmbedID(5, 3), F.relu, lambda x: (x, x), F.add, lambda x: [x])
    with timed_layers() as seconds:
        net(np.zeros((4,), np.int32))
    assert seconds.inputs[0] == (((4,), "int32"),)
    assert seconds.inputs[1] == ROW
    assert seconds.inputs[3] == ROW * 2
    nested = Divisible(lambda x: [x], lambda xs: xs[0])
    with timed_layers() as seconds:
        nested(np.zeros(3, np.float32))
    assert seconds.inputs[1] is None


def test_nothing_is_drawn_and_a_cast_stage_has_its_like():
    calls = []

    class Layer(chainer.Chain):
        def __init__(self):
            super().__init__(linear=L.Linear(3, 3))

        def forward(self, x):
            calls.append((x.dtype, self.linear.W.dtype, chainer.config.enable_backprop))
            return F.dropout(self.linear(x))

    np.random.seed(0)
    expected = np.random.RandomState(0).rand(3)
    with deferred_init(seed=0):
        net = Divisible(F.relu, Layer())
    chosen = CommonLayer(1, (((4, 3), "float16"),))
    assert 0 < seconds_of(net, chosen) < 0.1
    np.testing.assert_array_equal(np.random.rand(3), expected)
    assert set(calls) == {(np.dtype("f2"), np.dtype("f2"), False)}


def test_a_quota_counts_and_other_processes_do_not():
    """A host with half of the time, in pieces of 100 ms, and a disturbed one."""

    def clock(pause):
        now = [0.0]

        def run():
            before = now[0]
            now[0] += 0.001
            now[0] += pause(before, now[0])

        return run, lambda: now[0]

    # After each 50 ms of work it stands still for 50 ms.
    throttled = clock(lambda a, b: 0.05 * (int(a / 0.1 + 0.5) < int(b / 0.1 + 0.5)))
    assert shortest_mean(*throttled) == pytest.approx(0.002, rel=0.25)
    # Something else takes 80 ms of its time, at times.
    disturbed = clock(lambda a, b: 0.08 * (int(a / 0.3) < int(b / 0.3)))
    assert shortest_mean(*disturbed) == pytest.approx(0.001, rel=0.02)


def test_speeds_are_relative_to_the_fastest():
    assert relative_speeds([0.3, 0.1, 0.2]) == pytest.approx([1 / 3, 1, 1 / 2])
    assert relative_speeds([0.11, 0.1, 0.12]) == [1, 1, 1]
