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
