"""The tables of windows."""

import numpy as np

from chainer_kernels.pooling_windows import windows


def test_the_table_of_the_docstring():
    found = windows((2, 3), (1, 2), (2, 2), (2, 2), (0, 0))
    assert [each.tolist() for each in found] == [
        [0, 4, 6],
        [0, 1, 3, 4, 2, 5],
        [0, 1, 2, 3, 0, 2],
    ]


def test_a_window_outside_of_the_image_is_empty():
    found = windows((2,), (3,), (1,), (1,), (1,))
    assert [each.tolist() for each in found] == [[0, 0, 1, 2], [0, 1], [0, 0]]


def test_there_is_no_table_that_is_too_large():
    assert windows((2000, 2000), (2000, 2000), (1, 1), (1, 1), (0, 0)) is None


def test_whoever_asks_again_gets_the_same_table():
    one, other = (windows((4,), (2,), (2,), (2,), (0,)) for _ in range(2))
    assert np.shares_memory(one.cells, other.cells)
