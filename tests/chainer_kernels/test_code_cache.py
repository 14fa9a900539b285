"""Compiled code on disk: several processes, other machines, damaged files."""

import fcntl
import hashlib
import os
import pickle
import random
import runpy
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from chainer_kernels import code_cache, compiling
from tests.support.matrix import matrix
from tests.support.processes import ROOT

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
    """An empty directory for compiled code."""
    code_cache.cache_directory.cache_clear()
    code_cache._warn_once.cache_clear()
    monkeypatch.setenv("CHAINER_KERNELS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(code_cache._Waiting, "is_sensible", True)
    yield tmp_path / "cache"
    code_cache.cache_directory.cache_clear()


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
    held, found = _lock(), []
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


def test_found_the_second_time(cache):
    assert [thrice(), thrice()] == [0, 1]


def test_environments_share_code(cache, tmp_path, monkeypatch):
    assert code_cache.cache_directory() is not None
    found = []
    for name in ("one", "other"):
        place = tmp_path / name / "loops.py"
        place.parent.mkdir()
        place.write_text(LOOP)
        monkeypatch.setattr(code_cache, "_ROOT", place.parent)
        twice = runpy.run_path(str(place), run_name="loops")["twice"]
        compiling.LOOPS.remove(twice)
        found.append(sum(twice.compiled.stats.cache_hits.values()))
    assert found == [0, 1]


def _shorter(data):
    return data[:-9]


def _zeros_in_the_middle(data):
    return data[:1024] + bytes(512) + data[1536:]


@pytest.mark.parametrize(
    "damage", [_shorter, _zeros_in_the_middle, bytes.upper, lambda data: b""]
)
def test_damaged_files_are_written_anew(cache, damage):
    thrice()
    (file,) = cache.rglob("*.nbc")
    file.write_bytes(damage(file.read_bytes()))
    assert [thrice(), thrice()] == [0, 1]
    assert code_cache._content(file) is not None


class Runs:
    """A pickle of it makes a file when it is read."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_a_pickle_that_is_not_ours_is_not_read(cache, tmp_path):
    thrice()
    (file,) = cache.rglob("*.nbc")
    head, pickled = file.read_bytes()[:55], pickle.dumps(Runs(tmp_path / "ran"))
    for content in (pickled, head + pickled):
        file.write_bytes(content)
        assert thrice() == 0
    assert not (tmp_path / "ran").exists()
    # It would run.
    pickle.loads(pickled)
    assert (tmp_path / "ran").exists()


def test_a_file_that_others_can_write_to_is_not_read(cache):
    thrice()
    (file,) = cache.rglob("*.nbc")
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o666)
    assert [thrice(), thrice()] == [0, 1]


def test_what_is_no_file_is_not_read(cache):
    thrice()
    (file,) = cache.rglob("*.nbc")
    aside = file.rename(file.with_suffix(".aside"))
    file.symlink_to(aside)
    assert [thrice(), thrice()] == [0, 1]
    file.unlink()
    # To open one waits for somebody who writes.
    os.mkfifo(file)
    assert [thrice(), thrice()] == [0, 1]


def test_a_file_of_another_function_is_not_taken(cache):
    thrice()
    (file,) = cache.rglob("*.nbc")
    other = compiling.njit()(_copy)
    other.compile("void(f4[::1], f4[::1])")
    (of_copy,) = set(cache.rglob("*.nbc")) - {file}
    os.replace(of_copy, file)
    assert [thrice(), thrice()] == [0, 1]


def test_a_function_is_compiled_anew_where_its_module_has_changed(cache, monkeypatch):
    thrice()
    monkeypatch.setattr(code_cache, "_digest_of_file", lambda path: b"another")
    assert [thrice(), thrice()] == [0, 1]
    assert len(list(cache.rglob("*.nbc"))) == 1


def _damaged(data, draw):
    """Returns a file as failing disks, systems and strangers leave it."""
    place, size = draw.randrange(len(data)), draw.choice([1, 16, 512, 4096])
    return draw.choice(
        [
            data[:place],
            data[:place] + bytes(size) + data[place + size :],
            data[:place] + draw.randbytes(size) + data[place + size :],
            data[:place] + data[place + size :],
            data + draw.randbytes(size),
            data[size:] + data[:size],
        ]
    )


@pytest.mark.parametrize("n", [2000, pytest.param(20000, marks=pytest.mark.matrix)])
def test_no_damage_goes_unnoticed(cache, n):
    thrice()
    (file,) = cache.rglob("*.nbc")
    whole = file.read_bytes()
    content = code_cache._whole(whole)
    assert hashlib.sha256(content).digest() in whole[:100]
    draw, n_damaged = random.Random(0), 0
    for _ in range(n):
        data = _damaged(whole, draw)
        n_damaged += data != whole
        assert code_cache._whole(data) == (content if data == whole else None)
    assert n_damaged > 0.9 * n


ALL_DAMAGES = pytest.param(200, marks=pytest.mark.matrix)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, ALL_DAMAGES])
def test_a_start_survives_whatever_is_in_the_cache(start, tmp_path, n):
    """Each start finds the file damaged, computes, and leaves a whole one."""
    assert end(start())[0] == 0
    (file,) = (tmp_path / "cache").rglob("*.nbc")
    whole, draw = file.read_bytes(), random.Random(1)
    for _ in range(n):
        data = _damaged(whole, draw)
        file.write_bytes(data)
        assert end(start())[0] == (data == whole)
        assert code_cache._content(file) is not None


def test_full_disk(cache, monkeypatch):
    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.warns(UserWarning, match=r"\(No space left on device\). Free") as said:
        assert [thrice(), thrice()] == [0, 0]
    assert len(said) == 1
    files = (path for path in cache.rglob("*") if path.is_file())
    assert {path.suffix for path in files} == {".lock"}


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
        monkeypatch.setattr(code_cache, "_wait_in_turn", None)
        assert [thrice(), thrice()] == [0, 0]


def test_home_that_does_not_exist(cache, monkeypatch, tmp_path):
    for name in ("CHAINER_KERNELS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    folder = compiling.cache_directory()
    assert folder.startswith(str(tmp_path / "nobody/.cache/chainer_kernels/"))
    assert os.path.isdir(folder)


@pytest.mark.parametrize("name", ["CHAINER_KERNELS_CACHE", "XDG_CACHE_HOME", "HOME"])
def test_a_directory_that_others_can_write_to_is_refused(
    cache, monkeypatch, tmp_path, name
):
    for each in ("CHAINER_KERNELS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(each, raising=False)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv(name, str(tmp_path / "open"))
    with pytest.warns(UserWarning, match=f"can write to {tmp_path}/open. .*chmod go-w"):
        assert compiling.cache_directory() is None
    assert thrice() == 0
    assert not list((tmp_path / "open").iterdir())


NOWHERE = """
import os, pwd, warnings
for name in ("HOME", "XDG_CACHE_HOME", "CHAINER_KERNELS_CACHE"):
    os.environ.pop(name, None)
os.environ.update({variables!r})

def unknown(number):
    raise KeyError(number)

pwd.getpwuid = unknown
from chainer_kernels import compiling
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert [compiling.cache_directory() for _ in range(2)] == [None, None]
(warning,) = said
print(warning.message)
"""


@pytest.mark.parametrize(
    "variables, cause",
    [
        ({"HOME": "~"}, "this user has no home directory"),
        ({"CHAINER_KERNELS_CACHE": "~/cache"}, "Give an absolute path"),
        *matrix(
            ({}, "this user has no home directory"),
            ({"XDG_CACHE_HOME": "cache"}, "this user has no home directory"),
            ({"CHAINER_KERNELS_CACHE": "cache"}, "Give an absolute path"),
        ),
    ],
)
def test_without_a_home_nothing_is_made_where_the_script_starts(
    tmp_path, variables, cause
):
    result = subprocess.run(
        [sys.executable, "-c", NOWHERE.format(variables=variables)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ":".join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert cause in result.stdout, result.stderr
    assert "name a directory in CHAINER_KERNELS_CACHE" in result.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fact", ["get_host_cpu_name", "get_host_cpu_features"])
def test_other_processors_have_their_own_directory(cache, monkeypatch, fact):
    thrice()
    ours = compiling.cache_directory()
    other = type("Features", (str,), {"flatten": lambda self: str(self)})("z80")
    monkeypatch.setattr(code_cache.binding, fact, lambda: other)
    code_cache.cache_directory.cache_clear()
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
    code_cache.cache_directory.cache_clear()
    compiling.cache_directory()
    assert os.stat(folder).st_mtime > time.time() - 60


def _lock_file():
    return f"{compiling.cache_directory()}/{__name__}._thrice.lock"


def _lock():
    """Returns the lock of the loop, held."""
    file = os.open(_lock_file(), os.O_CREAT | os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def test_waits_for_the_one_that_compiles(cache):
    held, found = _lock(), []
    waiting = threading.Thread(target=lambda: found.append(thrice()))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    os.close(held)
    waiting.join(60)
    assert found == [0]


def test_what_is_there_is_not_waited_for(cache, monkeypatch):
    thrice()
    monkeypatch.setattr(code_cache, "_wait_in_turn", None)
    assert thrice() == 1


def test_waits_not_for_ever_and_only_once(cache, monkeypatch):
    monkeypatch.setattr(code_cache, "_LONGEST_COMPILATION", 0.1)
    held = _lock()
    with pytest.warns(UserWarning, match="thrice.lock cannot be locked .another proc"):
        assert thrice() == 0
    os.close(held)
    # Who hangs has many locks: none is waited for any more.
    monkeypatch.setattr(code_cache, "_lock", None)
    (file,) = cache.rglob("*.nbc")
    file.unlink()
    assert thrice() == 0


def test_a_file_system_that_cannot_lock(cache, monkeypatch):
    def refuse(*arguments):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match=r"\(No locks available\). Name"):
        assert thrice() == 0
    assert thrice() == 1


def test_locks_are_where_no_other_user_can_hold_them(cache):
    thrice()
    assert Path(_lock_file()).stat().st_mode & 0o777 == 0o600
    assert Path(_lock_file()).parent.stat().st_mode & 0o777 == 0o700


def test_a_link_in_place_of_a_lock_is_not_followed(cache, tmp_path):
    Path(_lock_file()).symlink_to(tmp_path / "made")
    with pytest.warns(UserWarning, match="cannot be locked"):
        assert thrice() == 0
    assert not (tmp_path / "made").exists()


def test_lock_of_a_killed_process(cache):
    os.close(_lock())
    path = _lock_file()
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
    with warnings.catch_warnings():
        # As a wait for a lock that nobody gives back ends with.
        warnings.simplefilter("error")
        assert thrice() == 0
