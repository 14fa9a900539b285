"""One file for all arrays of a directory."""

import errno
import gc
import os
import resource
import subprocess
import sys

import numpy as np
import pytest

from divisible.streaming import StoreError, backing_file
from divisible.streaming.mapped import MappedArray
from tests.support.processes import ROOT

N_BYTES = 2**20


def array(directory, value=None):
    made = MappedArray((N_BYTES // 4096, 1024), "f", directory, "Linear, array")
    if value is not None:
        made.array[...] = value
    return made


def blocks_in(directory):
    """Returns the bytes of the disk that the file of a directory has."""
    file = backing_file.backing_file(directory)
    return os.fstat(file.descriptor).st_blocks * 512


def test_many_arrays_take_one_descriptor(tmp_path):
    # Pipelines of other tests have files until they are collected.
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    arrays = [array(tmp_path, number) for number in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before + 1
    for number, each in enumerate(arrays):
        assert (each.array == number).all()
    arrays.clear()
    del each
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("is_punched", [True, False])
def test_places_are_used_again_and_are_empty_then(tmp_path, monkeypatch, is_punched):
    if not is_punched:

        class Libc:
            """A system that cannot give a part of a file back."""

            fallocate = None

            def __getattr__(self, name):
                return getattr(library, name)

        library = backing_file.libc()
        monkeypatch.setattr(backing_file, "libc", Libc)
    kept = array(tmp_path, 1)
    for value in range(2, 6):
        # Two, joined, are room for one of both sizes.
        first, second = array(tmp_path, value), array(tmp_path, value)
        part = first.array[3:5]
        del first, second
        assert (part == value).all()
        del part
        larger = MappedArray((2 * N_BYTES,), "u1", tmp_path, "it")
        assert not larger.array.any()
        larger.array[...] = value
        del larger
        # The disk, too, has no more than what is in use.
        assert blocks_in(tmp_path) <= (1 if is_punched else 3) * N_BYTES + 65536
    assert (kept.array == 1).all()


def test_a_fork_leaves_the_file_as_it_is(tmp_path):
    script = (
        "import os, sys; from pathlib import Path\n"
        "from divisible.streaming.mapped import MappedArray\n"
        "held = [MappedArray((1000, 1000), 'f', Path(sys.argv[1]), 'it')]\n"
        "held[0].array[:] = 1; child = os.fork()\n"
        "if not child:\n"
        "    held.clear(); os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0 and (held[0].array == 1).all()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, timeout=120).returncode == 0


def test_a_limit_of_files_names_the_cure(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(StoreError, match="EMFILE.* limit of open files"):
            array(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_file_system_without_mapping_is_told(tmp_path, monkeypatch):
    def no_device(descriptor, start, n_bytes):
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(os, "posix_fallocate", no_device)
    with pytest.raises(StoreError, match="ENODEV.* on a local disk"):
        array(tmp_path)
    monkeypatch.undo()
    # What was refused has taken no place.
    kept = array(tmp_path, 1)
    assert blocks_in(tmp_path) <= N_BYTES + 65536 and np.all(kept.array == 1)
