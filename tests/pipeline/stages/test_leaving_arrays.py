"""Arrays that leave what is held of a microbatch, and come back."""

import weakref

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible.communication.signatures import Tensor
from pipeline.stages.held import Graph, Inputs, Persistents
from pipeline.stages.leaving_arrays import EVERYTHING, Leaving, take_out


def away_and_back(held, links=()):
    left = take_out(held, links)
    copies = [buffer.copy() for buffer in left.buffers]
    sizes = [buffer.nbytes for buffer in left.buffers]
    del left.buffers[:]
    return sizes, lambda: left.come_back(copies)


def graph_of(x, y):
    return Graph((x,), {}, (y,), {})


def test_a_graph_comes_back_and_its_arrays_were_free():
    link = L.Linear(40, 50)
    x = chainer.Variable(np.ones((60, 40), np.float32))
    y = F.tanh(link(x))
    expected, node = y.array.copy(), weakref.ref(y.array)
    held = graph_of(x, y)
    sizes, back = away_and_back(held, [link])
    assert node() is None
    # x, and what tanh returned; neither the weights nor what tanh does not need.
    assert sorted(sizes) == [60 * 40 * 4, 60 * 50 * 4]
    assert back() is held
    np.testing.assert_array_equal(y.array, expected)
    assert y.node.data is None or np.shares_memory(y.node.data, y.array)
    y.grad = np.ones_like(expected)
    y.backward()
    slope = (1 - expected**2) @ link.W.array
    np.testing.assert_allclose(x.grad, slope, rtol=1e-5)


def test_views_of_one_buffer_share_memory_again():
    whole = np.arange(60 * 40, dtype=np.float32).reshape(60, 40)
    expected = whole.copy()
    x, y = chainer.Variable(whole), chainer.Variable(whole[::-1, 5:].T)
    sizes, back = away_and_back(graph_of(x, y))
    assert sizes == [whole.nbytes]
    back()
    np.testing.assert_array_equal(x.array, expected)
    np.testing.assert_array_equal(y.array, expected[::-1, 5:].T)
    assert np.shares_memory(x.array, y.array)
    assert y.array.strides == whole[::-1, 5:].T.strides


def test_what_would_not_be_freed_stays():
    minibatch = np.ones((60, 400), np.float32)
    x, y = chainer.Variable(minibatch[:20]), chainer.Variable(np.ones(9, np.float32))
    sizes, back = away_and_back(graph_of(x, y))
    assert sizes == [] and x.array is not None and y.array is not None
    back()


def test_inputs_come_back():
    array = np.arange(5000, dtype=np.float32)
    tensors = Tensor(array.copy(), True), Tensor(None), 7
    held = Inputs(tensors, {"a": (Tensor(array.copy()),)}, Persistents([]))
    sizes, back = away_and_back(held)
    assert sizes == [array.nbytes] * 2
    found = back()
    assert found.persistents is held.persistents
    assert found.inputs[0].requires_grad and found.inputs[1:] == tensors[1:]
    for tensor in (found.inputs[0], *found.skipped["a"]):
        np.testing.assert_array_equal(tensor.array, array)


def test_what_may_be_rounded_leaves_as_float32():
    link = L.BatchNormalization(50)
    x = chainer.Variable(np.random.RandomState(0).randn(120, 50).astype(np.float32))
    wide = chainer.Variable(x.array.astype(np.float64))
    half = chainer.Variable(np.ones((200, 50), np.float16))
    masked = F.dropout(F.tanh(link(x)), 0.3)
    largest = F.max(masked * masked, axis=0)
    y = F.concat([F.exp(masked).reshape(-1), largest], axis=0)
    held = Graph((x, wide, half), {}, (y,), {})
    mask = y.creator.inputs[0].creator.inputs[0].creator.inputs[0].creator.mask
    left = take_out(held, [link], Leaving(rounds=True, others=False))
    assert {buffer.dtype.name for buffer in left.buffers} == {"float32"}
    # x, the output of tanh, of dropout, of exp, and of concat; neither what max
    # compares nor statistics.
    assert sorted(b.nbytes for b in left.buffers) == [24000] * 4 + [24200]
    assert wide.array.dtype == np.float64 and half.array.dtype == np.float16
    kept = y.creator.inputs[1].creator
    assert kept.inputs[0].data is not None and kept.inputs[0].data.size == 6000
    assert mask is not None and set(np.unique(mask)) == {0, np.float32(1 / 0.7)}
    for buffer in left.buffers:
        buffer *= 2
    left.come_back(left.buffers)
    np.testing.assert_allclose(y.array[-50:], 2 * largest.array, rtol=1e-6)


def test_everything_leaves_and_only_some_may_be_rounded():
    x = chainer.Variable(np.ones((200, 50), np.float32))
    ids = chainer.Variable(np.ones((200, 50), np.int32))
    viewed = np.ones((200, 50), np.float32)
    bits = chainer.Variable(viewed.view(np.int32))
    held = Graph((x, ids, bits), {}, (chainer.Variable(viewed),), {})
    left = take_out(held, (), Leaving(rounds=True))
    names = sorted(buffer.dtype.name for buffer in left.buffers)
    assert names == ["float32", "uint8", "uint8"]
    left.come_back(left.buffers)
    np.testing.assert_array_equal(ids.array, 1)


@pytest.mark.parametrize(
    "function",
    [
        F.mean_squared_error,
        F.squared_error,
        lambda x, t: F.huber_loss(x, t, 1.0),
        lambda x, t: F.contrastive(x, t, np.zeros(len(t), np.int32)),
        lambda x, t: F.triplet(x, t, t + 1),
    ],
)
def test_what_a_backward_subtracts_is_not_rounded(function):
    x, t = (chainer.Variable(np.full((50, 100), value, "f")) for value in (1, 1.001))
    loss = F.sum(function(x, t))
    left = take_out(Graph((), {}, (loss,), {}), (), Leaving(rounds=True, others=False))
    assert x.array is x.node.data and t.array is t.node.data
    left.come_back([buffer * 0 for buffer in left.buffers])
    loss.backward()
    expected = chainer.grad([F.sum(function(x, t))], [x])[0].array
    np.testing.assert_array_equal(x.grad, expected)


def test_confident_predictions_still_have_gradients():
    x = chainer.Variable(np.repeat(np.eye(8, dtype=np.float32) * 12, 100, axis=0))
    loss = F.softmax_cross_entropy(x, np.repeat(np.arange(8), 100))
    expected = chainer.grad([loss], [x])[0].array
    left = take_out(graph_of(x, loss), (), Leaving(rounds=True, others=False))
    # The logits, which the backward does not read.
    assert [buffer.nbytes for buffer in left.buffers] == [x.node.shape[0] * 32]
    left.come_back([buffer * 0 for buffer in left.buffers])
    loss.backward()
    assert np.abs(expected).max() > 1e-8
    np.testing.assert_array_equal(x.grad, expected)


def test_what_must_not_be_rounded_is_free_meanwhile():
    x = chainer.Variable(np.ones((50, 100), np.float32))
    y = F.max(x, axis=1)
    kept = weakref.ref(x.array)
    left = take_out(graph_of(x, y), ())
    assert [buffer.nbytes for buffer in left.buffers] == [50 * 100 * 4]
    del left.buffers[:]
    assert kept() is None


def test_the_inputs_of_the_model_stay():
    array = np.ones((200, 50), np.float32)
    for held in (
        Graph((chainer.Variable(array.copy()), array.copy()), {}, (), {}),
        Inputs((Tensor(array.copy(), True),), {}, Persistents([])),
    ):
        assert take_out(held, (), EVERYTHING, inputs_stay=True).buffers == []
