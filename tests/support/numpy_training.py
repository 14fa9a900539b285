"""Mixed precision without Chainer: update rules and a network, by their equations.

A rule is a coroutine. It begins with the weights, is sent unscaled gradients, and
yields the next weights. All are of float64, so the order of operations does not count.
"""

import functools

import numpy as np


def sgd(w, lr=0.01):
    while True:
        w = w - lr * (yield w)


def momentum_sgd(w, lr=0.01, momentum=0.9):
    v = 0.0
    while True:
        v = momentum * v - lr * (yield w)
        w = w + v


def nesterov(w, lr=0.01, momentum=0.9):
    """Chainer has the new momentum where Bengio et al. (2013) have the old."""
    v = 0.0
    while True:
        g = yield w
        v = momentum * v - lr * g
        w = w + momentum**2 * v - (1 + momentum) * lr * g


def adagrad(w, lr=0.001, eps=1e-8):
    h = 0.0
    while True:
        g = yield w
        h = h + g * g
        w = w - lr * g / (np.sqrt(h) + eps)


def adadelta(w, rho=0.95, eps=1e-6):
    squares, steps = 0.0, 0.0
    while True:
        g = yield w
        squares = rho * squares + (1 - rho) * g * g
        step = np.sqrt((steps + eps) / (squares + eps)) * g
        steps = rho * steps + (1 - rho) * step * step
        w = w - step


def rmsprop(w, lr=0.01, alpha=0.99, eps=1e-8):
    squares = 0.0
    while True:
        g = yield w
        squares = alpha * squares + (1 - alpha) * g * g
        w = w - lr * g / (np.sqrt(squares) + eps)


def rmsprop_graves(w, lr=1e-4, alpha=0.95, momentum=0.9, eps=1e-4):
    squares, mean, delta = 0.0, 0.0, 0.0
    while True:
        g = yield w
        squares = alpha * squares + (1 - alpha) * g * g
        mean = alpha * mean + (1 - alpha) * g
        delta = momentum * delta - lr * g / np.sqrt(squares - mean * mean + eps)
        w = w + delta


def smorms3(w, lr=0.001, eps=1e-16):
    memory, mean, squares = 1.0, 0.0, 0.0
    while True:
        g = yield w
        r = 1 / (memory + 1)
        mean = (1 - r) * mean + r * g
        squares = (1 - r) * squares + r * g * g
        x = mean * mean / (squares + eps)
        w = w - g * np.minimum(lr, x) / (np.sqrt(squares) + eps)
        memory = 1 + memory * (1 - x)


def adam(
    w, alpha=0.001, betas=(0.9, 0.999), eps=1e-8, decay=0.0, keeps=False, final=None
):
    """Adam, and with options AdamW, AMSGrad (keeps), AdaBound and AMSBound (final)."""
    m, v, largest, t = 0.0, 0.0, 0.0, 0
    while True:
        g = yield w
        t += 1
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        largest = np.maximum(largest, v) if keeps else v
        rate = alpha * np.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t)
        rate = rate / (np.sqrt(largest) + eps)
        if final is not None:
            span = 1e-3 * t
            rate = np.clip(rate, final * (1 - 1 / (span + 1)), final * (1 + 1 / span))
        w = w - rate * m - decay * w


def msvag(w, lr=0.01, beta=0.9):
    """Balles and Hennig (2018), equation (28)."""
    m, v, t = 0.0, 0.0, 0
    while True:
        g = yield w
        t += 1
        m = beta * m + (1 - beta) * g
        v = beta * v + (1 - beta) * g * g
        mean, square = m / (1 - beta**t), v / (1 - beta**t)
        rho = (1 - beta) * (1 + beta**t) / ((1 + beta) * (1 - beta**t))
        variance = (square - mean**2) / (1 - min(rho, 0.9999))
        w = w - lr * mean * np.clip(mean**2 / (mean**2 + rho * variance), 0, 1)


def lars(w, lr=0.5, momentum=0.9, eta=0.01, decay=0.01):
    """Naruse's slide, with momentum and the weight decay of You et al. (2017)."""
    v = 0.0
    while True:
        g = yield w
        size, slope = np.linalg.norm(w), np.linalg.norm(g)
        rate = eta * size / (slope + decay * size) if size and slope else 1.0
        v = momentum * v - lr * rate * (g + decay * w)
        w = w + v


def momentum_sgd16(w, scale, lr=0.01, momentum=0.9):
    """Naruse's modified momentum SGD; the sum of scaled gradients is of float16."""
    total = np.zeros_like(w)
    while True:
        total = as_half(momentum * total + scale * (yield w))
        w = as_half(w - lr / scale * total)


#: Optimizers of Chainer and of ``mixed_precision``, by name, with their equations.
RULES = {
    "AMSBound": functools.partial(adam, keeps=True, final=0.1),
    "AMSGrad": functools.partial(adam, keeps=True),
    "AdaBound": functools.partial(adam, final=0.1),
    "AdaDelta": adadelta,
    "AdaGrad": adagrad,
    "Adam": adam,
    "AdamW": functools.partial(adam, decay=0.01),
    # Differs from momentum SGD only where the learning rate changes.
    "CorrectedMomentumSGD": momentum_sgd,
    "LARS": lars,
    "MSVAG": msvag,
    "MomentumSGD": momentum_sgd,
    "MomentumSGD16": momentum_sgd16,
    "NesterovAG": nesterov,
    "RMSprop": rmsprop,
    "RMSpropGraves": rmsprop_graves,
    "SGD": sgd,
    "SMORMS3": smorms3,
}


def begin(name, param, scale):
    """Returns the rule of an optimizer for a parameter, ready for a gradient."""
    rule, w = RULES[name], param.array.astype(np.float64)
    if rule is momentum_sgd16:
        # In float32 it is momentum SGD.
        is_half = param.dtype == np.float16
        started = rule(w, scale) if is_half else momentum_sgd(w)
    else:
        started = rule(w)
    next(started)
    return started


def as_half(x):
    """Rounds to the nearest float16, as float64."""
    return np.asarray(x).astype(np.float16).astype(np.float64)


def gradients(weights, x, t, scale):
    """Returns the loss, and the scaled gradients of two layers, ``(W1, b1, W2, b2)``.

    Weights are float16 numbers. All that a layer returns is rounded to float16, and so
    are the gradients of it. The loss is not rounded.
    """
    W1, b1, W2, b2 = weights
    x = as_half(x)
    h = np.maximum(as_half(x @ W1.T + b1), 0)
    y = as_half(h @ W2.T + b2)
    p = np.exp(y - y.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    rows = np.arange(len(t))
    loss = -np.log(p[rows, t]).mean()
    p[rows, t] -= 1
    gy = as_half(p * scale / len(t))
    gh = as_half(gy @ W2) * (h > 0)
    found = gh.T @ x, gh.sum(axis=0), gy.T @ h, gy.sum(axis=0)
    return loss, [as_half(g) for g in found]
