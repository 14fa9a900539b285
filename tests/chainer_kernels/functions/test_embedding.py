"""Kernels of embeddings against Chainer's functions."""

import chainer
import chainer.functions as F
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chainer_kernels
from chainer_kernels.contributions import Rows, Scratch
from chainer_kernels.functions.embedding import weights
from tests.support import kernels

KERNELS = ["EmbedIDGrad.forward"]


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.tuples(st.integers(1, 9), st.integers(1, 40)),
    st.sampled_from(["i", "int64", "int8"]),
    st.sampled_from([None, -1, 0, 99]),
    kernels.seeds,
)
def test_gradient(shape, size, dtype, ignore_label, seed):
    random = np.random.RandomState(seed)
    ids = random.randint(-size[0], size[0], shape).astype(dtype)
    if ignore_label is not None:
        ids[random.rand(*shape) < 0.3] = ignore_label
    kernels.check(
        lambda W: F.embed_id(ids, W, ignore_label),
        [kernels.arrays(size, seed)],
        KERNELS,
    )


@pytest.mark.parametrize("dtype", ["int8", "int16", "int64"])
@pytest.mark.parametrize("n_rows", [100, 128, 300, 40000])
def test_vocabulary_larger_than_the_type_of_ids(dtype, n_rows):
    ids = np.array([-100, 3, 99, 3, 0], dtype)
    kernels.check(
        lambda W: F.embed_id(ids, W, 3), [kernels.arrays((n_rows, 2), 1)], KERNELS
    )


def test_sums_are_those_of_add_at():
    ids = np.random.RandomState(1).randint(0, 5, 1000)
    gy = kernels.arrays((1000, 33), 2)
    right = np.zeros((5, 33), "f")
    np.add.at(right, ids, gy)
    gW = F.connection.embed_id.EmbedIDGrad(right.shape).apply((ids, gy))[0].array
    np.testing.assert_array_equal(gW, right)


def test_wrong_ids_are_refused():
    gy = kernels.arrays((1, 3), 1)
    with pytest.raises(IndexError):
        F.connection.embed_id.EmbedIDGrad((4, 3)).apply((np.array([4]), gy))


def test_second_derivative():
    ids = np.array([1, 0, 1, 1])
    kernels.check_second_derivative(
        lambda W: F.embed_id(ids, W * W), [kernels.arrays((3, 4), 1)]
    )


def shares(n_rows, *batches, ignore_label=None):
    """Returns the contributions of some microbatches of words, and Chainer's sum."""
    W = chainer.Parameter(np.zeros((n_rows, 3), "f"))
    found, expected = [], np.zeros((n_rows, 3), "f")
    for seed, ids in enumerate(batches):
        y = F.embed_id(np.array(ids, "i"), W, ignore_label)
        gy = kernels.arrays(y.shape, seed)
        found.append(weights(y.creator, {1: W}, gy)[1])
        rows = np.array(ids).ravel()
        kept = rows != ignore_label
        np.add.at(expected, rows[kept], gy.reshape(-1, 3)[kept])
    return found, expected


def test_microbatches_are_added_row_by_row():
    (first, *others), expected = shares(
        6, [[0, 5], [5, 1]], [[3, 3]], [[2], [5]], ignore_label=1
    )
    out = np.full((6, 3), 7, "f")
    first.write(out)
    for share in others:
        share.add(out, Scratch())
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    joined = np.full((6, 3), 7, "f")
    first.joined(others, Rows()).write(joined)
    np.testing.assert_allclose(joined, expected, rtol=1e-6)


def test_what_is_left_to_chainer():
    W = chainer.Parameter(np.zeros((4, 3), "e"))
    y = F.embed_id(np.array([0, 1], "i"), W)
    assert weights(y.creator, {1: W}, np.ones(y.shape, "e")) == {}
    assert weights(y.creator, {}, np.ones(y.shape, "f")) == {}
    with chainer_kernels.disabled():
        assert weights(y.creator, {1: W}, np.ones(y.shape, "f")) == {}
