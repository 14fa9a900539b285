"""Which batches cuDNN normalizes, on a GPU that is played by NumPy."""

import contextlib

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.functions.normalization.batch_normalization import (
    GeneralBatchNormalizationImpl,
)

import chainer_kernels
from tests.support import fake_cudnn, kernels
from tests.support.fake_cudnn import on_gpu

SHAPE = (4, 3, 5, 2)
AXIS = (0, 2, 3)


def forward(x, gamma, axis=AXIS, running=(None, None)):
    expander = tuple(None if i in axis else slice(None) for i in range(x.ndim))
    # Chainer's own fails, for it has no GPU here.
    with kernels.called() as names, contextlib.suppress(Exception):
        found = GeneralBatchNormalizationImpl().forward(
            *(axis, gamma, x, None, np, expander, gamma, 1e-4, 0.8, *running)
        )
    return found if names else None


@pytest.mark.parametrize("dtype", ["f", "e"])
@pytest.mark.parametrize("gamma_dtype", ["f", "e"])
def test_forward_and_backward(dtype, gamma_dtype):
    x, gy = (kernels.arrays(SHAPE, i).astype(dtype) for i in range(2))
    gamma, mean, var = (kernels.arrays((3,), i).astype(gamma_dtype) for i in (2, 3, 4))
    running = (mean, np.abs(var))
    exact = [a.astype("d") for a in running]
    with chainer_kernels.disabled():
        variables = [chainer.Variable(a.astype("d")) for a in (x, gamma, gamma)]
        y = F.batch_normalization(
            *variables, eps=1e-4, decay=0.8, running_mean=exact[0], running_var=exact[1]
        )
        gradients = chainer.grad([y], variables, [chainer.Variable(gy.astype("d"))])
    x, gy, gamma, *running = map(on_gpu, (x, gy, gamma, *running))
    with fake_cudnn.gpu(), kernels.called() as names:
        found = forward(x, gamma, running=running)
        ours, _, *ours_running, mean, _, inv_std, data = found
        # What was rounded for Chainer is not what backward computes with.
        nothing = [on_gpu(np.full_like(a, np.nan)) for a in (mean, inv_std)]
        gx, _, *others = GeneralBatchNormalizationImpl().backward(
            *(AXIS, gamma, gy, x, None, np, None, *nothing, 1e-4, None, data)
        )
    both = {f"GeneralBatchNormalizationImpl.{way}" for way in ("forward", "backward")}
    assert names == both
    assert [id(a) for a in ours_running] == [id(a) for a in running]
    assert mean.dtype == inv_std.dtype == np.promote_types(dtype, gamma_dtype)
    assert [a.dtype.char for a in (ours, gx)] == [dtype] * 2
    assert [a.dtype.char for a in others] == [gamma_dtype] * 2
    tolerance = 1e-5 if dtype == gamma_dtype == "f" else 5e-3
    for our, right in zip(
        (ours, gx, *others, *ours_running),
        (y.array, *(g.array for g in gradients), *exact),
    ):
        np.testing.assert_allclose(our, right, tolerance, tolerance)


def test_backward_of_what_chainer_normalized():
    x, gy = (on_gpu(kernels.arrays(SHAPE, i)) for i in range(2))
    mean, inv_std = (on_gpu(a) for a in (x.mean(AXIS), 1 / x.std(AXIS)))
    gamma = on_gpu(np.ones(3, "f"))
    with fake_cudnn.gpu(), kernels.called() as names:
        gx, *_ = GeneralBatchNormalizationImpl().backward(
            *(AXIS, gamma, gy, x, None, np, None, mean, inv_std, 0, None, None)
        )
    assert names
    np.testing.assert_allclose(gx.sum(AXIS), np.zeros(3), atol=1e-4)


def test_what_is_left_to_chainer():
    x, gamma = on_gpu(kernels.arrays(SHAPE, 0)), on_gpu(np.ones(3, "f"))
    with fake_cudnn.gpu():
        assert forward(x, gamma) is not None
        assert forward(x, gamma.astype("d")) is None
        assert forward(x[:, :, 0, 0], gamma, (0,)) is None
        assert forward(x[:1, :, :1, :1], gamma) is None
        assert forward(x, on_gpu(np.ones(2, "f")), (0, 1, 2)) is None
        assert forward(x, np.ones(3, "f")) is None
        assert forward(x, gamma, running=(np.ones(3, "f"),) * 2) is None
