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

#: The fewest elements of a share: a smaller one costs more to hand over than it saves.
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
        arrays: The arrays; the length and number of elements are those of the first.
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
    """Makes products of matrices in a block run on the threads that call them.

    BLAS has threads of its own, which wait for each other busily. Where products are
    independent, and there are copies between them, one on each core is faster.

    The limit applies to the whole process. So other threads that enter such a block, or
    :func:`all_blas_threads`, wait until this one ends.
    """
    if blas_threads() == 1 or _here.is_share:
        yield
        return
    products = _products
    with products.lock:
        products.n_blocks += 1
        if products.n_blocks == 1:
            controller = _controller(os.getpid())
            products.limit = controller.limit(limits=1, user_api="blas")
            products.limit.__enter__()
        try:
            yield
        finally:
            products.n_blocks -= 1
            if not products.n_blocks:
                products.limit.__exit__(None, None, None)


def all_blas_threads() -> contextlib.AbstractContextManager:
    """Makes a product in a block run on all threads of BLAS.

    The block waits for blocks of :func:`one_blas_thread` in other threads, because BLAS
    adds up in another order on one thread.
    """
    is_free = blas_threads() == 1 or _here.is_share
    return contextlib.nullcontext() if is_free else _products.lock


class _Products:
    """The lock of products, and the limit of BLAS where it has several threads.

    Attributes:
        n_blocks: How many blocks want one thread of BLAS, one within the other.
        limit: Context manager of the limit of one thread.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.n_blocks = 0
        self.limit: Any = None


class _Here(threading.local):
    """Whether this thread computes a share."""

    is_share = False


_products, _here = _Products(), _Here()


def _begin_anew() -> None:
    """Frees a child process of what another thread of its parent was about."""
    global _products
    if _products.lock.acquire(blocking=False):
        _products.lock.release()
        return
    if _products.n_blocks:
        _products.limit.__exit__(None, None, None)
    _products = _Products()


os.register_at_fork(after_in_child=_begin_anew)


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
    cores = _own_cores()
    others = [pool.submit(_share, call, cores[i:]) for i, call in enumerate(calls) if i]
    try:
        _share(calls[0], cores)
    finally:
        concurrent.futures.wait(others)
        _stay_on(cores)
    for other in others:
        other.result()


def _share(call: Callable[[], None], cores: Sequence[int]) -> None:
    """Computes a share, on the first of these cores if there is one."""
    _stay_on(cores[:1])
    _here.is_share = True
    try:
        call()
    finally:
        _here.is_share = False


def _own_cores() -> Sequence[int]:
    """Returns a core for each thread, if this process has no more and no fewer.

    Schedulers may leave a thread that wakes up on the core of the one that woke it for
    longer than a share takes. Where there are more cores, other processes of a job may
    have them, and the scheduler must choose.
    """
    if not hasattr(os, "sched_getaffinity"):
        return ()
    cores = sorted(os.sched_getaffinity(0))
    return cores if len(cores) == blas_threads() else ()


def _stay_on(cores: Sequence[int]) -> None:
    """Keeps this thread on some cores; none means wherever it may be."""
    # Cores can be taken away meanwhile; then this is no more than a wish.
    with contextlib.suppress(OSError):
        if cores:
            os.sched_setaffinity(0, cores)


@functools.lru_cache(maxsize=1)
def _pool(process: int, n_threads: int) -> concurrent.futures.ThreadPoolExecutor:
    """Returns threads; a process that was forked has none, and makes its own."""
    return concurrent.futures.ThreadPoolExecutor(n_threads, "chainer_kernels")
