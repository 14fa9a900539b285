"""The cache of compiled loops: several processes, other machines, damaged files."""

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from chainer_kernels import chainer_rules, compiling

LOOP = """
from chainer_kernels.compiling import loop


@loop("void(f4[::1])")
def twice(values):
    for i in range(values.size):
        values[i] *= 2
"""
RUN = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np, loops
array = np.ones(3, "f")
loops.twice(array)
print(array.sum(), sum(loops.twice.compiled.stats.cache_hits.values()))
"""


@pytest.fixture
def start(tmp_path):
    """Starts a process that calls a loop, which prints whether it was on disk."""
    (tmp_path / "loops.py").write_text(LOOP)

    def start(**environment):
        variables = {
            "CHAINER_KERNELS_CACHE": str(tmp_path / "cache"),
            "TMPDIR": str(tmp_path),
            "PYTHONPATH": ":".join(sys.path),
            **environment,
        }
        return subprocess.Popen(
            [sys.executable, "-c", RUN.format(folder=str(tmp_path))],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def end(process):
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    total, hits = output.split()
    assert float(total) == 6
    return int(hits), errors


@pytest.mark.slow
def test_one_compiles_and_the_others_wait(start):
    found = sorted(end(process)[0] for process in [start() for _ in range(2)])
    assert found == [0, 1]


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty directory for compiled code, and for locks."""
    compiling.cache_directory.cache_clear()
    monkeypatch.setenv("CHAINER_KERNELS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiling.tempfile, "tempdir", str(tmp_path))
    yield tmp_path / "cache"
    compiling.cache_directory.cache_clear()


def _thrice(values):
    for i in range(values.size):
        values[i] *= 3


def thrice():
    """Compiles a loop as a new process would, and returns how often it was found."""
    made = compiling.Loop(_thrice, "void(f4[::1])", is_sum=False)
    compiling.LOOPS.remove(made)
    array = np.ones(5, "f")
    made(array)
    np.testing.assert_array_equal(array, 3)
    return sum(made.compiled.stats.cache_hits.values())


def test_functions_compiled_for_any_types_are_in_turn_as_well(cache):
    held, found = _lock(cache), []
    waiting = threading.Thread(
        target=lambda: found.append(compiling.njit()(_thrice)(np.ones(3)))
    )
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    os.close(held)
    waiting.join(60)
    assert found == [None]


def _copy(x, y):
    for i in range(y.size):
        y[i] = x[i]


def test_only_what_is_read_may_be_read_only():
    copy = compiling.Loop(_copy, "void(f4[::1], f4[::1])")
    compiling.LOOPS.remove(copy)
    x, y = np.arange(3, dtype="f"), np.zeros(3, "f")
    x.flags.writeable = False
    copy(x, y)
    np.testing.assert_array_equal(y, x)
    with pytest.raises(ValueError, match="_copy writes to an array that is read-only"):
        copy(y + 1, x)


def test_compile_all_knows_the_update_rules(monkeypatch):
    monkeypatch.setattr(compiling.Loop, "compiled", None)
    names = {each.__name__ for each in compiling.compile_all()}
    assert {"relu", "gather"} <= names
    assert {f"{formula.__name__}_arrays" for formula in chainer_rules.FORMULAS} <= names


def test_found_the_second_time(cache):
    assert [thrice(), thrice()] == [0, 1]


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", [lambda data: data[:-9], bytes.upper])
def test_damaged_files_are_written_anew(cache, suffix, damage):
    thrice()
    (file,) = cache.rglob(f"*{suffix}")
    file.write_bytes(damage(file.read_bytes()))
    assert [thrice(), thrice()] == [0, 1]


def test_full_disk(cache, monkeypatch):
    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    assert [thrice(), thrice()] == [0, 0]


@pytest.mark.parametrize("error", [RuntimeError, KeyError])
def test_numba_forgets_our_directory(cache, monkeypatch, error):
    def refuse(self, function):
        raise error

    before = compiling.numba.config.CACHE_DIR
    monkeypatch.setattr(compiling._Cache, "__init__", refuse)
    with contextlib.suppress(KeyError):
        compiling.njit()(_thrice)
    assert before == compiling.numba.config.CACHE_DIR


def test_numba_is_told_by_one_thread_after_the_other(cache, monkeypatch):
    before, inits, both = compiling.numba.config.CACHE_DIR, [], threading.Event()

    def init(self, function):
        inits.append(function)
        both.wait(0.05)
        assert compiling.cache_directory() == compiling.numba.config.CACHE_DIR

    monkeypatch.setattr(compiling._Cache, "__init__", init)
    others = [
        threading.Thread(target=compiling._cache_of, args=(_thrice,)) for _ in range(3)
    ]
    for other in others:
        other.start()
    for other in others:
        other.join(60)
    assert len(inits) == 3
    assert before == compiling.numba.config.CACHE_DIR


@pytest.mark.parametrize(
    "make", [lambda path: path.write_text(""), lambda path: path.symlink_to(path)]
)
def test_directory_that_cannot_be_written_to(cache, monkeypatch, make):
    make(cache)
    with pytest.warns(UserWarning, match="cannot write to .*CHAINER_KERNELS_CACHE"):
        assert compiling.cache_directory() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # There is nothing to wait for.
        monkeypatch.setattr(compiling, "_one_at_a_time", None)
        assert [thrice(), thrice()] == [0, 0]


def test_home_that_does_not_exist(cache, monkeypatch, tmp_path):
    for name in ("CHAINER_KERNELS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    folder = compiling.cache_directory()
    assert folder.startswith(str(tmp_path / "nobody/.cache/chainer_kernels/"))
    assert os.path.isdir(folder)


@pytest.mark.parametrize("fact", ["get_host_cpu_name", "get_host_cpu_features"])
def test_other_processors_have_their_own_directory(cache, monkeypatch, fact):
    thrice()
    ours = compiling.cache_directory()
    other = type("Features", (str,), {"flatten": lambda self: str(self)})("z80")
    monkeypatch.setattr(compiling.binding, fact, lambda: other)
    compiling.cache_directory.cache_clear()
    assert compiling.cache_directory() != ours
    assert thrice() == 0


def test_unused_directories_are_removed(cache):
    long_ago = time.time() - 40 * 24 * 3600
    names = {
        "znver3-py311-numba0.60.0-0123456789ab": long_ago,
        "znver3-py311-numba0.61.0-0123456789ab": time.time(),
        "somebody's": long_ago,
    }
    for name, when in names.items():
        (cache / name / "loops").mkdir(parents=True)
        os.utime(cache / name, (when, when))
    ours = Path(compiling.cache_directory()).name
    assert {path.name for path in cache.iterdir()} == {*list(names)[1:], ours}


def test_use_is_noted(cache):
    folder = compiling.cache_directory()
    os.utime(folder, (0, 0))
    compiling.cache_directory.cache_clear()
    compiling.cache_directory()
    assert os.stat(folder).st_mtime > time.time() - 60


def _lock(cache):
    """Returns the lock of the loop, held."""
    folder = cache.parent / f"chainer_kernels-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    file = os.open(folder / f"{__name__}._thrice.lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def test_waits_for_the_one_that_compiles(cache):
    held, found = _lock(cache), []
    waiting = threading.Thread(target=lambda: found.append(thrice()))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    os.close(held)
    waiting.join(60)
    assert found == [0]


def test_waits_not_for_ever(cache, monkeypatch):
    monkeypatch.setattr(compiling, "_LONGEST_COMPILATION", 0.1)
    held = _lock(cache)
    assert thrice() == 0
    os.close(held)


def test_lock_of_a_killed_process(cache):
    os.close(_lock(cache))
    path = cache.parent / f"chainer_kernels-{os.getuid()}" / f"{__name__}._thrice.lock"
    code = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    process.stdout.readline()
    process.kill()
    process.communicate(timeout=60)
    start = time.monotonic()
    assert thrice() == 0
    assert time.monotonic() - start < 30
