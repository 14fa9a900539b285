"""The kernels for GPUs against those for CPUs; skipped without a GPU."""

import chainer
import numpy as np
import pytest

from chainer_kernels import float8
from chainer_kernels import optimizer_loops_cpu as _cpu
from mixed_precision import MixedPrecision, MomentumSGD16, to_float16

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not chainer.backends.cuda.available, reason="needs a GPU"),
]


def both(array):
    return array, chainer.get_device("@cupy:0").send(array)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_float8(dtype):
    bits = np.random.RandomState(0).randint(0, 2**16, 100_000).astype(np.uint16)
    x = bits.view(np.float16).astype(dtype)
    host, device = both(x)
    codes = float8.encode(host, 0.25)
    np.testing.assert_array_equal(codes, float8.encode(device, 0.25).get())
    host, device = both(codes)
    for out in (np.float16, np.float32):
        expected = float8.decode(host, 0.5, dtype=out)
        actual = float8.decode(device, 0.5, dtype=out).get()
        np.testing.assert_array_equal(actual, expected)


def test_sums_of_squares():
    from chainer_kernels import optimizer_loops_gpu as _gpu

    rng = np.random.RandomState(0)
    arrays = [rng.normal(size=n).astype("e") for n in (1, 64, 0, 5000, 100_000)]
    sizes = np.array([a.size for a in arrays])
    ends = np.cumsum(-(-sizes // 64) * 64) - (-sizes % 64)
    starts = ends - sizes
    expected, actual = np.empty(5), np.empty(5)
    _cpu.sum_squares(_cpu.gathered(arrays, starts, ends), np.float32(0.5), expected)
    on_device = _gpu.gathered([both(a)[1] for a in arrays], starts, ends)
    _gpu.sum_squares(on_device, np.float32(0.5), actual)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)
    again = np.empty(5)
    _gpu.sum_squares(on_device, np.float32(0.5), again)
    np.testing.assert_array_equal(actual, again)


@pytest.mark.parametrize("with_hook", [False, True])
@pytest.mark.parametrize(
    "make_optimizer",
    [
        chainer.optimizers.SGD,
        chainer.optimizers.MomentumSGD,
        chainer.optimizers.Adam,
        chainer.optimizers.AdaGrad,
        MomentumSGD16,
    ],
)
def test_updates(make_optimizer, with_hook):
    weights = []
    for device in ("@numpy", "@cupy:0"):
        np.random.seed(0)
        model = chainer.Sequential(
            chainer.links.Linear(50, 40), chainer.links.BatchNormalization(40)
        )
        to_float16(model).to_device(device)
        optimizer = MixedPrecision(make_optimizer(), loss_scale=64).setup(model)
        if with_hook:
            optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.01))
            optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(1.0))
        rng = np.random.RandomState(1)
        for step in range(4):
            for param in model.params():
                gradient = rng.normal(size=param.shape).astype(param.dtype) * 64
                param.grad = param.device.send(gradient.astype(param.dtype))
                param._loss_scale = 64
            if step == 2:
                model[0].W.grad[0, 0] = np.inf
            optimizer.update()
        assert (optimizer.t, optimizer.n_skipped) == (3, 1)
        model.to_cpu()
        weights.append([param.array for param in model.params()])
    for a, b in zip(*weights):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-6)
