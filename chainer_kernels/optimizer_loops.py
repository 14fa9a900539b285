"""The choice between the loops for CPU and for GPU."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np


def loops_for(xp: Any) -> ModuleType:
    """Returns the module with the passes over arrays of ``xp``, NumPy or CuPy.

    Example:
        >>> loops_for(np).__name__
        'chainer_kernels.optimizer_loops_cpu'
    """
    # Each is loaded where it is used: Numba takes a second, and a GPU does not need it.
    if xp is np:
        from chainer_kernels import optimizer_loops_cpu as loops
    else:
        from chainer_kernels import optimizer_loops_gpu as loops
    return loops
