"""Products of 8-bit numbers for tests, by NumPy where the processor has none."""

from __future__ import annotations

import numpy as np
import pytest

from chainer_kernels import whole_numbers
from chainer_kernels.functions import whole_layers
from chainer_kernels.functions.whole_layers import LayerChoice
from chainer_kernels.geometry import Geometry


def in_numpy(x: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Returns ``x @ W.T``, int32."""
    return x.astype(np.int32) @ W.T.astype(np.int32)


def convolved_in_numpy(x: np.ndarray, W: np.ndarray, geometry: Geometry) -> np.ndarray:
    """Returns a convolution (N, *sizes, O) of (N, *sizes, C), int32, unpadded."""
    y = np.zeros((len(x), *geometry.output_sizes(x.shape[1:-1]), len(W)), np.int32)
    n_channels, n_outputs = W.shape[1], len(W) // geometry.groups
    for group in range(geometry.groups):
        ins = slice(group * n_channels, (group + 1) * n_channels)
        outs = slice(group * n_outputs, (group + 1) * n_outputs)
        for tap in np.ndindex(*geometry.kernel):
            places = tuple(
                slice(i * d, i * d + s * (n - 1) + 1, s)
                for i, d, s, n in zip(
                    tap, geometry.dilation, geometry.stride, y.shape[1:]
                )
            )
            read = x[(slice(None), *places, ins)].astype(np.int32)
            y[..., outs] += read @ W[(outs, slice(None), *tap)].T.astype(np.int32)
    return y


def offer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offers products of whole numbers, and forgets what was measured of them."""
    monkeypatch.setattr(whole_layers, "_choices", {})
    if whole_numbers.instructions() is None:
        monkeypatch.setattr(whole_numbers, "instructions", lambda: "NumPy")
        for name in ("has_product", "has_convolution"):
            monkeypatch.setattr(whole_numbers, name, lambda x, *rest: 0 not in x)
        monkeypatch.setattr(whole_numbers, "product", in_numpy)
        monkeypatch.setattr(whole_numbers, "convolution", convolved_in_numpy)


def choose(
    x: tuple[int, ...],
    W: tuple[int, ...],
    is_whole: bool,
    geometry: Geometry | None = None,
) -> None:
    """Lets a shape be computed in a way, as if that had been faster."""
    times = (1.0, 2.0) if is_whole else (2.0, 1.0)
    whole_layers._choices[x, W, geometry] = LayerChoice(x, W, geometry, *times)
