"""The passes over flat buffers, and the loops of update rules, against NumPy."""

import os
import subprocess
import sys

import numpy as np
import pytest

from chainer_kernels import optimizer_loops_cpu as loops
from chainer_kernels import update_rules
from chainer_kernels.formulas import number_names, state_names
from mixed_precision import fused


def gathered(*arrays):
    ends = np.cumsum([a.size for a in arrays])
    return loops.gathered(arrays, ends - [a.size for a in arrays], ends)


@pytest.mark.parametrize("inverse", [1, 2.0**-10, 2.0**3])
def test_unscale_every_float16(inverse):
    half = np.arange(65536, dtype=np.uint16).view(np.float16)
    half = half[np.isfinite(half)]
    parts = gathered(half[:100], half[100:])
    unscaled, sums = np.empty(half.size, np.float32), np.empty(2)
    loops.unscale(parts, np.float32(inverse), unscaled)
    expected = half.astype(np.float32) * np.float32(inverse)
    np.testing.assert_array_equal(unscaled, expected)
    loops.sum_squares(parts, np.float32(inverse), sums)
    squares = expected.astype(np.float64) ** 2
    np.testing.assert_allclose(sums, [squares[:100].sum(), squares[100:].sum()])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", [0, 63, 64, 999])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_every_number_that_is_not_finite_is_seen(dtype, bad, where):
    array = np.full(1000, np.finfo(dtype).max)
    sums = np.empty(1)
    loops.sum_squares(gathered(array), np.float32(1), sums)
    assert np.isfinite(sums[0])
    array[where] = bad
    loops.sum_squares(gathered(array), np.float32(1), sums)
    assert not np.isfinite(sums[0])


# Those of flat buffers; functions/test_optimizers.py compares the others with Chainer.
FORMULAS = [
    *(kernel.formula for kernel in fused.KERNELS.values()),
    update_rules.accumulated_sgd,
]
HALF_STATES = {update_rules.momentum_sgd16}
# Dtype of the gradients, whether there are masters, and float16 weights.
KINDS = [
    (np.float16, True, True),
    (np.float16, False, True),
    (np.float32, True, False),
    (np.float64, True, False),
]
CASES = [
    pytest.param(formula, *kind, id=f"{formula.__name__}-{kind[0].__name__}-{kind[1]}")
    for formula in FORMULAS
    for kind in KINDS
    if formula not in HALF_STATES or kind[0] != np.float64
]


def make_buffers(formula, gradient_dtype, has_weights, has_half):
    """Gradients and buffers of two parameters with a gap, and the numbers."""
    rng = np.random.RandomState(0)
    dtype = np.promote_types(gradient_dtype, np.float32).type
    starts, ends = np.array([0, 64]), np.array([50, 94])
    gradients = [rng.normal(size=n).astype(gradient_dtype) for n in ends - starts]
    values = rng.normal(size=94).astype(dtype)
    half = values.astype(np.float16) if has_half else np.zeros(0, np.float16)
    weights = values if has_weights else np.zeros(0, dtype)
    states = [abs(rng.normal(size=94)).astype(dtype) for _ in state_names(formula)]
    if formula in HALF_STATES:
        states = [state.astype(np.float16) for state in states]
    numbers = [dtype(rng.uniform(0.1, 0.9)) for _ in number_names(formula)]
    return gradients, (starts, ends), weights, half, states, numbers


@pytest.mark.parametrize("formula, gradient_dtype, has_weights, has_half", CASES)
def test_loop_is_its_formula(formula, gradient_dtype, has_weights, has_half):
    kind = gradient_dtype, has_weights, has_half
    gradients, bounds, weights, half, states, numbers = make_buffers(formula, *kind)
    if has_weights and has_half:
        # Somebody changed a weight, which its master gives way to.
        half[3] = 7
    inverse = weights.dtype.type(0.3)
    expected = [array.copy() for array in (weights, half, *states)]
    for gradient, start, end in zip(gradients, *bounds):
        for i in range(start, end):
            weight = weights[i] if has_weights else np.float32(half[i])
            if has_half and np.float16(weight) != half[i]:
                weight = np.float32(half[i])
            unscaled = inverse.dtype.type(gradient[i - start]) * inverse
            new = formula(weight, unscaled, *(s[i] for s in states), *numbers)
            new = new if isinstance(new, tuple) else (new,)
            new = new[:1] * has_weights, new[:1] * has_half, new[1:]
            arrays = expected[:1] * has_weights, expected[1:2] * has_half, expected[2:]
            for array, value in zip(sum(arrays, []), sum(new, ())):
                array[i] = value
    given = loops.gathered(gradients, *bounds)
    loops.update(formula, given, (0, 1), inverse, weights, half, states, numbers)
    for array, other in zip((weights, half, *states), expected):
        np.testing.assert_array_equal(array, other)


def test_only_the_span_is_updated():
    gradients, bounds, weights, half, states, numbers = make_buffers(
        update_rules.momentum_sgd, np.float32, True, False
    )
    before, velocity = weights.copy(), states[0].copy()
    given = loops.gathered(gradients, *bounds)
    arguments = given, (1, 1), np.float32(1), weights, half, states, numbers
    loops.update(update_rules.momentum_sgd, *arguments)
    for array, other in ((weights, before), (states[0], velocity)):
        np.testing.assert_array_equal(array[:64], other[:64])
        assert (array[64:94] != other[64:94]).all()


ANOTHER_PROCESS = """
import numpy as np
from chainer_kernels import optimizer_loops_cpu as loops, update_rules
w, v, h = np.ones(3, "f"), np.zeros(3, "f"), np.zeros(0, np.float16)
given = loops.gathered([w.copy()], np.array([0]), np.array([3]))
numbers = [np.float32(0.5), np.float32(0.9)]
loops.update(
    update_rules.momentum_sgd, given, (0, 0), np.float32(1), w, h, [v], numbers
)
assert (w == 0.5).all()
"""


@pytest.mark.slow
def test_compiled_loops_are_cached(tmp_path):
    """Ranks and runs load what was compiled once."""
    environment = {
        **os.environ,
        "CHAINER_KERNELS_CACHE": str(tmp_path),
        "NUMBA_DEBUG_CACHE": "1",
    }
    command = [sys.executable, "-c", ANOTHER_PROCESS]
    for done in ("saved to", "loaded from"):
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300
        )
        assert result.returncode == 0, result.stderr
        lines = [line for line in result.stdout.splitlines() if "data " in line]
        (line,) = (line for line in lines if "momentum_sgd" in line)
        assert f"data {done}" in line
