"""What layers of PyTorch keep counts as activations of a profile."""

import weakref

import chainer
import chainer.functions as F
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from divisible import Divisible, profile  # noqa: E402
from divisible.planning.retained_arrays import rounded_buffers  # noqa: E402
from pipeline.stages.held import Graph  # noqa: E402
from pipeline.stages.leaving_arrays import take_out  # noqa: E402
from torch_layers import TorchLayer  # noqa: E402


def test_a_profile_counts_what_the_graph_keeps():
    x = np.random.rand(32, 64).astype(np.float32)
    t = np.zeros(32, np.int32)
    body = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.Tanh())
    model = Divisible(TorchLayer(nn.Linear(64, 64)), TorchLayer(body))
    costs = profile(model, x, t, F.softmax_cross_entropy, repeat=1).layers
    row = x.nbytes
    first, last = (cost.activation_bytes for cost in costs)
    # The input of each product, that of GELU, and the result of tanh.
    assert row <= first <= 2 * row
    assert 3 * row <= last <= 5 * row
    # From the first half to the second one, the inputs of the products and of GELU, and
    # a gradient for each product.
    assert 2 * row <= costs[0].pending_bytes <= 3 * row
    assert 5 * row <= costs[1].pending_bytes <= 7 * row
    assert costs[0].parameter_bytes == 4 * (64 * 64 + 64)
    assert costs[1].backward_input > 0
    assert all(cost.stays_in_memory for cost in costs)
    plain = profile(Divisible(F.tanh), x[:, :4], t, F.softmax_cross_entropy, repeat=1)
    assert not plain.layers[0].stays_in_memory


def test_the_graph_keeps_only_what_its_backward_needs():
    """Neither the input of ReLU nor the output of a product."""
    freed = []
    first, relu = TorchLayer(nn.Linear(64, 64)), TorchLayer(nn.ReLU())
    x = chainer.Variable(np.random.rand(32, 64).astype(np.float32))
    h = first(x)
    y = relu(h)
    weakref.finalize(h.array, freed.append, "h")
    weakref.finalize(y.array, freed.append, "y")
    h.node._data = None
    del h
    assert freed == ["h"]
    loss = F.sum(y)
    first.cleargrads()
    loss.backward()
    assert (first.weight.grad != 0).any()
    assert x.grad.shape == x.shape


def test_what_the_graph_keeps_does_not_leave_memory():
    x = chainer.Variable(np.random.rand(60, 40).astype(np.float32))
    y = TorchLayer(nn.Sequential(nn.Flatten(), nn.Tanh()))(x)
    # The result of tanh is kept, its input is not.
    assert y.array not in rounded_buffers([y], [x.array])
    left = take_out(Graph((x,), {}, (y,), {}), [])
    assert [each.nbytes for each in left.buffers] == [60 * 40 * 4]
    assert y.array is not None
    left.come_back(left.buffers)
    y.grad = np.ones_like(y.array)
    y.backward()
    np.testing.assert_allclose(x.grad, 1 - y.array**2, rtol=1e-5)
