"""Arrays as tensors of PyTorch."""

import pytest

pytest.importorskip("torch")

from torch_layers.arrays import to_tensor


class OnGpu:
    """Stands for an array of CuPy."""


def test_an_array_of_a_gpu_is_refused():
    with pytest.raises(TypeError, match="NumPy's arrays, not with a .*OnGpu: keep"):
        to_tensor(OnGpu())
