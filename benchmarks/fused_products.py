"""Products and what is between them as one function, against single functions.

    OMP_NUM_THREADS=1 python -m benchmarks.fused_products
    OMP_NUM_THREADS=2 python -m benchmarks.fused_products --output two_threads.txt

Two linear layers with a tanh between them run forward and backward::

    one by one    a function for each layer
    layers        Linear > tanh as a product and a loop, and Linear
    perceptron    all as one function, where that was measured faster

``L.LSTM`` and ``L.GRU`` run steps of sequences forward and backward::

    functions     products, additions, gates: a function for each
    steps         each step as one function

All ways take turns in one run. Ratios are those of layers over perceptron, and of
functions over steps. It is checked that the bits are the same. A sequence of GRU adds
up in another order, and is compared within rounding.

With one thread, the time within products and loops is measured as well. Python runs the
rest, on one core at a time. Two cores save at most half of the time within.

With two threads, the products of the steps are measured as well: on one thread, on all
threads of oneDNN, and in blocks of rows, which the threads of loops take.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import threadpoolctl

from benchmarks.common.results import (
    Result,
    alternate,
    command,
    cpu_seconds,
    machine,
    ratios,
)
from chainer_kernels import providers, threads
from chainer_kernels.compiling import Loop
from chainer_kernels.functions import recurrent_links
from chainer_kernels.fusion import perceptrons
from chainer_kernels.providers import onednn, onednn_library
from chainer_kernels.providers.onednn_products import SMALLEST_PRODUCT
from divisible import Divisible

#: Seconds that one measurement takes at least, for the clock.
_LONG = 0.05
WIDTHS, BATCHES = (64, 128, 256), (16, 64)
#: Recurrent links, and how many steps of a sequence they run.
LINKS, N_STEPS = {"LSTM": L.LSTM, "GRU": L.GRU}, (1, 8)


def made(width: int) -> Divisible:
    """Returns two linear layers of a width, the same in each call."""
    np.random.seed(0)
    return Divisible(L.Linear(width, width), F.tanh, L.Linear(width, width))


def step(model: Divisible, x: np.ndarray) -> list[np.ndarray]:
    """Returns the output, and the gradients of the input and all parameters."""
    model.cleargrads()
    leaf = chainer.Variable(x)
    y = model(leaf)
    y.grad = np.ones_like(y.array)
    y.backward()
    return [y.array, leaf.grad, *(param.grad for param in model.params())]


def models(width: int, x: np.ndarray) -> tuple[dict[str, Divisible], bool]:
    """Returns a model for each way, and whether the perceptron was chosen."""
    found = {name: made(width) for name in ("one by one", "layers", "perceptron")}
    with mock.patch.object(perceptrons, "_LARGEST", 0):
        found["layers"].fuse()
        step(found["layers"], x)
    found["perceptron"].fuse()
    step(found["perceptron"], x)
    (choice,) = found["perceptron"].fusion_choices
    return found, choice.is_fused and choice.end == 3


def seconds_of(call: Callable[[], Any]) -> float:
    """Returns the seconds of one call, of as many calls as the clock needs.

    With one thread these are seconds of the processor, on which other processes have
    less influence.
    """
    clock = time.process_time if threads.blas_threads() == 1 else time.perf_counter
    start, n = clock(), 0
    while n == 0 or clock() - start < _LONG:
        call()
        n += 1
    return (clock() - start) / n


def steps(link: Any, xs: list[np.ndarray], state: list[np.ndarray]) -> list[np.ndarray]:
    """Returns outputs, and the gradients of inputs, the state and all parameters."""
    link.cleargrads()
    leaves = [chainer.Variable(a) for a in (*xs, *state)]
    link.set_state(*leaves[len(xs) :])
    ys = [link(x) for x in leaves[: len(xs)]]
    ys[-1].grad = np.ones_like(ys[-1].array)
    ys[-1].backward()
    gradients = [each.grad for each in (*leaves, *link.params())]
    return [*(y.array for y in ys), *gradients]


def by_functions(call: Callable[[], Any]) -> Any:
    """Calls a function with recurrent links left to Chainer's code."""
    with mock.patch.object(recurrent_links, "_parameters_of", lambda *_: None):
        return call()


def call_of(name: str, n_steps: int, width: int, batch: int) -> Callable[[], list]:
    """Returns what runs steps of a link forward and backward."""
    np.random.seed(0)
    link, random = LINKS[name](width, width), np.random.default_rng(1)
    n_states = 2 if name == "LSTM" else 1
    *xs, last = random.normal(size=(n_steps + n_states, batch, width)).astype("f")
    return functools.partial(steps, link, xs[:n_steps], [*xs[n_steps:], last])


def measure_steps(
    result: Result, name: str, n_steps: int, shape: tuple[int, int], rounds: int
) -> float:
    """Measures a link for a width and a batch, and returns the ratio."""
    width, batch = shape
    call = call_of(name, n_steps, width, batch)
    calls = {"functions": functools.partial(by_functions, call), "steps": call}
    for one, other in zip(*(run() for run in calls.values())):
        if name == "LSTM" or n_steps == 1:
            np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, other, 1e-3, 1e-3 * np.abs(other).max())
    seconds = alternate(calls, rounds, seconds_of)
    ms = {way: 1e3 * statistics.median(each) for way, each in seconds.items()}
    ratio = ratios(seconds["functions"], seconds["steps"])
    result.write(
        f"{name:4} {n_steps:5d} {width:5d} {batch:5d} {ms['functions']:10.3f}"
        f" {ms['steps']:8.3f}  {ratio}"
    )
    return ms["functions"] / ms["steps"]


def measure(result: Result, width: int, batch: int, rounds: int) -> float | None:
    """Measures a width and a batch; returns the ratio where a perceptron is chosen."""
    x = np.random.default_rng(1).normal(size=(batch, width)).astype(np.float32)
    found, is_chosen = models(width, x)
    calls = {name: functools.partial(step, model, x) for name, model in found.items()}
    expected, *others = (call() for call in calls.values())
    for arrays in others:
        for one, other in zip(expected, arrays):
            np.testing.assert_array_equal(one, other)
    seconds = alternate(calls, rounds, seconds_of)
    ms = {name: 1e3 * statistics.median(each) for name, each in seconds.items()}
    ratio = ratios(seconds["layers"], seconds["perceptron"])
    result.write(
        f"{width:5d} {batch:5d} {ms['one by one']:10.3f} {ms['layers']:8.3f}"
        f" {ms['perceptron']:10.3f}  {ratio:<20} {'yes' if is_chosen else 'no'}"
    )
    return ms["layers"] / ms["perceptron"] if is_chosen else None


class Case(NamedTuple):
    """A function that runs forward and backward.

    Attributes:
        name: Its name.
        n_steps: Number of steps of a sequence.
        width: Number of columns.
        batch: Number of rows.
        call: Runs it.
    """

    name: str
    n_steps: int
    width: int
    batch: int
    call: Callable[[], list[np.ndarray]]


def cases() -> Iterator[Case]:
    """Generates fused perceptrons, and steps of recurrent links."""
    for width, batch in itertools.product(WIDTHS, BATCHES):
        x = np.random.default_rng(1).normal(size=(batch, width)).astype(np.float32)
        model = made(width)
        model.fuse([(0, 3)])
        yield Case("perceptron", 1, width, batch, functools.partial(step, model, x))
    for name, n_steps in itertools.product(LINKS, N_STEPS):
        for width, batch in itertools.product(WIDTHS, BATCHES):
            call = call_of(name, n_steps, width, batch)
            yield Case(name, n_steps, width, batch, call)


def set_threads(n: int) -> None:
    """Sets on how many threads oneDNN computes what this thread calls."""
    for library in threadpoolctl.ThreadpoolController().lib_controllers:
        if library.user_api == "openmp":
            library.set_num_threads(n)


def pooled(call: Callable[[int, int], Any], n: int) -> None:
    """Runs a function over a range, a share on each of the threads of loops."""
    threads.run_ranges(call, n, size=threads.SMALLEST_SHARE * threads.blas_threads())


def measure_blocks(result: Result, n_rounds: int) -> None:
    """Measures products on one thread, on all of oneDNN, and cut into blocks of rows.

    The threads that run loops take the blocks, each on its core.
    """
    n_threads = threads.blas_threads()
    # A thread has its own number.
    pooled(lambda start, end: set_threads(1), n_threads)
    heads = f"{'one thread':>11} {'all threads':>11} {'blocks':>8}"
    result.write("", f"{'rows':>5} {'inner':>5} {'columns':>7} {heads}  microseconds")
    random = np.random.default_rng(1)
    sizes = itertools.product(BATCHES, WIDTHS, (1, 4))
    for rows, inner, columns in ((b, w, n * w) for b, w, n in sizes):
        if rows * inner * columns < SMALLEST_PRODUCT:
            continue
        a = random.normal(size=(rows, inner)).astype(np.float32)
        W = random.normal(size=(columns, inner)).astype(np.float32)
        y = np.empty((rows, columns), np.float32)

        def block(start: int, end: int, a: Any = a, W: Any = W, y: Any = y) -> None:
            onednn.multiply(
                onednn_library.library().sgemm, a[start:end], W.T, y[start:end], False
            )

        whole = functools.partial(block, 0, rows)
        ways = {
            "one thread": (1, whole),
            "all threads": (n_threads, whole),
            "blocks": (1, functools.partial(pooled, block, rows)),
        }

        def seconds(way: tuple[int, Callable]) -> float:
            set_threads(way[0])
            return seconds_of(way[1])

        taken = alternate(ways, n_rounds, seconds)
        us = [1e6 * statistics.median(each) for each in taken.values()]
        result.write(
            f"{rows:5d} {inner:5d} {columns:7d} {us[0]:11.1f} {us[1]:11.1f}"
            f" {us[2]:8.1f}"
        )
    us = 1e6 * seconds_of(lambda: pooled(lambda start, end: None, n_threads))
    result.write("", f"blocks without any work: {us:.1f} microseconds")


@contextlib.contextmanager
def clocked(seconds: list[float]) -> Iterator[None]:
    """Appends the seconds of each product and loop in a block to a list."""

    def with_clock(function: Callable) -> Callable:
        def call(*arguments: Any, **options: Any) -> Any:
            start = time.process_time()
            try:
                return function(*arguments, **options)
            finally:
                seconds.append(time.process_time() - start)

        return call

    places: list[tuple[Any, str]] = [(np, "matmul"), (Loop, "__call__")]
    if providers.active() is onednn:
        places.append((onednn_library.library(), "sgemm"))
    with contextlib.ExitStack() as stack:
        for place, name in places:
            patch = mock.patch.object(place, name, with_clock(getattr(place, name)))
            stack.enter_context(patch)
        yield


def measure_within(result: Result, rounds: int) -> None:
    """Measures which part of the time is within products and loops, for all cases."""
    result.write(
        "",
        f"{'':10} {'steps':>5} {'width':>5} {'batch':>5} {'ms':>8}"
        f" {'within':>8}  most by two cores",
    )
    found = []
    for case in cases():
        case.call()
        within, total = [], []
        for _ in range(4 * rounds):
            seconds: list[float] = []
            with clocked(seconds):
                total.append(cpu_seconds(case.call))
            within.append(sum(seconds))
        whole, part = statistics.median(total), statistics.median(within)
        found.append(whole / (whole - part / 2))
        result.write(
            f"{case.name:10} {case.n_steps:5d} {case.width:5d} {case.batch:5d}"
            f" {1e3 * whole:8.3f} {1e3 * part:8.3f}  {found[-1]:.2f}"
        )
    result.write("", f"median of all: {statistics.median(found):.2f}")


def main() -> None:
    """Measures all widths and batches."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    result = Result("fused_products", arguments.output)
    provider = providers.active()
    clock = "of the processor" if threads.blas_threads() == 1 else "by the clock"
    result.write(
        command(),
        machine("numpy", "numba", "chainer"),
        f"products by {provider.NAME} {provider.version()}",
        f"milliseconds {clock}, medians of {arguments.rounds} rounds",
        "",
        f"{'width':>5} {'batch':>5} {'one by one':>10} {'layers':>8}"
        f" {'perceptron':>10}  {'layers / perceptron':<20} chosen",
    )
    found = [measure(result, w, b, arguments.rounds) for w in WIDTHS for b in BATCHES]
    chosen = [ratio for ratio in found if ratio is not None]
    if chosen:
        result.write("", f"median where it is chosen: {statistics.median(chosen):.2f}")
    result.write(
        "",
        f"{'link':4} {'steps':>5} {'width':>5} {'batch':>5} {'functions':>10}"
        f" {'steps':>8}  functions / steps",
    )
    medians = {}
    for name in LINKS:
        for n_steps in N_STEPS:
            found = [
                measure_steps(result, name, n_steps, (w, b), arguments.rounds)
                for w in WIDTHS
                for b in BATCHES
            ]
            medians[f"{name}, {n_steps}"] = statistics.median(found)
    texts = [f"{name}: {median:.2f}" for name, median in medians.items()]
    result.write("", f"medians by link and number of steps: {'; '.join(texts)}")
    if threads.blas_threads() == 1:
        measure_within(result, arguments.rounds)
    elif provider is onednn:
        measure_blocks(result, arguments.rounds)
    result.save()


if __name__ == "__main__":
    main()
