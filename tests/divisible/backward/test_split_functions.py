"""Functions of users whose backward runs in two halves."""

import chainer
import chainer.functions as F
import numpy as np
import pytest
from mpi4py import MPI

from chainer_kernels.catalogue import backward_of
from divisible import Divisible, register_split
from divisible.schedules import Schedule
from pipeline import Pipeline

SPLIT = """
    split: 2 microbatches, 1 stage on rank 0
    rank 0  0F0 0I0 0F1 0I1 0W0 0W1
"""


def new_function():
    """A product of all rows with a vector, whose whole backward counts its calls."""

    class Scale(chainer.FunctionNode):
        n_whole = 0

        def forward(self, inputs):
            self.retain_inputs((0, 1))
            x, w = inputs
            return (x * w,)

        def backward(self, indexes, grad_outputs):
            type(self).n_whole += 1
            x, w = self.get_retained_inputs()
            (gy,) = grad_outputs
            both = gy * F.broadcast_to(w, gy.shape), F.sum(gy * x, axis=0)
            return tuple(both[i] for i in indexes)

    return Scale


def of_input(scale, indexes, grad_outputs):
    (gy,), (_, w) = grad_outputs, scale.get_retained_inputs()
    return (gy * F.broadcast_to(w, gy.shape),)


def of_weight(scale, indexes, grad_outputs):
    (gy,), (x, _) = grad_outputs, scale.get_retained_inputs()
    return (F.sum(gy * x, axis=0),)


class Scaled(chainer.Link):
    def __init__(self, function):
        super().__init__()
        self.function = function
        with self.init_scope():
            self.w = chainer.Parameter(np.arange(1, 5, dtype=np.float32))

    def forward(self, x):
        return self.function().apply((x, self.w))[0]


def step(function, schedule=None):
    """Returns the gradients of two layers of the function, after a step."""
    model = Divisible(Scaled(function), Scaled(function))
    options = {"n_microbatches": 2}
    if schedule is not None:
        options = {"schedule": Schedule.parse(schedule)}
    random = np.random.RandomState(0)
    x, t = random.randn(6, 4).astype("f"), np.arange(6, dtype="i") % 4
    with Pipeline(model, MPI.COMM_SELF, **options) as pipe:
        for _ in range(3):
            pipe.step(x, t)
    return [link.w.grad for link in model]


def test_halves_compute_what_the_whole_computes():
    expected = step(new_function())
    function = new_function()
    register_split(function, of_input, of_weight)
    assert backward_of(function).is_splittable
    for one, other in zip(step(function, SPLIT), expected):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    # Once for each half.
    assert function.n_whole == 2


def test_a_backward_that_is_not_split_is_the_whole():
    function = new_function()
    register_split(function, of_input, of_weight)
    expected = step(new_function())
    for one, other in zip(step(function), expected):
        np.testing.assert_array_equal(one, other)


WRONG = {
    "input": (
        lambda *args: (2 * of_input(*args)[0],),
        of_weight,
        "backward_input of S",
    ),
    "weight": (
        of_input,
        lambda *args: (of_weight(*args)[0] + 1,),
        "backward_weight of",
    ),
    "shape": (of_input, lambda *args: (of_weight(*args)[0][:2],), r"of shape \(2,\)"),
    "none": (of_input, lambda *args: (None,), "returns no gradient of input 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_halves_that_differ_from_the_whole_are_refused(name):
    *halves, words = WRONG[name]
    function = new_function()
    register_split(function, *halves)
    with pytest.raises(Exception, match=words):
        step(function, SPLIT)


def test_what_cannot_be_registered_is_refused():
    with pytest.raises(TypeError, match="not a subclass of chainer.FunctionNode"):
        register_split(F.relu, of_input, of_weight)
    function = new_function()
    with pytest.raises(TypeError, match="backward_weight must be a function, not None"):
        register_split(function, of_input, None)
    register_split(function, of_input, of_weight)
    with pytest.raises(ValueError, match="runs in halves already"):
        register_split(function, of_input, of_weight)
