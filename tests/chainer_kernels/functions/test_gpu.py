"""Convolutions and batch normalization by cuDNN against Chainer on NumPy in float64."""

import threading
import warnings
from unittest import mock

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.backends.cuda import to_cpu

import chainer_kernels
from chainer_kernels.layouts import is_channels_last
from chainer_kernels.providers import cudnn_library
from tests.support import kernels
from tests.support.gpu import NEEDS_CUDNN

cupy = pytest.importorskip("cupy")

pytestmark = NEEDS_CUDNN

#: In units of the largest number.
TOLERANCES = {"f": 1e-4, "e": 4e-3}

# The shapes of x and W, and the options; of a deconvolution if there is a size.
CONVOLUTIONS = {
    "3 x 3": ((4, 16, 9, 11), (24, 16, 3, 3), dict(pad=1)),
    "few channels": ((5, 3, 17, 7), (7, 3, 3, 3), dict(pad=1)),
    "1 x 1": ((3, 8, 6, 5), (16, 8, 1, 1), {}),
    "1 x 1, stride 2": ((3, 8, 7, 6), (16, 8, 1, 1), dict(stride=2)),
    "stride": ((2, 4, 12, 13), (8, 4, 3, 5), dict(stride=(2, 3), pad=(1, 2))),
    "inputs left over": ((2, 4, 10, 12), (8, 4, 3, 3), dict(stride=3)),
    "dilation": ((2, 8, 12, 12), (8, 8, 3, 3), dict(pad=2, dilate=2)),
    "groups": ((2, 12, 8, 8), (18, 4, 3, 3), dict(pad=1, groups=3)),
    "depthwise": ((2, 16, 9, 9), (16, 1, 3, 3), dict(pad=1, groups=16)),
    "groups, stride": ((2, 8, 9, 9), (8, 4, 3, 3), dict(stride=2, groups=2)),
    "groups, dilation": ((2, 8, 11, 9), (4, 4, 3, 3), dict(groups=2, dilate=(2, 1))),
    "large kernel": ((2, 3, 20, 20), (8, 3, 7, 7), dict(stride=2, pad=3)),
    "one output": ((1, 5, 4, 4), (6, 5, 4, 4), {}),
    "one axis": ((3, 8, 21), (6, 8, 5), dict(stride=2, pad=2)),
    "one axis, dilation, groups": ((3, 8, 21), (6, 4, 3), dict(dilate=3, groups=2)),
    "three axes": ((2, 4, 6, 7, 5), (8, 4, 3, 3, 2), dict(stride=(1, 2, 1), pad=1)),
    "deconvolution": ((3, 8, 5, 6), (8, 4, 4, 4), dict(stride=2, pad=1, outsize=None)),
    "deconvolution of a size": (
        *((2, 6, 5, 5), (6, 4, 3, 3)),
        dict(stride=2, pad=1, outsize=(9, 9)),
    ),
    "deconvolution, groups": (
        *((2, 6, 5, 5), (6, 2, 3, 3)),
        dict(groups=3, dilate=2, outsize=None),
    ),
    "deconvolution of three axes": (
        *((2, 4, 4, 3, 3), (4, 3, 3, 3, 3)),
        dict(stride=2, outsize=None),
    ),
}


def function_of(options, n_axes):
    if "outsize" in options:
        two, any_number = F.deconvolution_2d, F.deconvolution_nd
    else:
        two, any_number = F.convolution_2d, F.convolution_nd
    function = two if n_axes == 2 else any_number
    return lambda *inputs: function(*inputs, **options)


def operands(name, dtype, order="C", seed=0):
    """Returns a function, and arrays for it on the CPU."""
    x_shape, W_shape, options = CONVOLUTIONS[name]
    n = W_shape[0]
    if "outsize" in options:
        n = W_shape[1] * options.get("groups", 1)
    shapes = x_shape, W_shape, (n,)
    arrays = [kernels.arrays(s, seed + i).astype(dtype) for i, s in enumerate(shapes)]
    arrays[0] = kernels.in_order(arrays[0], order)
    return function_of(options, len(W_shape) - 2), arrays


def sent(array):
    """Returns an array on the GPU, in the same order of memory."""
    if array.flags.c_contiguous:
        return cupy.asarray(array)
    if is_channels_last(array):
        return cupy.moveaxis(cupy.asarray(np.moveaxis(array, 1, -1)), -1, 1)
    wide = cupy.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = cupy.asarray(np.ascontiguousarray(array))
    return wide[..., ::2]


def right(function, arrays):
    """Returns the output and the gradients in float64, by Chainer on NumPy."""
    with chainer_kernels.disabled():
        outputs, gradients = kernels.run(function, [a.astype("d") for a in arrays])
    return [*outputs, *gradients]


def on_gpu(function, arrays, gy):
    """Returns the output and the gradients, on the GPU."""
    variables = [chainer.Variable(sent(a)) for a in arrays]
    y = function(*variables)
    gradients = chainer.grad([y], variables, [chainer.Variable(sent(gy))])
    return [y.array, *(g.array for g in gradients)]


def output_gradient(y, dtype):
    (gy,) = kernels._output_gradients([y], 2**31)
    return gy.astype(dtype)


def assert_close(ours, exact, tolerance):
    for our, its in zip(ours, exact):
        assert our.shape == its.shape
        scale = max(np.abs(its).max(initial=0), 1e-3)
        np.testing.assert_allclose(
            to_cpu(our).astype("d"), its, tolerance, tolerance * scale
        )


def compare(function, arrays, dtype, n_kernels, tolerance=None):
    exact = right(function, arrays)
    gy = output_gradient(exact[0], dtype)
    if dtype == "e":
        with chainer_kernels.disabled():
            variables = [chainer.Variable(a.astype("d")) for a in arrays]
            y = function(*variables)
            grads = chainer.grad([y], variables, [chainer.Variable(gy.astype("d"))])
        exact = [y.array, *(g.array for g in grads)]
    with kernels.called() as names, warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        ours = on_gpu(function, arrays, gy)
    assert all(our.dtype == dtype for our in ours)
    assert len(names) == n_kernels, f"cuDNN computed {names} only"
    assert_close(ours, exact, tolerance or TOLERANCES[dtype])
    return ours


@pytest.mark.parametrize("dtype", ["f", "e"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name, dtype):
    function, arrays = operands(name, dtype)
    compare(function, arrays, dtype, 3)


@pytest.mark.parametrize("dtype", ["f", "e"])
@pytest.mark.parametrize("order", ["channels last", "gaps"])
@pytest.mark.parametrize("name", ["3 x 3", "few channels", "groups", "deconvolution"])
def test_memory_order(name, order, dtype):
    function, arrays = operands(name, dtype, order)
    y, gx, gW, _ = compare(function, arrays, dtype, 3)
    if order == "channels last":
        assert is_channels_last(y)
    assert gW.flags.c_contiguous


@pytest.mark.parametrize("seed", range(12))
def test_random_convolutions(seed):
    random = np.random.RandomState(seed)
    kernel = random.randint(1, 5, 2)
    stride, dilate = random.randint(1, 4, 2), random.randint(1, 3, 2)
    pad, groups = random.randint(0, 3, 2), random.choice([1, 2, 5])
    sizes = dilate * (kernel - 1) + 1 + random.randint(0, 9, 2)
    channels, outs = groups * random.randint(1, 20, 2)
    x = kernels.arrays((random.randint(1, 9), channels, *sizes), seed)
    W = kernels.arrays((outs, channels // groups, *kernel), seed + 1)
    b = kernels.arrays((outs,), seed + 2)
    options = dict(stride=stride.tolist(), pad=pad.tolist(), groups=int(groups))

    def function(*inputs):
        return F.convolution_2d(*inputs, dilate=dilate.tolist(), **options)

    compare(function, [x, W, b], "f", 3)


@pytest.mark.parametrize("name", ["3 x 3", "groups", "one axis", "deconvolution"])
def test_second_derivative(name):
    function, arrays = operands(name, "f")

    def second(arrays, xp):
        variables = [chainer.Variable(xp.asarray(a)) for a in arrays]
        y = function(*variables)
        gy = chainer.Variable(xp.asarray(output_gradient(y.array, y.dtype)))
        first = chainer.grad([y], variables, [gy], enable_double_backprop=True)
        total = sum(F.sum(g * g) for g in first)
        found = chainer.grad([total], [*variables[:2], gy])
        return [g.array for g in found]

    with chainer_kernels.disabled():
        exact = second([a.astype("d") for a in arrays], np)
    assert_close(second(arrays, cupy), exact, 1e-3)


def test_tensor_cores_round_float32():
    function = function_of(dict(pad=1), 2)
    arrays = [
        kernels.arrays(shape, i)
        for i, shape in enumerate(((16, 64, 16, 16), (128, 64, 3, 3), (128,)))
    ]
    exact = right(function, arrays)
    gy = output_gradient(exact[0], "f")
    plain = on_gpu(function, arrays, gy)
    with chainer.using_config("use_cudnn_tensor_core", "always"):
        rounded = on_gpu(function, arrays, gy)
    assert_close(rounded, exact, 1e-2)
    error, larger = (
        np.abs(to_cpu(each[0]) - exact[0]).max() for each in (plain, rounded)
    )
    assert error < 1e-5 * np.abs(exact[0]).max() < larger


@pytest.mark.parametrize("dtype", ["f", "e"])
def test_deterministic(dtype):
    function, arrays = operands("3 x 3", dtype)
    with chainer.using_config("cudnn_deterministic", True):
        first, *others = (compare(function, arrays, dtype, 3) for _ in range(5))
    for other in others:
        for a, b in zip(first, other):
            cupy.testing.assert_array_equal(a, b)


def test_tuned():
    function, arrays = operands("3 x 3", "f")
    with chainer.using_config("autotune", True):
        compare(function, arrays, "f", 3)


def test_streams():
    function, arrays = operands("3 x 3", "f")
    exact = right(function, arrays)
    gy = output_gradient(exact[0], "f")
    found = []
    for _ in range(3):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            # What the stream still has to do, convolutions must wait for.
            big = cupy.ones((4096, 4096), "f")
            for _ in range(4):
                big = big @ big * 1e-4
            late = [sent(a) + 0 * big[0, 0] for a in arrays]
            variables = [chainer.Variable(a) for a in late]
            y = function(*variables)
            gradients = chainer.grad([y], variables, [chainer.Variable(sent(gy))])
            found.append([y.array, *(g.array for g in gradients)])
        stream.synchronize()
    for each in found:
        assert_close(each, exact, TOLERANCES["f"])


def test_threads():
    names = ["3 x 3", "groups", "stride", "few channels"]
    failures = []

    def compute(name):
        try:
            function, arrays = operands(name, "f")
            exact = right(function, arrays)
            gy = output_gradient(exact[0], "f")
            with cupy.cuda.Stream(non_blocking=True) as stream:
                for _ in range(5):
                    ours = on_gpu(function, arrays, gy)
                    stream.synchronize()
                    assert_close(ours, exact, TOLERANCES["f"])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=compute, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


def test_may_be_switched_off():
    function, arrays = operands("3 x 3", "f")
    exact = right(function, arrays)
    gy = output_gradient(exact[0], "f")
    with kernels.called() as names:
        with chainer_kernels.disabled():
            chainers = on_gpu(function, arrays, gy)
        with chainer.using_config("use_cudnn", "never"):
            never = on_gpu(function, arrays, gy)
    assert not names
    assert_close(chainers, exact, TOLERANCES["f"])
    assert_close(never, exact, TOLERANCES["f"])


def test_what_cudnn_refuses_is_left_to_chainer():
    function, arrays = operands("3 x 3", "f")
    exact = right(function, arrays)
    gy = output_gradient(exact[0], "f")
    here = cudnn_library._Here()
    here.made = lambda request: "no engine"
    with (
        mock.patch.object(cudnn_library, "_here", here),
        mock.patch.object(cudnn_library, "_complaints", []),
        kernels.called() as names,
        pytest.warns(RuntimeWarning, match="what cuDNN refuses") as caught,
    ):
        ours = on_gpu(function, arrays, gy)
    assert not names
    assert len(caught) == 1
    assert_close(ours, exact, TOLERANCES["f"])


@pytest.mark.parametrize(
    "case", ["float64", "cover_all", "empty", "no output", "mixed dtypes"]
)
def test_left_to_chainer(case):
    function, (x, W, b) = operands("inputs left over", "f")
    if case == "float64":
        x, W, b = (a.astype("d") for a in (x, W, b))
    elif case == "mixed dtypes":
        W = W.astype("e")
    elif case == "empty":
        x = x[:0]
    elif case == "no output":
        x = x[:, :, :2]
    inputs = [sent(a) for a in (x, W, b)]
    if case == "cover_all":
        function = function_of(dict(stride=3, cover_all=True), 2)

    def outcome():
        try:
            return to_cpu(function(*inputs).array)
        except Exception as error:
            return type(error), str(error)

    with kernels.called() as names:
        ours = outcome()
    assert not names
    with chainer_kernels.disabled():
        chainers = outcome()
    assert type(ours) is type(chainers)
    if isinstance(ours, tuple):
        assert ours == chainers
    else:
        np.testing.assert_array_equal(ours, chainers)


@pytest.mark.parametrize("gamma_dtype", ["f", "e"])
@pytest.mark.parametrize("dtype", ["f", "e"])
@pytest.mark.parametrize("order", ["C", "channels last", "gaps"])
# Some other numbers of channels cuDNN refuses.
@pytest.mark.parametrize("shape", [(8, 24, 7, 5), (4, 16, 9), (2, 16, 3, 4, 5)])
def test_batch_normalization(shape, order, dtype, gamma_dtype):
    if (dtype, gamma_dtype) == ("f", "e"):
        pytest.skip("Chainer has no such layer")
    n = shape[1]
    x = kernels.in_order(kernels.arrays(shape, 0).astype(dtype), order)
    gamma, beta = (kernels.arrays((n,), i).astype(gamma_dtype) for i in (1, 2))
    # In float16 sums of small numbers would be rounded many times over.
    gy = kernels.arrays(shape, 3).astype(dtype)
    running = [np.zeros(n, gamma_dtype), np.ones(n, gamma_dtype)]

    def run(arrays, gy, running):
        variables = [chainer.Variable(a) for a in arrays]
        y = F.batch_normalization(
            *variables,
            **dict(eps=1e-4, decay=0.8),
            **dict(running_mean=running[0], running_var=running[1]),
        )
        found = chainer.grad([y], variables, [chainer.Variable(gy)])
        return [y.array, *(g.array for g in found), *running]

    with chainer_kernels.disabled():
        exact = run(
            [a.astype("d") for a in (x, gamma, beta)],
            gy.astype("d"),
            [a.astype("d") for a in running],
        )
    with kernels.called() as names, warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        ours = run(
            [sent(a) for a in (x, gamma, beta)],
            sent(gy),
            [cupy.asarray(a) for a in running],
        )
    assert len(names) == 2
    assert [a.dtype.char for a in ours] == [*dtype * 2, *gamma_dtype * 4]
    if order == "channels last":
        assert is_channels_last(ours[0]) and is_channels_last(ours[1])
    assert_close(ours, exact, TOLERANCES[dtype])


def test_second_derivative_of_batch_normalization():
    shape = (6, 4, 5, 5)
    arrays = [kernels.arrays(s, i) for i, s in enumerate((shape, (4,), (4,)))]

    def second(arrays, xp):
        variables = [chainer.Variable(xp.asarray(a)) for a in arrays]
        y = F.batch_normalization(*variables)
        gy = chainer.Variable(xp.asarray(output_gradient(y.array, y.dtype)))
        (first,) = chainer.grad([y], variables[:1], [gy], enable_double_backprop=True)
        found = chainer.grad([F.sum(first * first)], [*variables[:2], gy])
        return [g.array for g in found]

    with chainer_kernels.disabled():
        exact = second([a.astype("d") for a in arrays], np)
    assert_close(second(arrays, cupy), exact, 1e-3)


def test_batch_of_one_number():
    x = sent(kernels.arrays((1, 5), 0))
    with kernels.called() as names, pytest.warns(UserWarning):
        y = F.batch_normalization(x, cupy.ones(5, "f"), cupy.zeros(5, "f"))
    assert not names
    np.testing.assert_array_equal(to_cpu(y.array), np.zeros((1, 5)))


def test_training():
    def train(device):
        np.random.seed(0)
        model = chainer.Sequential(
            L.Convolution2D(3, 16, 3, pad=1, nobias=True),
            L.BatchNormalization(16),
            F.relu,
            lambda x: F.max_pooling_2d(x, 2),
            L.Convolution2D(16, 8, 3, pad=1, groups=2),
            F.relu,
            L.Deconvolution2D(8, 4, 2, stride=2),
            L.Linear(None, 10),
        )
        x = kernels.arrays((16, 3, 8, 8), 0)
        t = np.arange(16, dtype="i") % 10
        with chainer_kernels.disabled():
            model(x[:1])
        model.to_device(device)
        optimizer = chainer.optimizers.MomentumSGD(0.05).setup(model)
        x, t = model.device.send((x, t))
        losses = []
        for _ in range(5):
            optimizer.update(lambda: F.softmax_cross_entropy(model(x), t))
            losses.append(float(F.softmax_cross_entropy(model(x), t).array))
        with chainer.using_config("train", False):
            losses.append(float(F.softmax_cross_entropy(model(x), t).array))
        return losses

    ours = train("@cupy:0")
    with chainer_kernels.disabled():
        np.testing.assert_allclose(ours, train("@numpy"), 1e-3)
