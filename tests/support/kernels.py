"""Compares kernels with Chainer's own arithmetic, in float64."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Callable
from unittest import mock

import chainer
import numpy as np
from hypothesis import strategies as st

import chainer_kernels
from chainer_kernels import installing
from chainer_kernels.compiling import Loop

#: The memory orders of activations, as :func:`in_order` takes them.
ORDERS = ("C", "channels last", "gaps", "reversed")


def in_order(array: np.ndarray, order: str) -> np.ndarray:
    """Returns an equal array whose memory is in another order."""
    if order == "channels last" and array.ndim > 2:
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)
    if order == "gaps" and array.ndim:
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if order == "reversed" and array.ndim:
        return np.ascontiguousarray(array[::-1])[::-1]
    return array.copy("C")


def arrays(shape: Sequence[int], seed: int, order: str = "C") -> np.ndarray:
    """Returns normally distributed float32 numbers."""
    random = np.random.RandomState(seed)
    return in_order(np.asarray(random.standard_normal(shape), "f"), order)


orders = st.sampled_from(ORDERS)
seeds = st.integers(0, 2**32 - 1)


@contextlib.contextmanager
def called() -> Iterator[set[str]]:
    """Notes the names of the kernels that computed something in a block."""
    names: set[str] = set()
    original = installing._Kernel.__call__

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        result = original(self, *arguments, **options)
        if result is not NotImplemented:
            names.add(self._entry.name)
        return result

    with mock.patch.object(installing._Kernel, "__call__", call):
        yield names


@contextlib.contextmanager
def loops_used() -> Iterator[list[Loop]]:
    """Notes the loops that a block calls, in the order of their first calls.

    That is when they are compiled, if they are not yet.
    """
    original, used = Loop.compiled, []

    def compiled(loop: Loop) -> Any:
        if loop not in used:
            used.append(loop)
        return original.__get__(loop, Loop)

    with mock.patch.object(Loop, "compiled", property(compiled)):
        yield used


def run(
    function: Callable[..., Any],
    inputs: Sequence[np.ndarray],
    seed: int = 2**31,
    precision: str = "d",
) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
    """Runs a function forward and backward.

    Args:
        function: Of variables, to a variable or several.
        inputs: Arrays; those of integers get no gradient.
        seed: Of the output gradients, which are to differ from the inputs.
        precision: The dtype to which they are rounded first.

    Returns:
        The outputs, and the gradients of the inputs.
    """
    variables = [chainer.Variable(a, requires_grad=a.dtype.kind == "f") for a in inputs]
    outputs = function(*variables)
    outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    gradients = _output_gradients([y.array for y in outputs], seed, precision)
    for y, gy in zip(outputs, gradients):
        y.grad = gy
    with_gradients = [v for v in variables if v.requires_grad]
    found = chainer.grad(outputs, with_gradients, [y.grad_var for y in outputs])
    gradients = iter(found)
    return (
        [y.array for y in outputs],
        [
            None if g is None else g.array
            for g in (next(gradients) if v.requires_grad else None for v in variables)
        ],
    )


def _output_gradients(
    outputs: Sequence[np.ndarray], seed: int, precision: str = "d"
) -> list[np.ndarray]:
    random = np.random.RandomState(seed)
    gradients = [
        np.asarray(random.standard_normal(y.shape), precision) for y in outputs
    ]
    return [gy.astype(y.dtype) for gy, y in zip(gradients, outputs)]


def check(
    function: Callable[..., Any],
    inputs: Sequence[np.ndarray],
    kernels: Sequence[str],
    rtol: float = 1e-5,
    atol: float = 1e-5,
    cancels: bool = False,
) -> None:
    """Compares a function with kernels and Chainer's own in float64.

    Args:
        function: Of variables, to a variable or several.
        inputs: Float32 arrays and integers.
        kernels: The names in the catalogue that are to compute it.
        rtol: Relative tolerance.
        atol: Absolute tolerance, in units of the largest value of the right array.
        cancels: Whether gradients are differences of numbers as large as the output
            gradients. However small they are, they are known to a few roundings of
            those only.
    """
    seed = 2**31
    with called() as names:
        ours, our_gradients = run(function, inputs, seed)
    assert set(kernels) <= names, f"{set(kernels) - names} left it to Chainer"
    with chainer_kernels.disabled():
        chainers, chainers_gradients = run(function, inputs, seed)
        precise = [a.astype("d") if a.dtype.kind == "f" else a for a in inputs]
        right, right_gradients = run(function, precise, seed)
    largest = max(np.abs(gy).max(initial=0) for gy in _output_gradients(right, seed))
    rounding = 4 * np.finfo("f").eps * largest if cancels else 0
    for our, theirs, exact, error in zip(
        [*ours, *our_gradients],
        [*chainers, *chainers_gradients],
        [*right, *right_gradients],
        [0.0] * len(ours) + [rounding] * len(our_gradients),
    ):
        if exact is None:
            assert our is None
            continue
        assert (our.shape, our.dtype) == (theirs.shape, theirs.dtype)
        scale = np.abs(exact).max() if exact.size else 1
        np.testing.assert_allclose(our, exact, rtol, atol * max(scale, 1e-3) + error)


def check_float16(
    function: Callable[..., Any],
    inputs: Sequence[np.ndarray],
    kernels: Sequence[str],
    tolerance: float = 0,
) -> None:
    """Compares a function of float16 with the same of float32, rounded once.

    Shapes and dtypes are Chainer's.

    Args:
        function: Of variables, to a variable or several.
        inputs: Arrays, some of float16.
        kernels: The names in the catalogue that are to compute it.
        tolerance: For what is rounded in between, relative and absolute.
    """
    with called() as names:
        ours, our_gradients = run(function, inputs, precision="e")
    assert set(kernels) <= names, f"{set(kernels) - names} left it to Chainer"
    with chainer_kernels.disabled():
        chainers, chainers_gradients = run(function, inputs, precision="e")
    singles = [a.astype("f") if a.dtype.kind == "f" else a for a in inputs]
    right, right_gradients = run(function, singles, precision="e")
    for our, theirs, exact in zip(
        [*ours, *our_gradients],
        [*chainers, *chainers_gradients],
        [*right, *right_gradients],
    ):
        if theirs is None:
            assert our is None
            continue
        assert (our.shape, our.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(our, exact.astype(our.dtype), tolerance, tolerance)


def check_second_derivative(
    function: Callable[..., Any], inputs: Sequence[np.ndarray]
) -> None:
    """Compares the gradients of the sum of squared gradients with Chainer's own.

    Args:
        function: Of variables, to a variable.
        inputs: Float32 arrays.
    """

    def run() -> list[np.ndarray]:
        variables = [chainer.Variable(a) for a in inputs]
        y = function(*variables)
        gy = chainer.Variable(arrays(y.shape, 2**31))
        first = chainer.grad([y], variables, [gy], enable_double_backprop=True)
        total = sum(chainer.functions.sum(g * g) for g in first if g is not None)
        second = chainer.grad([total], [*variables, gy])
        return [g.array for g in second if g is not None]

    ours = run()
    with chainer_kernels.disabled():
        right = run()
    for our, exact in zip(ours, right):
        np.testing.assert_allclose(our, exact, 1e-4, 1e-4 * np.abs(exact).max())
