import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible.backward.late_gradients import LateGradients


def test_gradients_that_functions_write_by_themselves_are_of_their_minibatch():
    """F.forget adds to ``param.grad``, where gradients of the minibatch before wait."""
    link, seen = L.Linear(2, 1, nobias=True), []
    gradients = LateGradients(link.params)
    for number in range(1, 5):
        gradients.begin()
        if not gradients.has_turned:
            gradients.turn()
        for _ in range(2):
            x = chainer.Variable(np.full((1, 2), number, np.float32))
            F.sum(F.forget(link, x)).backward()
        gradients.finish()
        seen.append(None if link.W.grad is None else link.W.grad.copy())
    assert seen[0] is None
    for number, gradient in enumerate(seen[1:], start=1):
        np.testing.assert_array_equal(gradient, np.full((1, 2), 2 * number))
    gradients.begin()
    gradients.turn()
    gradients.hand_out()
    np.testing.assert_array_equal(link.W.grad, np.full((1, 2), 8))
    # Gradients are handed out once.
    gradients.begin()
    gradients.hand_out()
    assert link.W.grad is None


def test_dropped_gradients_are_gone():
    link = L.Linear(2, 1, nobias=True)
    gradients = LateGradients(link.params)
    gradients.begin()
    gradients.add(link.W, np.ones((1, 2), np.float32))
    gradients.finish()
    gradients.drop()
    gradients.begin()
    assert gradients.has_turned
    gradients.finish()
    assert link.W.grad is None


def test_corrections_are_refused():
    gradients = LateGradients(L.Linear(2, 1).params)
    gradients.begin()
    with pytest.raises(ValueError, match="corrected by 0.5"):
        gradients.finish(factor=0.5)
