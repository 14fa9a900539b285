"""Bytes that leave memory and come back."""

import errno
import os
import resource

import numpy as np
import pytest

from divisible.streaming import held_store
from divisible.streaming.held_store import HeldStore


def arrays(seed, *sizes):
    rng = np.random.RandomState(seed)
    return [rng.randint(0, 256, size).astype(np.uint8) for size in sizes]


def test_what_was_put_comes_back_in_any_order(tmp_path):
    with HeldStore(tmp_path) as store:
        put = {store.put(arrays(i, 5000, 0, i)): i for i in range(4)}
        for key in sorted(put, reverse=True):
            expected = arrays(put[key], 5000, 0, put[key])
            for actual, one in zip(store.take(key), expected):
                np.testing.assert_array_equal(actual, one)


def test_room_is_used_again_and_nothing_has_a_name(tmp_path):
    with HeldStore(tmp_path) as store:
        for i in range(5):
            first, second = store.put(arrays(i, 5000)), store.put(arrays(i, 4000))
            store.fetch(first)
            store.take(first), store.take(second)
            store.put(arrays(i, 5000))
            store.clear()
            assert store.n_bytes == 9000
            assert os.listdir(tmp_path) == []


def test_a_file_that_may_not_grow_names_directory_and_bytes(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with HeldStore(tmp_path) as store:
        store.take(store.put(arrays(0, 8000)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (10000, before[1]))
        try:
            with pytest.raises(OSError, match="no room for 9000 bytes.* 8000 bytes of"):
                store.put(arrays(0, 9000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("call", ["pwrite", "preadv"])
def test_what_the_thread_meets_is_raised_where_the_bytes_are_needed(
    call, tmp_path, monkeypatch
):
    def fails(*args):
        raise OSError(errno.EIO, "the disk broke")

    with HeldStore(tmp_path) as store:
        monkeypatch.setattr(held_store.os, call, fails)
        key = store.put(arrays(0, 6000))
        with pytest.raises(OSError, match="6000 bytes .* are lost: the disk broke"):
            store.take(key)


def test_a_disk_that_does_not_answer_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(held_store, "_SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(held_store, "_serve", lambda file, work: None)
    store = HeldStore(tmp_path, timeout=0.05)
    store.put(arrays(0, 10))
    with pytest.raises(TimeoutError, match="waited 0 s for the disk of"):
        store.put(arrays(0, 10))


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no file can be made in .*absent"):
        HeldStore(tmp_path / "absent")
