"""How many rows a segment may have."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible.planning.disk import IN_MEMORY, LEAST_BYTES, MOST_BYTES
from divisible.streaming.segments import ranges, rows_of_segment


@given(
    n_rows=st.integers(1, 10**6),
    width=st.integers(1, 10**6),
    memory=st.one_of(st.none(), st.integers(1, 2**40)),
)
def test_candidates_keep_to_the_memory(n_rows, width, memory):
    limit = MOST_BYTES if memory is None else memory // IN_MEMORY
    row_bytes = 4 * width
    if row_bytes > limit:
        with pytest.raises(ValueError, match="a segment of 1 row has"):
            rows_of_segment((n_rows, width), np.dtype("f"), "auto", memory)
        return
    found = rows_of_segment((n_rows, width), np.dtype("f"), "auto", memory)
    assert found[0] == min(n_rows, limit // row_bytes) and len(found) <= 4
    for larger, smaller in zip(found, found[1:]):
        assert smaller == larger // 2
        assert smaller * row_bytes >= LEAST_BYTES


def test_a_segment_larger_than_the_memory_is_refused_with_the_numbers():
    shape, dtype = (4096, 1024), np.dtype("f")
    assert rows_of_segment(shape, dtype, 512, "32MiB") == [512]
    words = (
        r"a segment of 513 rows has 2\.0 MiB, and 16 of them .* 32\.1 MiB in all: more"
        r" than memory='32MiB'; give more, or fewer rows$"
    )
    with pytest.raises(ValueError, match=words):
        rows_of_segment(shape, dtype, 513, "32MiB")
    with pytest.raises(ValueError, match="1 row has 4.0 KiB.* give more$"):
        rows_of_segment(shape, dtype, "auto", 1000)
    # Rows that are not there need no memory.
    assert rows_of_segment((100, 1024), dtype, 10**9, "8MiB") == [100]


@pytest.mark.parametrize("memory", [0, -1, float("inf"), float("nan"), "0"])
def test_memory_of_no_size_is_refused(memory):
    with pytest.raises(ValueError, match="positive number of bytes"):
        rows_of_segment((4, 4), np.dtype("f"), "auto", memory)


@given(n_rows=st.integers(0, 50), rows=st.integers(1, 60))
def test_ranges_cover_all_rows(n_rows, rows):
    found = [row for start, stop in ranges(n_rows, rows) for row in range(start, stop)]
    assert found == list(range(n_rows))
