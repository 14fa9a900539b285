"""Arrays that leave what is held of a microbatch, and come back."""

import weakref

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible.communication.signatures import Tensor
from pipeline.stages.held import Graph, Inputs, Persistents
from pipeline.stages.leaving_arrays import take_out


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
