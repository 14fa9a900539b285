"""Bytes that leave memory and come back."""

import errno
import os
import resource
import threading

import numpy as np
import pytest

from divisible.streaming import held_store, thread_waits
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
            words = "no room for 4000 more bytes.* 8000 bytes of"
            with pytest.raises(OSError, match=words):
                store.put(arrays(0, 12000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        # What is there is used as before.
        store.take(store.put(arrays(0, 8000)))


def test_a_file_has_room_for_what_is_held_at_once_however_sizes_grow(tmp_path):
    with HeldStore(tmp_path) as store:
        for n_bytes in range(1, 60):
            keys = [store.put(arrays(i, 100 * n_bytes)) for i in range(4)]
            for i in reversed(range(4)):
                (found,) = store.take(keys[i])
                np.testing.assert_array_equal(found, *arrays(i, 100 * n_bytes))
            assert store.n_bytes <= 4 * 100 * n_bytes


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
    answers = threading.Event()
    monkeypatch.setattr(thread_waits, "_SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(held_store, "_serve", lambda file, work: answers.wait())
    store = HeldStore(tmp_path, timeout=0.05)
    store.put(arrays(0, 10))
    with pytest.raises(TimeoutError, match="waited 0 s for the disk of"):
        store.put(arrays(0, 10))
    answers.set()


def test_a_thread_that_has_ended_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(held_store, "_serve", lambda file, work: None)
    store = HeldStore(tmp_path, timeout=3600)
    store.put(arrays(0, 10))
    with pytest.raises(RuntimeError, match="has ended: make a new Pipeline"):
        store.put(arrays(0, 10))


@pytest.mark.parametrize(
    "error, words",
    [
        (MemoryError("none"), "4000 bytes at 0 .* there is no memory to read them"),
        (ValueError("odd"), "4000 bytes at 0 .* are lost: ValueError: odd"),
    ],
)
def test_an_error_of_the_thread_is_raised_and_it_goes_on(
    tmp_path, monkeypatch, error, words
):
    def fails(file, entry):
        raise error

    with HeldStore(tmp_path) as store:
        keys = [store.put(arrays(i, 4000)) for i in range(2)]
        with monkeypatch.context() as patch:
            patch.setattr(held_store, "_read", fails)
            with pytest.raises((MemoryError, RuntimeError), match=words):
                store.take(keys[0])
        (found,) = store.take(keys[1])
        np.testing.assert_array_equal(found, *arrays(1, 4000))


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no file can be made in .*absent"):
        HeldStore(tmp_path / "absent")
