"""When cuDNN is to compute, and by which engines."""

from unittest import mock

import chainer
import numpy as np
import pytest

from chainer_kernels.functions import gpu_choice
from chainer_kernels.providers import cudnn
from chainer_kernels.providers.cudnn_library import EngineChoice
from tests.support import fake_cudnn
from tests.support.fake_cudnn import on_gpu


def arrays(dtype="f", *shapes):
    return [on_gpu(np.zeros(shape, dtype)) for shape in shapes or [(2, 3)]]


def test_takes_arrays_of_the_gpu():
    with fake_cudnn.gpu():
        for dtype in "ef":
            assert gpu_choice.takes(*arrays(dtype, (2, 3), (4,)))
        assert not gpu_choice.takes(*arrays("d"))
        assert not gpu_choice.takes(*arrays("e"), *arrays("f"))
        assert not gpu_choice.takes(*arrays("f", (2, 3), (0, 3)))
        assert not gpu_choice.takes(*arrays(), np.zeros(3, "f"))
        with mock.patch.object(cudnn, "device", lambda: 1):
            assert not gpu_choice.takes(*arrays())


def test_may_be_forbidden():
    with fake_cudnn.gpu():
        for setting in ("always", "auto", "never"):
            with chainer.using_config("use_cudnn", setting):
                assert gpu_choice.takes(*arrays()) == (setting != "never")
        for name, value in (
            ("_cudnn_disabled_by_user", True),
            ("cudnn_enabled", True),
            ("available", False),
        ):
            with mock.patch.object(gpu_choice.cuda, name, value):
                assert not gpu_choice.takes(*arrays())
        with mock.patch.object(cudnn, "is_usable", lambda: False):
            assert not gpu_choice.takes(*arrays())


@pytest.mark.parametrize(
    ("dtype", "setting", "tensor_cores"),
    [
        ("e", "auto", True),
        ("f", "auto", False),
        ("f", "always", True),
        ("e", "never", False),
    ],
)
def test_tensor_cores(dtype, setting, tensor_cores):
    (x,) = arrays(dtype)
    with chainer.using_config("use_cudnn_tensor_core", setting):
        assert gpu_choice.choice(x) == EngineChoice(tensor_cores)


def test_settings():
    (x,) = arrays()
    with chainer.using_config("cudnn_deterministic", True):
        assert gpu_choice.choice(x) == EngineChoice(is_deterministic=True)
    with chainer.using_config("autotune", True):
        assert gpu_choice.choice(x) == EngineChoice(is_tuned=True)
    with (
        chainer.using_config("use_cudnn_tensor_core", "sometimes"),
        pytest.raises(ValueError, match="sometimes"),
    ):
        gpu_choice.choice(x)
