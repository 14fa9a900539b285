import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from divisible import Divisible
from mixed_precision import MixedPrecision, to_float16
from model_compression import Compress, CompressionPlan, Prune, Quantize
from model_compression.codebooks import averaged, clusters
from pipeline import Pipeline, SnapshotError, load_snapshot, save_snapshot


@given(st.integers(2, 6), st.integers(1, 60), st.integers(0, 99))
def test_elements_are_with_the_nearest_of_the_means(bits, n, seed):
    weight = np.random.default_rng(seed).normal(size=n)
    codes = clusters(weight, bits)
    assert codes.min() >= 1 and codes.max() <= 2**bits
    means = {i: weight[codes == i].mean() for i in {*codes.tolist()}}
    # In order, and no two mixed: what k-means in one dimension gives.
    order = np.argsort(weight, kind="stable")
    assert (np.diff(codes[order].astype(int)) >= 0).all()
    assert sorted(means.values()) == [means[i] for i in sorted(means)]


def test_zeros_alone_are_no_error():
    assert clusters(np.zeros((2, 2)), 3).tolist() == [[0, 0], [0, 0]]


def test_a_snapshot_that_is_refused_leaves_the_few_values(tmp_path):
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    t = np.arange(8, dtype=np.int32) % 2

    def update(pipe, optimizer):
        pipe.step(x, t)
        optimizer.update()

    plan = CompressionPlan(
        [
            Prune("l2", layers="/0", to=0.5, granularity="channel"),
            Quantize("codebook2", layers="/2"),
        ]
    )
    for shrink in (True, False):
        np.random.seed(0)
        stage = Divisible(L.Linear(4, 6), F.relu, L.Linear(6, 2)).divide()
        optimizer = chainer.optimizers.MomentumSGD(0.1).setup(stage)
        with Pipeline(stage, MPI.COMM_SELF, n_microbatches=2) as pipe:
            compress = Compress(plan, optimizer, pipeline=pipe, shrink=shrink)
            update(pipe, optimizer)
            compress.advance(1, 0.0)
            if shrink:
                state = {"compress": compress}
                save_snapshot(tmp_path / "small", pipe, optimizer, state=state)
                continue
            with pytest.raises(SnapshotError):
                # Without what the snapshot has of the extension.
                load_snapshot(tmp_path / "small", pipe, optimizer)
            update(pipe, optimizer)
            weight = stage[2].W.array
            assert weight.shape == (2, 6) and np.unique(weight).size <= 1 + 4


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
    book.codes[...] = [[4, 4], [1, 1]]
    model[0].W.grad = np.array([[0.1, 0.3], [0.0, 0.2]], np.float32)
    optimizer.update()
    expected = [[0.8, 0.8], [-1.1, -1.1]]
    np.testing.assert_allclose(model[0].W.array, expected, rtol=1e-6)


def test_zeros_stay_and_do_not_count_in_the_mean_gradient():
    weight = np.zeros((10, 4), np.float32)
    weight[:7] = np.random.default_rng(0).normal(size=(7, 4))
    model = chainer.Sequential(L.EmbedID(10, 4, initialW=weight))
    optimizer = chainer.optimizers.SGD(0.1).setup(model)
    compress = Compress(CompressionPlan([Quantize("codebook3")]), optimizer)
    compress.advance(1, 0.0)
    before = model[0].W.array.copy()
    # The word 8 was in no minibatch so far.
    gradient = np.random.default_rng(1).normal(size=(10, 4)).astype(np.float32)
    model[0].W.grad = gradient
    optimizer.update()
    expected = np.zeros_like(before)
    for value in np.unique(before[:7]):
        expected[before == value] = value - 0.1 * gradient[before == value].mean()
    np.testing.assert_allclose(model[0].W.array, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_rows_of_padding_and_of_new_words_train_as_if_they_were_not_there(kind):
    """By what serial training of the other words alone gives."""

    def train(n_words):
        rng = np.random.default_rng(0)
        weight = np.zeros((n_words, 4), np.float32)
        weight[:6] = rng.normal(size=(6, 4))
        np.random.seed(0)
        embedding = L.EmbedID(n_words, 4, initialW=weight, ignore_label=-1)
        model = chainer.Sequential(embedding, L.Linear(4, 3))
        optimizer = {
            "sgd": lambda: chainer.optimizers.SGD(0.1),
            "adam": lambda: chainer.optimizers.Adam(0.1),
        }[kind]().setup(model)
        plan = CompressionPlan(
            [Quantize("codebook3", layers="/0", begin=(1, "iteration"))]
        )
        compress = Compress(plan, optimizer)
        for iteration in range(1, 6):
            words = rng.integers(6, size=12).astype(np.int32)
            words[:4] = -1
            if n_words > 6 and iteration > 2:
                # What the model says of zeros is the same for both.
                words[:4] = 7
            t = rng.integers(3, size=12)
            loss = F.softmax_cross_entropy(model(words), t.astype(np.int32))
            model.cleargrads()
            loss.backward()
            optimizer.update()
            compress.advance(iteration, 0.0)
        return model

    found, expected = train(8), train(6)
    assert len(np.unique(found[0].W.array[:6])) <= 8
    assert (found[0].W.array[6:] == 0).all()
    for path, param in expected.namedparams():
        array = dict(found.namedparams())[path].array[: len(param)]
        np.testing.assert_allclose(array, param.array, rtol=1e-5, atol=1e-6)


def test_weights_that_pruning_gives_back_get_the_nearest_value():
    model = chainer.Sequential(L.Linear(4, 1, nobias=True))
    model[0].W.array[...] = [[0.5, -2.0, 1.0, 3.0]]
    optimizer = chainer.optimizers.SGD(1.0).setup(model)
    plan = CompressionPlan(
        [Prune("l1", to=0.25), Quantize("codebook2", begin=(2, "iteration"))]
    )
    compress = Compress(plan, optimizer, metric="quality", tolerance=0.1)
    compress.advance(1, 0.0, {"quality": 1.0})
    assert model[0].W.array[0, 0] == 0
    compress._model.take({1: 1.0})
    compress.advance(3, 0.0, {"quality": 0.0})
    # It joins the value that 1.0 has, and moves with it from now on.
    expected = np.array([[0.75, -2.0, 0.75, 3.0]])
    np.testing.assert_allclose(model[0].W.array, expected)
    model[0].W.grad = np.array([[0.2, 0.0, 0.4, 0.0]], np.float32)
    optimizer.update()
    expected = np.array([[0.45, -2.0, 0.45, 3.0]])
    np.testing.assert_allclose(model[0].W.array, expected, rtol=1e-6)


def test_eight_bits_have_256_values_beside_zero():
    weight = np.arange(-128, 129, dtype=np.float32)
    codes = clusters(weight, 8)
    assert len(np.unique(codes)) == 257 and codes[128] == 0
    np.testing.assert_array_equal(averaged(weight, codes), weight)


def test_a_weight_of_zeros_has_no_codebook():
    model = chainer.Sequential(L.Linear(4, 3, initialW=0))
    optimizer = chainer.optimizers.SGD().setup(model)
    compress = Compress(CompressionPlan([Quantize("codebook4")]), optimizer)
    with pytest.raises(ValueError, match="/0/W has only zeros.*begin when it has"):
        compress.advance(1, 0.0)
