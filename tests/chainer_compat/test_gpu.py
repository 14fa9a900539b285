"""Chainer on CuPy against Chainer on NumPy. Skipped without a GPU."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from tests.support.gpu import NEEDS_GPU

cupy = pytest.importorskip("cupy")

pytestmark = NEEDS_GPU

TOLERANCE = {"float32": 1e-4, "float16": 2e-2}
T = np.array([0, 2, 1, 2], "i")

# Input shape and function; links are made by a call so that each has its own seed.
CASES = {
    "convolution": ((4, 3, 8, 8), lambda: L.Convolution2D(3, 5, 3, pad=1)),
    "deconvolution": ((4, 3, 5, 5), lambda: L.Deconvolution2D(3, 2, 4, 2, 1)),
    "linear": ((4, 7), lambda: L.Linear(7, 5)),
    "batch_normalization": ((4, 3, 5, 5), lambda: L.BatchNormalization(3)),
    "layer_normalization": ((4, 6), lambda: L.LayerNormalization(6)),
    "max_pooling": ((4, 3, 8, 8), lambda: lambda x: F.max_pooling_2d(x, 3, 2)),
    "average_pooling": ((4, 3, 8, 8), lambda: lambda x: F.average_pooling_2d(x, 2)),
    "relu": ((4, 6), lambda: F.relu),
    "sigmoid": ((4, 6), lambda: F.sigmoid),
    "softmax": ((4, 6), lambda: F.softmax),
    "lstm": ((4, 6), lambda: L.LSTM(6, 5)),
    "softmax_cross_entropy": (
        (4, 3),
        lambda: lambda x: F.softmax_cross_entropy(x, x.xp.asarray(T)),
    ),
    "mean_squared_error": (
        (4, 3),
        lambda: lambda x: F.mean_squared_error(x, x.xp.zeros_like(x.array)),
    ),
    "pad_sequence": ((2, 3), lambda: lambda x: F.pad_sequence([x[0], x[1][:2]])),
    "resize_images": ((1, 2, 4, 4), lambda: lambda x: F.resize_images(x, (7, 7))),
}


def run(make, x, dtype, to_gpu):
    """Returns the output, the input's gradient and the parameters' gradients."""
    np.random.seed(0)
    with chainer.using_config("dtype", np.dtype(dtype)):
        function = make()
        if isinstance(function, chainer.Link):
            function.to_device("@cupy:0" if to_gpu else "@numpy")
        x = chainer.Variable(cupy.asarray(x) if to_gpu else x)
        y = function(x)
        if isinstance(function, chainer.Link):
            function.cleargrads()  # they begin as NaN, which would equal anything
        F.sum(y * y).backward()
    params = function.params() if isinstance(function, chainer.Link) else []
    grads = [param.grad for param in params if param.grad is not None]
    arrays = [y.array, x.grad, *grads]
    assert all(a.dtype == y.dtype for a in arrays[:2])
    return [chainer.cuda.to_cpu(array) for array in arrays]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(name, dtype):
    if (name, dtype) == ("resize_images", "float16"):
        pytest.skip("F.resize_images takes float32 only")
    shape, make = CASES[name]
    x = np.random.RandomState(1).uniform(-1, 1, shape).astype(dtype)
    expected, actual = (run(make, x, dtype, to_gpu) for to_gpu in (False, True))
    tolerance = TOLERANCE[dtype]
    if (name, dtype) == ("batch_normalization", "float16"):
        tolerance = 0.1  # beta's gradient: CuPy adds 100 numbers that cancel in float16
    for a, b in zip(expected, actual):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(
            a.astype("f"), b.astype("f"), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_dropout(dtype):
    x = chainer.Variable(cupy.ones((100, 100), dtype))
    y = F.dropout(x, 0.25)
    F.sum(y).backward()
    kept = chainer.cuda.to_cpu(y.array) != 0
    assert 0.7 < kept.mean() < 0.8
    np.testing.assert_allclose(chainer.cuda.to_cpu(x.grad)[kept], 4 / 3, rtol=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "name", ["SGD", "MomentumSGD", "NesterovAG", "Adam", "AdaGrad", "RMSprop"]
)
def test_optimizer(name, dtype):
    def train(device):
        np.random.seed(0)
        with chainer.using_config("dtype", np.dtype(dtype)):
            model = L.Linear(4, 3)
        model.to_device(device)
        optimizer = getattr(chainer.optimizers, name)()
        optimizer.setup(model)
        optimizer.use_fp32_update(dtype == "float16")
        x = np.random.RandomState(1).rand(4, 4).astype(dtype)
        for _ in range(3):
            array = model.device.send(x)
            optimizer.update(
                lambda array=array: F.softmax_cross_entropy(
                    model(array), model.device.send(T)
                )
            )
        return chainer.cuda.to_cpu(model.W.array)

    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(
        train("@numpy"), train("@cupy:0"), rtol=tolerance, atol=tolerance
    )


def test_tensor_core_flag_without_cudnn():
    flag = chainer.backends.cuda.should_use_cudnn_tensor_core(np.float16)
    assert flag in (True, False)


@pytest.mark.parametrize("wire", ["float16", "float32", "float64"])
@pytest.mark.parametrize("batched", [False, True])
def test_chainermn_packs_and_unpacks(batched, wire):
    pytest.importorskip("mpi4py")
    from chainermn import nccl
    from chainermn.communicators import _memory_utility as memory

    if batched and not nccl._available:
        pytest.skip("the batched kernels number dtypes as NCCL does")
    params = []
    for i, dtype in enumerate(["float16", "float32", "float64"]):
        param = chainer.Parameter(cupy.zeros(i + 3, dtype))
        param.grad = cupy.arange(i + 3).astype(dtype)
        params.append(param)
    buffer = memory.DeviceMemory()
    buffer.assign(12 * np.dtype(wire).itemsize)
    if batched:
        data = memory.ParamsData(params, "grad", False)
        memory._batched_pack_params(data, buffer, np.dtype(wire))
    else:
        memory.pack_params(params, "grad", buffer, np.dtype(wire), False)
    for param in params:
        param.grad[...] = -1
    if batched:
        memory._batched_unpack_params(data, buffer, np.dtype(wire))
    else:
        memory.unpack_params(params, "grad", buffer, np.dtype(wire), False)
    for param in params:
        np.testing.assert_array_equal(param.grad.get(), np.arange(param.size))


def test_parallel_updater_gathers_and_scatters():
    from chainer.training.updaters import multiprocess_parallel_updater as updater

    model = chainer.Chain()
    with model.init_scope():
        model.a = chainer.Parameter(np.arange(3, dtype="e"))
        model.b = chainer.Parameter(np.arange(4, dtype="f"))
    model.to_device("@cupy:0")
    gathered = updater.gather_params(model)
    np.testing.assert_array_equal(gathered.get(), [0, 1, 2, 0, 1, 2, 3])
    updater.scatter_params(model, gathered + 1)
    np.testing.assert_array_equal(model.a.array.get(), [1, 2, 3])
    np.testing.assert_array_equal(model.b.array.get(), [1, 2, 3, 4])
