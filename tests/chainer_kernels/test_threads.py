"""Shares of loops, and of products, on several cores."""

import contextlib
import os
import threading
from unittest import mock

import numpy as np
import pytest
import threadpoolctl

from chainer_kernels import threads
from chainer_kernels.geometry import Geometry
from chainer_kernels.providers import blas
from tests.support import kernels


def pool(api, n_threads):
    return {"user_api": api, "num_threads": n_threads}


@pytest.mark.parametrize(
    "pools, expected",
    [
        ([pool("blas", 2), pool("blas", 8), pool("openmp", 16)], 8),
        ([pool("openmp", 16)], 1),
    ],
)
def test_threads_are_those_of_the_first_time(monkeypatch, pools, expected):
    threads.blas_threads.cache_clear()
    try:
        for found in (pools, [pool("blas", 99)]):
            monkeypatch.setattr(threadpoolctl, "threadpool_info", lambda f=found: f)
            assert threads.blas_threads() == expected
    finally:
        threads.blas_threads.cache_clear()


@pytest.fixture
def two_cores():
    with mock.patch.object(threads, "blas_threads", return_value=2):
        yield


def test_a_share_is_not_shared_again(two_cores):
    found = []

    def outer(start, end):
        threads.run_ranges(
            lambda i, j: found.append((start, end, i, j)), 2, size=1 << 20
        )

    threads.run_ranges(outer, 2, size=1 << 20)
    assert sorted(found) == [(0, 1, 0, 2), (1, 2, 0, 2)]
    found.clear()
    threads.run_ranges(outer, 1, size=1 << 20)
    assert sorted(found) == [(0, 1, 0, 2)]


def test_shares_have_cores_of_their_own(two_cores):
    all_cores = os.sched_getaffinity(0)
    if len(all_cores) < 2:
        pytest.skip("needs two cores")
    cores, found = sorted(all_cores)[:2], {}
    os.sched_setaffinity(0, cores)
    try:
        for loop in (
            lambda start, end: found.update({start: os.sched_getaffinity(0)}),
            lambda start, end: {}[start],
        ):
            with contextlib.suppress(KeyError):
                threads.run_ranges(loop, 2, size=1 << 20)
            assert found == {0: {cores[0]}, 1: {cores[1]}}
            assert os.sched_getaffinity(0) == set(cores)
    finally:
        os.sched_setaffinity(0, all_cores)


def test_the_scheduler_chooses_among_more_cores(two_cores, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: {0, 1, 5})
    monkeypatch.delattr(os, "sched_setaffinity")
    found = []
    threads.run_ranges(lambda i, j: found.append((i, j)), 2, size=1 << 20)
    assert sorted(found) == [(0, 1), (1, 2)]


def test_an_error_waits_for_all_shares(two_cores):
    done = []

    def loop(start, end):
        if start == 0:
            raise KeyError("first")
        done.append(start)

    with pytest.raises(KeyError):
        threads.run_ranges(loop, 2, size=1 << 20)
    assert done == [1]
    threads.run_ranges(lambda i, j: done.append(i), 2, size=1 << 20)
    assert sorted(done) == [0, 1, 1]


def test_blas_has_one_thread_until_the_last_block_ends(two_cores):
    with mock.patch.object(threads, "_controller") as controller:
        context = controller.return_value.limit.return_value
        with threads.one_blas_thread():
            with threads.one_blas_thread():
                pass
            assert not context.__exit__.called
        assert context.__enter__.call_count == context.__exit__.call_count == 1
        controller.return_value.limit.assert_called_once_with(limits=1, user_api="blas")


@contextlib.contextmanager
def in_another_thread(block):
    """Runs a block while another thread is within ``block()``."""
    begun, ended = threading.Event(), threading.Event()

    def work():
        with block():
            begun.set()
            assert ended.wait(60)

    other = threading.Thread(target=work)
    other.start()
    assert begun.wait(60)
    try:
        yield ended.set
    finally:
        ended.set()
        other.join(60)


@pytest.mark.parametrize("ours", [threads.one_blas_thread, threads.all_blas_threads])
@pytest.mark.parametrize("theirs", [threads.one_blas_thread, threads.all_blas_threads])
def test_nobody_multiplies_while_the_limit_is_anothers(ours, theirs, two_cores):
    def multiply():
        with ours():
            found.append(threads._products.n_blocks)

    found = []
    waiting = threading.Thread(target=multiply)
    with in_another_thread(theirs) as end:
        waiting.start()
        waiting.join(0.05)
        assert not found
        end()
        waiting.join(60)
    assert found == [ours is threads.one_blas_thread]
    assert not threads._products.n_blocks


def test_a_share_does_not_wait_for_the_block_that_it_is_in(two_cores):
    found = []

    def compute(start, end):
        with threads.all_blas_threads(), threads.one_blas_thread():
            found.append(start)

    with threads.one_blas_thread():
        threads.run_ranges(compute, 2, size=1 << 20)
    assert sorted(found) == [0, 1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_process_does_not_wait_for_threads_it_has_not(two_cores):
    with (
        mock.patch.object(threads, "_controller") as controller,
        in_another_thread(threads.one_blas_thread),
    ):
        child = os.fork()
        if not child:
            limit = controller.return_value.limit.return_value
            is_free = threads._products.lock.acquire(timeout=5)
            is_well = is_free and limit.__exit__.called
            os._exit(not (is_well and not threads._products.n_blocks))
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    ("shape", "outs", "groups", "kernel"),
    [
        ((40, 8, 8, 32), 48, 1, 3),
        ((40, 8, 8, 32), 48, 2, 3),
        ((30, 7, 7, 256), 65, 1, 3),
        ((3, 17, 17, 20), 300, 1, 1),
        ((84, 2, 2, 128), 130, 1, 3),
        ((9, 32, 32, 16), 24, 1, 3),
        ((9, 32, 32, 32), 48, 2, 3),
    ],
)
def test_a_convolution_on_two_cores_is_what_it_is_on_one(
    shape, outs, groups, kernel, two_cores
):
    pad = kernel // 2
    geometry = Geometry((kernel,) * 2, (1, 1), (pad, pad), (1, 1), groups)
    x = kernels.arrays(shape, 0)
    W = kernels.arrays((outs, shape[-1] // groups, kernel, kernel), 1)
    gy = kernels.arrays((*shape[:-1], outs), 2)

    def compute():
        """Returns the results, and which products they come from."""
        products = []

        def multiply(a, b, out, accumulate=False):
            products.append((a.shape, b.shape, accumulate))
            blas_gemm(a, b, out, accumulate)

        with mock.patch.object(blas, "gemm", multiply):
            results = (
                blas.convolution(x, W, None, geometry),
                blas.convolution_data(gy, W, geometry, shape[1:-1]),
                blas.convolution_weights(x, gy, geometry),
            )
        return results, sorted(products)

    blas_gemm = blas.gemm
    on_two, products = compute()
    with (
        mock.patch.object(threads, "blas_threads", return_value=1),
        # As many as it has in a process where that is true.
        threadpoolctl.threadpool_limits(1, user_api="blas"),
    ):
        on_one, products_on_one = compute()
    for a, b in zip(on_two, on_one):
        np.testing.assert_array_equal(a, b)
    # Where a product is cut tells in the bits on some processors only.
    assert products == products_on_one
