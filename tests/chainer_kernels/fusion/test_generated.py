"""Generated loops, and their code on disk."""

import subprocess
import sys
from unittest import mock

import numpy as np
import pytest

from chainer_kernels import compiling
from chainer_kernels.fusion import generated
from chainer_kernels.fusion.tracing import trace
from tests.support.processes import ROOT


def loop_of(factor):
    x = np.ones(3, "f")
    _, loop = generated.Compiled(trace([lambda v: v * factor + 1], [x])).forward
    y = np.empty_like(x)
    loop(x, y)
    return loop, y


def test_equal_loops_are_one():
    assert loop_of(3.0)[0] is loop_of(3.0)[0]
    assert loop_of(3.0)[0] is not loop_of(4.0)[0]


@pytest.fixture
def anew():
    """As in a process that has made no loops."""
    generated.loops.cache_clear()
    yield generated.loops.cache_clear
    generated.loops.cache_clear()


SECOND = """
from chainer_kernels import compiling
from tests.chainer_kernels.fusion.test_generated import loop_of

compiling.cache_directory = lambda: {folder!r}
for factor in (5.0, 6.0):
    loop, y = loop_of(factor)
    print(*y, sum(loop.compiled.stats.cache_hits.values()))
"""


def test_a_second_process_finds_code_of_the_first(tmp_path, anew):
    with mock.patch.object(compiling, "cache_directory", lambda: str(tmp_path)):
        loop_of(5.0)
    # In this process, Numba would find what it has of the first loop.
    done = subprocess.run(
        [sys.executable, "-c", SECOND.format(folder=str(tmp_path))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.splitlines() == ["6.0 6.0 6.0 1", "7.0 7.0 7.0 0"], done.stderr


def test_without_a_directory_loops_are_compiled_all_the_same(anew):
    with mock.patch.object(compiling, "cache_directory", lambda: None):
        np.testing.assert_array_equal(loop_of(6.0)[1], 7)
