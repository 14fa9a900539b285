"""The marks of tests that need a GPU."""

import pytest


def _has_gpu() -> bool:
    try:
        import cupy

        return cupy.is_available()
    # Whatever CUDA raises means no.
    except Exception:
        return False


#: For a module's ``pytestmark``.
NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _has_gpu(), reason="needs CuPy and a GPU"),
]


def _has_cudnn() -> bool:
    if not _has_gpu():
        return False
    from chainer_kernels.providers import cudnn

    return cudnn.is_usable()


#: For what is computed by cuDNN.
NEEDS_CUDNN = [
    *NEEDS_GPU,
    pytest.mark.skipif(not _has_cudnn(), reason="needs the extra divisible[cudnn]"),
]
