import chainer
import chainer.links as L
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixed_precision import MixedPrecision, to_float16
from model_compression import Compress, CompressionPlan, Prune, Quantize
from model_compression.codebooks import clusters


@given(st.integers(2, 6), st.integers(1, 60), st.integers(0, 99))
def test_elements_are_with_the_nearest_of_the_means(bits, n, seed):
    weight = np.random.default_rng(seed).normal(size=n)
    numbers = clusters(weight, bits)
    assert numbers.max() < 2**bits
    means = {i: weight[numbers == i].mean() for i in {*numbers.tolist()}}
    # In order, and no two mixed: what k-means in one dimension gives.
    order = np.argsort(weight, kind="stable")
    assert (np.diff(numbers[order].astype(int)) >= 0).all()
    assert sorted(means.values()) == [means[i] for i in sorted(means)]


def test_zeros_alone_are_no_error():
    assert clusters(np.zeros((2, 2)), 3).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("half", [False, True])
def test_weights_keep_few_values_while_they_learn(half):
    np.random.seed(0)
    model = chainer.Sequential(L.Linear(12, 20))
    optimizer = chainer.optimizers.MomentumSGD(0.1)
    if half:
        to_float16(model)
        optimizer = MixedPrecision(optimizer, loss_scale=1.0)
    optimizer.setup(model)
    plan = CompressionPlan(
        [
            Prune("magnitude", to=0.5),
            Quantize("codebook3", begin=(2, "iteration")),
        ]
    )
    compress = Compress(plan, optimizer)
    rng = np.random.default_rng(0)
    seen = []
    for iteration in range(1, 6):
        for param in model.params():
            param.grad = rng.normal(size=param.shape).astype(param.dtype)
        optimizer.update()
        compress.advance(iteration, 0.0)
        seen.append(np.unique(model[0].W.array))
        assert (model[0].W.array == 0).sum() == 120
    assert len(seen[0]) > 9
    assert all(len(each) <= 9 for each in seen[1:])
    assert not np.array_equal(seen[-1], seen[-2])
    assert compress.bits == 3


def test_values_move_by_the_mean_gradient():
    model = chainer.Sequential(L.Linear(2, 2, nobias=True))
    model[0].W.array[...] = [[1.0, 1.1], [-1.0, -1.1]]
    optimizer = chainer.optimizers.SGD(1.0).setup(model)
    plan = CompressionPlan([Quantize("codebook2")])
    compress = Compress(plan, optimizer)
    compress.advance(1, 0.0)
    model[0].W.array[...] = [[1.0, 1.0], [-1.0, -1.0]]
    book = compress._model._quantizer._books.state_of("/0/W", model[0].W)
    book.numbers[...] = [[3, 3], [0, 0]]
    model[0].W.grad = np.array([[0.1, 0.3], [0.0, 0.2]], np.float32)
    optimizer.update()
    expected = [[0.8, 0.8], [-1.1, -1.1]]
    np.testing.assert_allclose(model[0].W.array, expected, rtol=1e-6)
