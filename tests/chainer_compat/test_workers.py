"""MultiprocessIterator says that its workers are dead, and does not wait for them."""

import os
import signal
import threading

import chainer
import numpy as np
import pytest

from chainer_compat import _workers


class Deadly(chainer.dataset.DatasetMixin):
    def __len__(self):
        return 12

    def get_example(self, i):
        if i == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full(2, i, np.float32)


def test_a_worker_that_is_killed_ends_the_thread(monkeypatch):
    raised, has_failed = [], threading.Event()

    def hook(arguments):
        raised.append(arguments.exc_value)
        has_failed.set()

    monkeypatch.setattr(threading, "excepthook", hook)
    iterator = chainer.iterators.MultiprocessIterator(
        Deadly(), 4, shuffle=False, n_processes=2, shared_mem=100
    )
    for start in (0, 4):
        assert [int(x[0]) for x in iterator.next()] == list(range(start, start + 4))
    assert has_failed.wait(60)
    assert "a worker of MultiprocessIterator was killed by signal 9" in str(raised[0])
    assert not iterator._prefetch_loop._pool._pool[0].is_alive()
    iterator.finalize()


def test_workers_that_do_their_work_are_left_alone():
    data = np.arange(40, dtype=np.float32)
    iterator = chainer.iterators.MultiprocessIterator(
        data, 10, repeat=False, shuffle=False, n_processes=2
    )
    assert np.concatenate(list(iterator)).tolist() == data.tolist()
    iterator.finalize()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_cannot_start_is_told_what_to_do(method, monkeypatch):
    monkeypatch.setattr(_workers.multiprocessing, "get_start_method", lambda: method)
    message = _workers._say(15)
    assert f"The start method {method!r}" in message
    assert "multiprocessing.set_start_method('fork')" in message
