import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible.streaming import LargeInput
from divisible.streaming.segments import ranges

ROWS = np.arange(60, dtype=np.float32).reshape(20, 3)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=9), st.integers(1, 25))
def test_pieces_of_a_generator_become_segments(sizes, n_rows):
    rows = np.arange(sum(sizes))

    def pieces():
        for stop, size in zip(np.cumsum(sizes), sizes):
            yield rows[stop - size : stop]

    large = LargeInput(pieces, shape=rows.shape, dtype=rows.dtype)
    wanted = list(ranges(len(rows), n_rows))
    found = list(large.parts(wanted))
    assert [len(each) for each in found] == [stop - start for start, stop in wanted]
    assert [*map(int, np.concatenate([*found, []]))] == rows.tolist()


@pytest.mark.parametrize(
    "pieces, words",
    [
        ([ROWS[:9]], "yielded 9 of 20"),
        ([ROWS, ROWS[:1]], "yielded more than 20"),
        ([ROWS[:, :2]], r"an array of \(20, 2\), but the input is of \(20, 3\)"),
        ([ROWS[0]], r"an array of \(3,\)"),
    ],
)
def test_a_generator_of_other_rows_is_an_error(pieces, words):
    large = LargeInput(lambda: pieces, shape=(20, 3), dtype="f")
    with pytest.raises(ValueError, match=words):
        list(large.parts(ranges(20, 6)))


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ({"source": 3}, TypeError, "source is 3: give something with shape"),
        ({"source": ROWS, "dtype": "f"}, ValueError, "an array has its own"),
        ({"source": lambda: [], "dtype": "f"}, ValueError, "needs shape= and dtype="),
        ({"source": lambda: []}, ValueError, "needs shape= and dtype="),
        ({"source": np.float32(3)}, ValueError, "needs one axis"),
    ],
)
def test_other_sources_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        LargeInput(**arguments)
