"""Arrays in files: what of them is in memory, and what becomes of the files."""

import ctypes
import errno
import mmap
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from divisible.streaming import StoreError, mapped
from divisible.streaming.mapped import MappedArray, drop_released
from tests.support.processes import ROOT


def resident_pages(array):
    """Returns how many pages of an array the kernel has in memory."""
    libc = ctypes.CDLL(None)
    n = -(-array.nbytes // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * n)()
    address = ctypes.c_void_p(array.ctypes.data)
    assert libc.mincore(address, ctypes.c_size_t(array.nbytes), found) == 0
    return sum(byte & 1 for byte in found)


def test_begins_with_zeros_and_keeps_what_is_written(tmp_path):
    file = MappedArray((64, 1024), "f", tmp_path, "it")
    assert file.n_bytes == 64 * 4096 and not file.array.any()
    file.array[:] = np.arange(64)[:, None]
    file.release(0, 64, written=True)
    drop_released()
    np.testing.assert_array_equal(file.array[:, 5], np.arange(64))


def test_released_rows_leave_memory(tmp_path):
    file = MappedArray((64, 1024), "f", tmp_path, "it")
    file.array[:] = 1
    assert resident_pages(file.array) == 64
    file.release(0, 48, written=True)
    drop_released()
    assert resident_pages(file.array) == 16


def test_pages_that_other_rows_share_stay(tmp_path):
    # Rows of 1.5 pages.
    file = MappedArray((4, 1536), "f", tmp_path, "it")
    file.array[:] = 1
    file.release(0, 1, written=True)
    drop_released()
    assert resident_pages(file.array) == 5
    assert (file.array == 1).all()


def test_at_most_some_released_parts_wait(tmp_path):
    file = MappedArray((64, 1024), "f", tmp_path, "it")
    file.array[:] = 1
    for row in range(64):
        file.release(row, row + 1, written=True)
        # Released again before it is gone.
        file.release(row, row + 1, written=False)
    assert resident_pages(file.array) <= mapped._LAG


def test_prefetch_reads_ahead(tmp_path):
    file = MappedArray((256, 1024), "f", tmp_path, "it")
    file.array[:] = 1
    file.release(0, 256, written=True)
    drop_released()
    assert resident_pages(file.array) == 0
    file.prefetch(0, 64)
    deadline = 200
    while resident_pages(file.array) < 64 and deadline:
        deadline -= 1
        time.sleep(0.01)
    assert resident_pages(file.array) >= 64


def test_a_killed_process_leaves_no_file(tmp_path):
    script = (
        "import sys, time; from divisible.streaming.mapped import MappedArray\n"
        "file = MappedArray((1000, 1000), 'f', sys.argv[1], 'it'); file.array[:] = 1\n"
        "print('made', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "made\n"
    assert os.listdir(tmp_path) == []
    process.kill()
    process.wait()
    process.stdout.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "number, words",
    [(errno.ENOSPC, "free some space"), (errno.EFBIG, "too large")],
)
def test_a_full_disk_is_told_before_anything_is_written(
    tmp_path, monkeypatch, number, words
):
    def full(descriptor, start, n_bytes):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StoreError, match="Linear, array: .* 4000 bytes") as caught:
        MappedArray((10, 100), "f", tmp_path, "Linear, array")
    assert words in str(caught.value)
    assert f"{tmp_path}, where " in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_bytes_that_do_not_reach_the_disk_are_told(tmp_path, monkeypatch):
    file = MappedArray((64, 1024), "f", tmp_path, "Linear, gradient")
    file.array[:] = 1

    class Libc:
        @staticmethod
        def sync_file_range(*arguments):
            ctypes.set_errno(errno.ENOSPC)
            return -1

    monkeypatch.setattr(mapped, "libc", Libc)
    words = "Linear, gradient: 262144 bytes of the file in .*ENOSPC.* free some space"
    with pytest.raises(StoreError, match=words):
        file.release(0, 64, written=True)
