"""Chains of layers as programs."""

import functools

import chainer
import chainer.functions as F
import numpy as np
import pytest

from chainer_kernels.fusion.function import FusedFunction
from chainer_kernels.fusion.generated import Compiled
from chainer_kernels.fusion.tracing import NotPointwise, trace
from tests.support import kernels
from tests.support.fusion import (
    LAYERS,
    MARKED,
    assert_same_bits,
    gradients,
    one_by_one,
)


def fused(program):
    return lambda *inputs: FusedFunction(Compiled(program)).apply(inputs)[0]


@pytest.mark.parametrize(
    "names",
    [
        "relu elu arithmetic leaky_relu constants tanh",
        "sigmoid powers clipped_relu absolute shared",
    ],
)
def test_values_and_gradients_have_the_same_bits(names):
    layers = [LAYERS[name] for name in names.split()]
    x = kernels.arrays((9, 40), 1)
    x.flat[:6] = 0, -0.0, np.inf, -np.inf, np.nan, 1e-30
    program = trace(layers, [x])
    assert program.is_exact
    with np.errstate(all="ignore"):
        unfused = gradients(functools.partial(one_by_one, layers), [x])
    assert_same_bits(gradients(fused(program), [x]), unfused)


@pytest.mark.parametrize("order", ["C", "channels last"])
def test_several_inputs(order):
    def gate(x, a, b):
        return x + a * F.sigmoid(b)

    xs = [kernels.arrays((2, 3, 4), seed, order) for seed in range(3)]
    program = trace([gate], xs)
    results = gradients(fused(program), xs)
    assert_same_bits(results, gradients(gate, xs))
    assert results[0].strides == xs[0].strides


def test_a_variable_may_be_two_inputs():
    def total(a, b):
        return F.tanh(a) + F.tanh(b) * b

    x = kernels.arrays((5,), 0)
    program = trace([total], [x, x.copy()])
    results = gradients(lambda v: fused(program)(v, v), [x])
    np.testing.assert_allclose(results[1], gradients(lambda v: total(v, v), [x])[1])


def test_what_is_not_exact_says_so():
    def cubed(x):
        return F.exp(x**3 * 0.1)

    x = kernels.arrays((50,), 0)
    program = trace([cubed], [x])
    assert not program.is_exact
    for one, other in zip(gradients(fused(program), [x]), gradients(cubed, [x])):
        np.testing.assert_allclose(one, other, rtol=2e-6)


def test_an_exponent_that_is_nearly_2_is_not_2():
    with pytest.raises(NotPointwise):
        trace([lambda x: x**2.000001], [kernels.arrays((50,), 0)])


@pytest.mark.parametrize("name", ["shared", "arithmetic", "powers"])
def test_gradients_have_gradients(name):
    x = kernels.arrays((30,), 2)

    def second(run):
        v = chainer.Variable(x)
        (gx,) = chainer.grad([run(v)], [v], enable_double_backprop=True)
        F.sum(gx * gx).backward()
        return v.grad

    np.testing.assert_allclose(
        second(fused(trace([MARKED[name]], [x]))), second(MARKED[name]), rtol=1e-6
    )


def test_the_output_of_a_relu_is_kept_and_not_its_inputs():
    a, b = (chainer.Variable(kernels.arrays((4,), seed)) for seed in range(2))
    program = trace([lambda a, b: F.relu(a + b)], [a.array, b.array])
    y = fused(program)(a, b)
    assert y.creator_node.inputs[0].data is None
    assert len(y.creator_node.get_retained_outputs()) == 1


def test_random_numbers_are_given_back():
    np.random.seed(3)
    program = trace([F.dropout, F.tanh], [np.ones((4, 4), "f")])
    assert [(mask.layer, mask.ratio) for mask in program.masks] == [(0, 0.5)]
    drawn = np.random.rand()
    np.random.seed(3)
    assert drawn == np.random.rand()


CONSTANT = np.ones((2, 3), "f")


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (F.log_softmax, "LogSoftmax is not fused"),
        (lambda x: x**0.3, r"_ \*\* 0.3 is not fused"),
        (lambda x: x + CONSTANT, "an array that is not among its inputs"),
        (lambda x: x + x.array, "an array that is not among its inputs"),
        (lambda x: F.sum(x) + 2, "Sum is not fused"),
        (lambda x: F.relu(x[:, :1]) + x, "GetItem is not fused"),
        (lambda x: (x, x), "it returns a tuple"),
        (lambda x: F.dropout(x, mask=CONSTANT), "a dropout whose mask is given"),
    ],
)
def test_what_is_not_pointwise_is_named(layer, reason):
    with pytest.raises(NotPointwise, match=reason) as caught:
        trace([F.relu, layer], [np.ones((2, 3), "f")])
    assert caught.value.layer == 1
