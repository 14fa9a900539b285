"""The times of some operators on this machine, with kernels and without."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Callable, NamedTuple

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

import chainer_kernels
from chainer_kernels import product_dtype
from chainer_kernels.layouts import channels_first

_ROUNDS = 5


class Speed(NamedTuple):
    """How long an operator takes, forward and backward.

    Attributes:
        name: The operator's.
        stock: Seconds of Chainer's own arithmetic.
        kernels: Seconds with the kernels.
    """

    name: str
    stock: float
    kernels: float


def measure() -> Iterator[Speed]:
    """Generates the times of some operators, the shortest of some rounds."""
    for name, make in _OPERATORS.items():
        run = make(np.random.RandomState(0))
        times: dict[bool, list[float]] = {True: [], False: []}
        for i in range(2 * _ROUNDS + 2):
            with_kernels = bool(i % 2)
            with _only(with_kernels):
                times[with_kernels].append(_seconds(run))
        # The first calls compile, and allocate.
        yield Speed(name, min(times[False][1:]), min(times[True][1:]))


class ProductSpeed(NamedTuple):
    """How long products take in two dtypes, forward and backward.

    Attributes:
        name: Name of the operator.
        single: Seconds in float32.
        narrow: Seconds with operands rounded to bfloat16.
    """

    name: str
    single: float
    narrow: float


def measure_products() -> Iterator[ProductSpeed]:
    """Generates the times of products in float32 and bfloat16, the shortest of each."""
    for name in filter(_OPERATORS.__contains__, _PRODUCTS):
        run = _OPERATORS[name](np.random.RandomState(0))
        times: dict[str, list[float]] = {dtype: [] for dtype in product_dtype.DTYPES}
        with _only(True):
            for _ in range(_ROUNDS + 1):
                for dtype, seconds in times.items():
                    with product_dtype.scope(dtype):
                        seconds.append(_seconds(run))
        yield ProductSpeed(name, *(min(seconds[1:]) for seconds in times.values()))


@contextlib.contextmanager
def _only(with_kernels: bool) -> Iterator[None]:
    """Puts the kernels in force for a block, or leaves it to Chainer."""
    were_enabled = chainer_kernels.is_enabled()
    (chainer_kernels.enable if with_kernels else chainer_kernels.disable)()
    try:
        yield
    finally:
        (chainer_kernels.enable if were_enabled else chainer_kernels.disable)()


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _variable(random: np.random.RandomState, *shape: int) -> chainer.Variable:
    return chainer.Variable(random.standard_normal(shape).astype(np.float32))


def _images(
    random: np.random.RandomState, n: int, size: int, channels: int
) -> chainer.Variable:
    """Returns images in the memory order in which convolutions leave them."""
    x = random.standard_normal((n, size, size, channels)).astype(np.float32)
    return chainer.Variable(channels_first(x))


def _both_ways(function: Callable, *inputs: chainer.Variable) -> Callable[[], None]:
    """Returns what runs a function forward and backward."""

    def run() -> None:
        y = function(*inputs)
        y.grad = np.ones_like(y.array)
        y.backward()

    return run


def _convolution(random: np.random.RandomState) -> Callable[[], None]:
    link = L.Convolution2D(64, 64, 3, pad=1)
    return _both_ways(link, _images(random, 8, 32, 64))


def _max_pooling(random: np.random.RandomState) -> Callable[[], None]:
    return _both_ways(lambda x: F.max_pooling_2d(x, 2), _images(random, 16, 32, 64))


def _normalization(random: np.random.RandomState) -> Callable[[], None]:
    return _both_ways(L.BatchNormalization(64), _images(random, 16, 32, 64))


def _relu(random: np.random.RandomState) -> Callable[[], None]:
    return _both_ways(F.relu, _images(random, 16, 32, 64))


def _layer_normalization(random: np.random.RandomState) -> Callable[[], None]:
    return _both_ways(L.LayerNormalization(256), _variable(random, 1024, 256))


def _linear(random: np.random.RandomState) -> Callable[[], None]:
    return _both_ways(L.Linear(512, 512), _variable(random, 512, 512))


def _cross_entropy(random: np.random.RandomState) -> Callable[[], None]:
    labels = random.randint(0, 10000, 200).astype(np.int32)
    return _both_ways(
        lambda x: F.softmax_cross_entropy(x, labels), _variable(random, 200, 10000)
    )


def _lstm(random: np.random.RandomState) -> Callable[[], None]:
    link = L.NStepLSTM(1, 256, 256, 0)
    return _both_ways(
        lambda *xs: F.concat(link(None, None, xs)[2], axis=0),
        *(_variable(random, 20, 256) for _ in range(16)),
    )


def _adam(random: np.random.RandomState) -> Callable[[], None]:
    link = L.Linear(1000, 1000)
    optimizer = chainer.optimizers.Adam().setup(link)
    for parameter in link.params():
        parameter.grad = np.ones_like(parameter.array)
    return optimizer.update


_OPERATORS = {
    "convolution 3x3": _convolution,
    "max pooling 2x2": _max_pooling,
    "batch normalization": _normalization,
    "ReLU": _relu,
    "layer normalization": _layer_normalization,
    "linear": _linear,
    "softmax cross entropy": _cross_entropy,
    "LSTM": _lstm,
    "Adam": _adam,
}

#: The operators that are timed in bfloat16 as well.
_PRODUCTS = ("convolution 3x3", "linear", "LSTM")
