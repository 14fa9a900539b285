"""What formulas become in CUDA, and what they may not use."""

import numpy as np
import pytest

from chainer_kernels import formulas, update_rules

# What ran through CuPy's own update rules, letter by letter.
IN_CUDA = {
    update_rules.sgd: "weight -= lr * gradient;",
    update_rules.momentum_sgd: "v = momentum * v - lr * gradient; weight += v;",
    update_rules.adam: (
        "m += rate1 * (gradient - m);"
        " v += rate2 * (gradient * gradient - v);"
        " weight = keep * weight - eta * (alpha_t / (sqrt(v) + eps) * m);"
    ),
    update_rules.momentum_sgd16: (
        "W total = momentum * static_cast<float>(g) + gradient;"
        " g = float16(min(max(total, -65504.0f), 65504.0f));"
        " weight -= lr * static_cast<float>(g);"
    ),
    update_rules.accumulated_sgd: "g = momentum * g + gradient; weight -= lr * g;",
}


@pytest.mark.parametrize("formula", IN_CUDA)
def test_cuda(formula):
    assert formulas.as_cuda(formula) == IN_CUDA[formula]


TWO = np.float32(2)


def literal(weight, gradient, /, lr):
    weight -= 0.5 * gradient
    return weight


def constant(weight, gradient, /, lr):
    """A variable that is declared once, and a constant of the module."""
    step = lr * gradient
    step = -step / TWO
    weight += step
    return weight


def power(weight, gradient, /, lr):
    weight -= lr * gradient**TWO
    return weight


def condition(weight, gradient, /, lr):
    weight -= lr * gradient if lr > gradient else lr
    return weight


def unknown_function(weight, gradient, /, lr):
    weight -= np.tanh(lr * gradient)
    return weight


def unknown_name(weight, gradient, /, lr):
    weight -= lr * momentum * gradient  # noqa: F821
    return weight


def loop(weight, gradient, /, lr):
    for _ in range(2):
        weight -= lr * gradient
    return weight


def by_keyword(weight, gradient, /, lr):
    weight = max(weight, key=lr)
    return weight


def test_variables_and_constants():
    expected = "W step = lr * gradient; step = -step / 2.0f; weight += step;"
    assert formulas.as_cuda(constant) == expected


@pytest.mark.parametrize(
    "formula",
    [literal, power, condition, unknown_function, unknown_name, loop, by_keyword],
)
def test_what_c_writes_otherwise_is_refused(formula):
    message = f"{formula.__name__} cannot be written in CUDA for "
    with pytest.raises(ValueError, match=message):
        formulas.as_cuda(formula)


def state_is_lost(weight, gradient, v, /, lr):
    v -= lr * gradient
    weight += v
    return weight


def wrong_order(weight, gradient, v, /, lr):
    return v, weight


def nothing_returned(weight, gradient, /, lr):
    weight -= lr * gradient


@pytest.mark.parametrize("formula", [state_is_lost, wrong_order, nothing_returned])
def test_results_are_the_weight_and_the_states(formula):
    with pytest.raises(ValueError, match=f"{formula.__name__} must return weight"):
        formulas.as_cuda(formula)


def with_n(weight, gradient, n, /, lr):
    n += gradient
    weight -= lr * n
    return weight, n


def test_names_of_cupy_are_refused():
    with pytest.raises(ValueError, match="with_n: CuPy has a use for"):
        formulas.as_cuda(with_n)
