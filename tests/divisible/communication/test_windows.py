"""Credits, notes and slots in common memory."""

import numpy as np
import pytest

from divisible.communication.signatures import TensorSpec
from divisible.communication.windows import (
    BY_MPI,
    FULL,
    N_EXPECTED,
    NEW,
    Layout,
    Numbers,
    Window,
)

AGREED = (
    TensorSpec((4, 3), "<f4", True),
    TensorSpec(None, "", None),
    TensorSpec((4,), "<i8", None),
    TensorSpec((0, 2), "|u1", None),
    TensorSpec((5, 7), "<f4", True, (), "int8"),
)


def test_numbers_of_a_message_are_of_that_message_only():
    numbers = Numbers(np.zeros(N_EXPECTED, np.int64))
    assert numbers.read(0) is None
    for message, number in enumerate([0, 7, FULL, NEW, BY_MPI] * N_EXPECTED):
        assert numbers.read(message) is None
        numbers.write(message, number)
        assert numbers.read(message) == number
        assert numbers.read(message + N_EXPECTED) is None
    for message in (1 << 30, (1 << 31) - 1, 1 << 31, (1 << 40) + 7):
        assert numbers.read(message) is None
        numbers.write(message, BY_MPI)
        assert numbers.read(message) == BY_MPI


@pytest.mark.parametrize("n_slots", [1, 3])
def test_slots_do_not_overlap(n_slots):
    layouts = [Layout(0, n_slots)]
    layouts.append(Layout(layouts[0].end(AGREED), n_slots))
    content = memoryview(bytearray(layouts[1].end(AGREED)))
    start = np.frombuffer(content, np.uint8).ctypes.data
    mine, theirs = (
        [Window(content, layout, AGREED) for layout in layouts] for _ in range(2)
    )
    number = 0
    for window in mine:
        assert len(window.slots) == n_slots
        for slot in window.slots:
            assert [array.dtype.str for array in slot] == ["<f4", "<i8", "|u1", "|u1"]
            for array in slot:
                assert (array.ctypes.data - start) % 64 == 0
                array[...] = number
                number += 1
        window.credits.write(5, 2)
        window.notes.write(5, 4)
    number = 0
    for window in theirs:
        for slot in window.slots:
            for array in slot:
                assert (array == number).all()
                number += 1
        assert (window.credits.read(5), window.notes.read(5)) == (2, 4)


def test_views_refer_to_the_array_of_a_slot():
    """So that references to it are all references."""
    layout = Layout(0, 1)
    content = memoryview(bytearray(layout.end(AGREED)))
    array = Window(content, layout, AGREED).slots[0][0]
    for view in (array[1:], array.T, array.reshape(-1)[:3].reshape(3, 1)):
        assert view.base is array
