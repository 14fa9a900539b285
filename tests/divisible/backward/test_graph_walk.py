"""What the traversal of a graph keeps, and what it frees on its way."""

import weakref

import chainer
import chainer.functions as F
import numpy as np
import pytest

from divisible.backward.graph_walk import GraphWalk
from divisible.backward.weight_gradients import WeightGradients


class Watching(chainer.FunctionNode):
    """Returns its input; its backward notes which arrays are still there."""

    def __init__(self, references):
        self._references = references

    def forward(self, arrays):
        return (arrays[0].copy(),)

    def backward(self, indexes, gradients):
        self.alive = [each() is not None for each in self._references]
        return gradients


@pytest.mark.parametrize("is_retained", [False, True])
def test_outputs_and_their_gradients_are_freed_on_the_way(is_retained):
    x = chainer.Variable(np.ones((2, 3), np.float32))
    references = []
    watching = Watching(references)
    (h,) = watching.apply((x,))
    # A ReLU keeps its output for its backward, and a sum with a number keeps nothing.
    y = F.relu(h) if is_retained else h + 1
    gy = np.ones_like(y.array)
    references += [weakref.ref(y.array), weakref.ref(gy)]
    outputs, gradients = [y], [gy]
    del h, y, gy
    walk = GraphWalk(WeightGradients(), defer=False)
    (gx,) = walk.run_activations([x], outputs, gradients)
    np.testing.assert_array_equal(gx, 1)
    assert outputs == gradients == []
    # The gradient of a sum is that of its output.
    assert watching.alive == [False, not is_retained]
