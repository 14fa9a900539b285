"""Loops on several cores, as many as NumPy's BLAS has threads.

::

                                         one core              two
    run_slices(loop, [x, y], *rest)      loop(x, y, *rest)     loop(x[:k], y[:k], *rest)
                                                               loop(x[k:], y[k:], *rest)
    run_ranges(loop, n, *rest)           loop(0, n, *rest)     loop(0, k, *rest)
                                                               loop(k, n, *rest)

Loops release Python's lock. What a loop computes for one index must not depend on
where its share begins, so that the number of cores changes no bit. A share may itself
be made of loops, and of products within :func:`one_blas_thread`: all on its core.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import numpy as np
import threadpoolctl

#: A share below so many elements costs more to hand over than it saves.
SMALLEST_SHARE = 1 << 15


@functools.cache
def blas_threads() -> int:
    """Returns how many threads a matrix product runs on, as set when first asked.

    NumPy and SciPy bring a BLAS each, and each its own threads, which spin for a while
    after their work. With several, calling the two in turn is slower than an addition.
    """
    pools = threadpoolctl.threadpool_info()
    return max((p["num_threads"] for p in pools if p["user_api"] == "blas"), default=1)


def run_slices(loop: Callable, arrays: Sequence[np.ndarray], *rest: Any) -> None:
    """Runs a loop over arrays of one length, each cut along its first axis.

    Args:
        loop: Takes a part of each array, and ``rest``.
        arrays: The first says how long all are, and how many elements there are.
        rest: Its other arguments, whole.
    """
    n_elements = arrays[0].size
    if n_elements < 2 * SMALLEST_SHARE or _cores() == 1:
        loop(*arrays, *rest)
        return
    ends = _ends(len(arrays[0]), n_elements)
    parts = [[a[i:j] for a in arrays] for i, j in zip(ends, ends[1:])]
    _run([functools.partial(loop, *part, *rest) for part in parts])


def run_ranges(loop: Callable, n: int, *rest: Any, size: int = 1) -> None:
    """Runs a loop over ``range(n)``, its first arguments being a start and an end.

    Args:
        loop: The loop. Numba runs nothing in vectors over an index that may be
            negative: cut the arrays first, and count from 0.
        n: How many indexes it has.
        rest: Its other arguments.
        size: How many elements are read for each index.
    """
    if n * size < 2 * SMALLEST_SHARE or _cores() == 1:
        loop(0, n, *rest)
        return
    ends = _ends(n, n * size)
    _run([functools.partial(loop, i, j, *rest) for i, j in zip(ends, ends[1:])])


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Lets products of matrices in a block run on the threads that ask for them.

    BLAS has threads of its own, which wait for each other busily. Where products are
    independent, and there are copies between them, one on each core is faster.
    """
    if blas_threads() == 1:
        yield
        return
    with _lock:
        _limit.n_blocks += 1
        if _limit.n_blocks == 1:
            _limit.context = _controller(os.getpid()).limit(limits=1, user_api="blas")
            _limit.context.__enter__()
    try:
        yield
    finally:
        with _lock:
            _limit.n_blocks -= 1
            if not _limit.n_blocks:
                _limit.context.__exit__(None, None, None)


class _Limit:
    """How many blocks of all threads want one thread of BLAS, and what ends that."""

    n_blocks = 0
    context: Any = None


class _Here(threading.local):
    """Whether this thread computes a share."""

    is_share = False


_limit, _lock, _here = _Limit(), threading.Lock(), _Here()


@functools.lru_cache(maxsize=1)
def _controller(process: int) -> threadpoolctl.ThreadpoolController:
    """Returns what sets the number of threads; looking for libraries takes long."""
    return threadpoolctl.ThreadpoolController()


def _cores() -> int:
    """Returns how many cores a loop of this thread may use."""
    return 1 if _here.is_share else blas_threads()


def _ends(n: int, n_elements: int) -> list[int]:
    """Returns where shares begin and end."""
    shares = max(1, min(_cores(), n, n_elements // SMALLEST_SHARE))
    return [n * share // shares for share in range(shares + 1)]


def _run(calls: Sequence[Callable[[], None]]) -> None:
    pool = _pool(os.getpid(), blas_threads())
    others = [pool.submit(_share, call) for call in calls[1:]]
    try:
        _share(calls[0])
    finally:
        concurrent.futures.wait(others)
    for other in others:
        other.result()


def _share(call: Callable[[], None]) -> None:
    _here.is_share = True
    try:
        call()
    finally:
        _here.is_share = False


@functools.lru_cache(maxsize=1)
def _pool(process: int, n_threads: int) -> concurrent.futures.ThreadPoolExecutor:
    """Returns threads; a process that was forked has none, and makes its own."""
    return concurrent.futures.ThreadPoolExecutor(n_threads, "chainer_kernels")
