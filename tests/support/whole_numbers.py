"""Products of 8-bit numbers for tests, by NumPy where the processor has none."""

from __future__ import annotations

import numpy as np
import pytest

from chainer_kernels.functions import whole_linear
from chainer_kernels.functions.whole_linear import Choice
from chainer_kernels.providers import whole_numbers


def in_numpy(x: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Returns ``x @ W.T``, int32."""
    return x.astype(np.int32) @ W.T.astype(np.int32)


def offer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offers products of whole numbers, and forgets what was measured of them."""
    monkeypatch.setattr(whole_linear, "_choices", {})
    if whole_numbers.instructions() is None:
        monkeypatch.setattr(whole_numbers, "instructions", lambda: "NumPy")
        monkeypatch.setattr(whole_numbers, "has_product", lambda *shape: 0 not in shape)
        monkeypatch.setattr(whole_numbers, "product", in_numpy)


def choose(shape: tuple[int, int, int], is_whole: bool) -> None:
    """Lets a shape be computed in a way, as if that had been faster."""
    times = (1.0, 2.0) if is_whole else (2.0, 1.0)
    whole_linear._choices[shape] = Choice(*shape, *times)
