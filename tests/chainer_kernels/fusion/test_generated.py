"""Generated loops as files."""

from unittest import mock

import numpy as np

from chainer_kernels import compiling
from chainer_kernels.fusion import generated
from chainer_kernels.fusion.tracing import trace


def loop_of(factor):
    x = np.ones(3, "f")
    _, loop = generated.Compiled(trace([lambda v: v * factor + 1], [x])).forward
    y = np.empty_like(x)
    loop(x, y)
    return loop, y


def in_directory(path):
    generated.loops.cache_clear()
    return mock.patch.object(generated, "cache_directory", lambda: path)


def test_equal_loops_are_one():
    assert loop_of(3.0)[0] is loop_of(3.0)[0]
    assert loop_of(3.0)[0] is not loop_of(4.0)[0]


def test_a_second_process_finds_code_of_the_first(tmp_path):
    with (
        in_directory(str(tmp_path)),
        mock.patch.object(compiling, "cache_directory", lambda: str(tmp_path)),
    ):
        loop_of(5.0)
        (path,) = tmp_path.glob("fused/*.py")
        before = path.stat().st_mtime
        # Another process of the host has written the same meanwhile.
        path.unlink()
        generated.loops.cache_clear()
        loop, y = loop_of(5.0)
        (path,) = tmp_path.glob("fused/*.py")
    assert path.stat().st_mtime == before
    assert sum(loop.compiled.stats.cache_hits.values()) == 1
    np.testing.assert_array_equal(y, 6)
    generated.loops.cache_clear()


def test_without_a_directory_loops_are_compiled_all_the_same():
    with in_directory(None):
        np.testing.assert_array_equal(loop_of(6.0)[1], 7)
    generated.loops.cache_clear()


def test_a_damaged_file_is_written_anew(tmp_path):
    with in_directory(str(tmp_path)):
        loop_of(7.0)
        (path,) = tmp_path.glob("fused/*.py")
        path.write_text("broken(")
        generated.loops.cache_clear()
        np.testing.assert_array_equal(loop_of(7.0)[1], 8)
    generated.loops.cache_clear()
