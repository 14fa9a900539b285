import threading
import traceback

import numpy as np
import pytest

from divisible.streaming import LargeInput, StoreError, read_ahead, thread_waits

ROWS = np.arange(30, dtype=np.uint8).reshape(10, 3)


class Watched:
    """Rows that record when each part is copied."""

    shape, dtype = ROWS.shape, ROWS.dtype

    def __init__(self):
        self.read, self.may_read = [], threading.Semaphore(0)

    def __getitem__(self, rows):
        return Part(self, rows)


class Part:
    def __init__(self, watched, rows):
        self.watched, self.rows = watched, rows

    def __array__(self, dtype=None, copy=None):
        assert self.watched.may_read.acquire(timeout=60)
        self.watched.read.append((self.rows.start, self.rows.stop))
        return ROWS[self.rows]


def wait_until(condition):
    pause = threading.Event()
    for _ in range(6000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("waited for a minute")


def test_a_segment_is_read_while_the_one_before_is_computed():
    source = Watched()
    passing = read_ahead.read_ahead(LargeInput(source), 4, np.float32)
    source.may_read.release(2)
    start, stop, rows = next(passing)
    wait_until(lambda: source.read == [(0, 4), (4, 8)])
    # What is computed with stays as it is meanwhile.
    assert (start, stop) == (0, 4) and rows.dtype == np.float32
    np.testing.assert_array_equal(rows, ROWS[:4])
    source.may_read.release(1)
    assert [each.start for each in passing] == [4, 8]
    assert source.read == [(0, 4), (4, 8), (8, 10)]


def test_errors_of_the_thread_have_their_traceback():
    def rows():
        yield ROWS[:5]
        raise KeyError("no such file")

    large = LargeInput(rows, shape=ROWS.shape, dtype=ROWS.dtype)
    passing = read_ahead.read_ahead(large, 4, np.uint8)
    assert next(passing).stop == 4
    with pytest.raises(StoreError, match=r"rows 4 to 7 of .*: KeyError: 'no such"):
        next(passing)
    with pytest.raises(StoreError) as caught:
        list(read_ahead.read_ahead(large, 4, np.uint8))
    trace = traceback.extract_tb(caught.value.__cause__.__traceback__)
    assert trace[-1].name == "rows"


def test_numbers_that_do_not_fit_are_an_error():
    large = LargeInput(np.ones((3, 2), np.complex64))
    with pytest.raises(StoreError, match="rows 0 to 2 of the input.*TypeError"):
        list(read_ahead.read_ahead(large, 5, np.float32))


def test_a_slow_or_dead_thread_is_no_wait_for_ever(monkeypatch):
    monkeypatch.setattr(thread_waits, "_SECONDS_BETWEEN_LOOKS", 0.01)
    source = Watched()
    passing = read_ahead.read_ahead(LargeInput(source), 4, "f", timeout=0.05)
    with pytest.raises(TimeoutError, match="rows 0 to 3 of the input"):
        next(passing)
    source.may_read.release(3)
    monkeypatch.setattr(read_ahead, "_serve", lambda *arguments: None)
    with pytest.raises(RuntimeError, match="has ended before rows 0 to 3"):
        next(read_ahead.read_ahead(LargeInput(ROWS), 4, "f"))


def test_a_pass_that_stops_early_leaves_no_thread():
    before = threading.active_count()
    for _ in range(3):
        passing = read_ahead.read_ahead(LargeInput(ROWS), 1, "f")
        next(passing)
        passing.close()
    wait_until(lambda: threading.active_count() <= before)


def test_an_input_without_rows():
    assert list(read_ahead.read_ahead(LargeInput(ROWS[:0]), 4, "f")) == []


class Dataset:
    """Rows that are in memory as soon as they are asked for."""

    shape, dtype = ROWS.shape, ROWS.dtype

    def __init__(self):
        self.read = []

    def __getitem__(self, rows):
        self.read.append(rows.start)
        return ROWS[rows]


def test_no_rows_are_read_before_there_is_a_buffer_for_them():
    source = Dataset()
    passing = read_ahead.read_ahead(LargeInput(source), 1, "f")
    next(passing)
    wait_until(lambda: len(source.read) == 2)
    threading.Event().wait(0.1)
    assert source.read == [0, 1]
    passing.close()
