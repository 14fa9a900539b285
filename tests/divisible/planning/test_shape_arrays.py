import copy

import numpy as np
import pytest

from divisible.planning.retained_arrays import BufferSet
from divisible.planning.shape_arrays import NoNumbersError, ShapeArray

SHAPE = 6, 50, 4
# Each is a function of an array of this shape.
OPERATIONS = [
    lambda x: x * 2,
    lambda x: x + np.float64(1),
    lambda x: 1 - x,
    lambda x: np.ones((6, 1, 1), np.float32) * x,
    lambda x: x**2,
    lambda x: -x > 0,
    lambda x: np.exp(x),
    lambda x: np.frexp(x)[1],
    lambda x: np.maximum(x, 0, dtype=x.dtype),
    lambda x: x.clip(0, 1),
    lambda x: x[:3],
    lambda x: x[0, 0, 0],
    lambda x: x[:, None, ..., :2],
    lambda x: x[[0, 1]],
    lambda x: x[:, np.array([[1, 2]])],
    lambda x: x[None, [0, 1], :, None, np.array([[0], [2]])],
    lambda x: x[..., [0, 1]],
    lambda x: x.sum(),
    lambda x: x.sum(axis=1, keepdims=True),
    lambda x: np.sum(x, axis=(0, -1)),
    lambda x: x.mean(axis=(0, 2)),
    lambda x: x.var(axis=0),
    lambda x: np.amax(x, axis=1),
    lambda x: x.any(),
    lambda x: x.argmax(axis=2),
    lambda x: x.cumsum(axis=1),
    lambda x: x.reshape(300, -1),
    lambda x: x[:, :7].reshape(6, -1),
    lambda x: x.transpose(2, 0, 1).reshape(4, -1),
    lambda x: x.ravel(),
    lambda x: x.flatten(),
    lambda x: x.swapaxes(0, 2),
    lambda x: np.rollaxis(x, 2),
    lambda x: np.expand_dims(x, 1).squeeze(),
    lambda x: np.broadcast_to(x[:, :1], SHAPE),
    lambda x: x @ x.transpose(0, 2, 1),
    lambda x: x[0] @ np.ones(4, np.float32),
    lambda x: np.ones(50, np.float32) @ x,
    lambda x: x.dot(np.ones((4, 9), np.float64)),
    lambda x: np.dot(x, x[0].T),
    lambda x: np.tensordot(x, x, axes=((0, 1), (0, 1))),
    lambda x: np.tensordot(x, x[0, 0], axes=1),
    lambda x: np.einsum("abc,abd->cd", x, x),
    lambda x: np.einsum("abc,abd", x, x),
    lambda x: np.concatenate([x, x], axis=1),
    lambda x: np.stack([x, x], axis=-1),
    lambda x: np.where(x > 0, x, 0),
    lambda x: np.split(x, 2, axis=1)[1],
    lambda x: np.array_split(x, 4)[3],
    lambda x: np.pad(x, ((0, 0), (1, 1), (2, 3)), "constant"),
    lambda x: np.tile(x, (2, 1, 1, 3)),
    lambda x: np.repeat(x, 3, axis=1),
    lambda x: x.astype(np.float16),
    lambda x: x.copy(),
    lambda x: np.zeros_like(x),
    lambda x: np.full_like(x, 3, dtype=np.int32),
    lambda x: x.take(np.zeros((3, 2), int), axis=1),
    lambda x: np.roll(x, 1, axis=0),
    lambda x: next(iter(x)),
    lambda x: copy.deepcopy(x),
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_has_the_shape_and_dtype_that_numpy_computes(operation):
    expected = operation(np.zeros(SHAPE, np.float32))
    found = operation(ShapeArray(SHAPE, np.float32))
    assert isinstance(found, ShapeArray)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


def test_gathers_more_than_memory_has():
    x = ShapeArray((5, 10**9, 10**3), np.float32)
    assert x[np.zeros((20, 30), int)].nbytes == 20 * 30 * 4 * 10**12


@pytest.mark.parametrize("shape", [SHAPE, (), (0, 3), (5,)])
def test_counts_the_bytes_of_an_array_and_has_none(shape):
    array = ShapeArray(shape, np.float64)
    assert array.nbytes == np.zeros(shape).nbytes
    assert BufferSet([array]).nbytes == np.zeros(shape).nbytes
    assert ShapeArray((10**6, 10**6), np.float32).nbytes == 4 * 10**12


def test_operations_in_place_return_the_array_itself():
    x = ShapeArray(SHAPE, np.float32)
    y = x
    y *= 2
    y[:2] = 3
    y[...] = np.ones(SHAPE)
    assert y is x
    assert np.add(x, 1, out=x) is x
    plain = np.zeros(SHAPE, np.float32)
    plain += x
    assert type(plain) is np.ndarray


def test_views_are_of_one_buffer_and_copies_are_not():
    x = ShapeArray(SHAPE, np.float32)
    views = [x[:3], x[0, 0, 0], x.T, x.reshape(-1), np.broadcast_to(x[:1], SHAPE)]
    assert BufferSet([x, *views]).nbytes == x.nbytes
    assert BufferSet([*views, x]).nbytes == x.nbytes
    assert BufferSet([x, x.copy()]).nbytes == 2 * x.nbytes
    assert BufferSet([x, x * 1]).nbytes == 2 * x.nbytes
    real = np.zeros(SHAPE)
    assert BufferSet([real, ShapeArray.of(real)]).nbytes == real.nbytes
    assert ShapeArray.of(x) is x


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1)])
def test_reshapes_as_numpy_where_channels_are_last(shape):
    n, c, h, w = shape
    real = np.zeros((n, h, w, c), np.float32).transpose(0, 3, 1, 2)
    x = ShapeArray(shape, np.float32, channels_last=True)
    for a, b in ((real, x), (real + 1, x + 1), (np.maximum(real, 0), np.maximum(x, 0))):
        expected = BufferSet([a, a.reshape(n, -1)])
        assert len(BufferSet([b, b.reshape(n, -1)])) == len(expected)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: float(x[0, 0, 0]),
        lambda x: bool(x.any()),
        lambda x: range(int(x.max())),
        lambda x: [1, 2][x[0, 0, 0].astype(int)],
        lambda x: x[x > 0],
        lambda x: x[0, 0, 0].item(),
        lambda x: x.tolist(),
        lambda x: np.sort(x),
        lambda x: np.unique(x),
        lambda x: np.linalg.inv(x),
        lambda x: np.where(x > 0),
        lambda x: np.add.at(x, [0], 1),
    ],
)
def test_refuses_what_needs_numbers(operation):
    with pytest.raises(NoNumbersError):
        operation(ShapeArray(SHAPE, np.float32))
