"""Runs tests of products in bfloat16 by each of their providers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Callable
from unittest import mock

import chainer
import numpy as np

import chainer_kernels
from chainer_kernels import providers
from chainer_kernels.bfloat16 import rounded
from chainer_kernels.providers.rounded import RoundedOperands
from tests.support import kernels


def bfloat16_providers() -> list[ModuleType | RoundedOperands]:
    """Returns the providers that can compute here."""
    without = RoundedOperands(providers.active())
    if providers.bfloat16_instructions() is None:
        return [without]
    from chainer_kernels.providers import onednn_bfloat16

    return [without, onednn_bfloat16]


def in_bfloat16(test: Callable) -> Callable:
    """Makes a test run by each provider of products in bfloat16, one after the other.

    Without instructions there is one, and its warning is left out.
    """

    @functools.wraps(test)
    def run(*arguments: Any, **options: Any) -> None:
        for provider in bfloat16_providers():
            with mock.patch.object(providers, "_in_bfloat16", lambda p=provider: p):
                test(*arguments, **options)

    return run


def check(function: Callable[..., Any], inputs: Sequence[np.ndarray]) -> None:
    """Compares a bilinear function with Chainer's, in float64, of rounded inputs.

    The output gradients are rounded as well. Chainer's second derivatives are compared
    too, for they are products again.

    Args:
        function: Of two variables, to a variable.
        inputs: Float32 arrays.
    """
    with chainer_kernels.products("bfloat16"):
        ours = _derivatives(function, inputs, "f")
    with chainer_kernels.disabled():
        right = _derivatives(function, [rounded(a) for a in inputs], "d")
    for our, exact in zip(ours, right):
        assert (our.shape, our.dtype) == (exact.shape, np.float32)
        scale = np.abs(exact).max(initial=0)
        np.testing.assert_allclose(our, exact, 1e-5, 1e-5 * scale)


def _derivatives(
    function: Callable[..., Any], inputs: Sequence[np.ndarray], dtype: str
) -> list[np.ndarray]:
    """Returns the output, its gradients, and gradients of sums of these."""
    variables = [chainer.Variable(a.astype(dtype)) for a in inputs]
    y = function(*variables)
    gy = chainer.Variable(rounded(kernels.arrays(y.shape, 2**31)).astype(dtype))
    found = chainer.grad([y], variables, [gy], enable_double_backprop=True)
    # Gradients of gradients are rounded numbers, so that all operands are.
    weights = [
        rounded(kernels.arrays(g.shape, 7 + i)).astype(dtype)
        for i, g in enumerate(found)
    ]
    gradients = [chainer.Variable(w) for w in weights]
    # Chainer's deconvolution has no gradient of its weights alone.
    second = chainer.grad(found, [*variables, gy], gradients)
    return [each.array for each in (y, *found, *second)]
