"""Copies take the memory that was predicted, or are refused."""

import numpy as np
import pytest

from divisible.free_memory import Claim
from pipeline.copies.room import file_bytes, held_bytes, needed_bytes, reason_against
from pipeline.snapshots.arrays import write_arrays


@pytest.mark.parametrize("n_arrays", [1, 3, 200])
def test_a_file_takes_what_was_predicted(tmp_path, n_arrays):
    arrays = {f"model/{i}/W": np.ones((17, i), np.float32) for i in range(n_arrays)}
    arrays["optimizer/t"] = np.array(None)
    written = write_arrays(tmp_path / "file.npz", arrays)["bytes"]
    assert written <= file_bytes(arrays) <= 1.05 * written + 8192
    assert held_bytes(tmp_path) <= file_bytes(arrays)


def test_two_kept_copies_and_the_next_one_of_two_ranks_need_room():
    assert needed_bytes([5, 7, 11], [1, 2, 0]) == [3 * 16, 3 * 12, 3 * 18]


def test_what_is_held_already_counts_as_room():
    room = {"place": Claim("the place", 0, 100)}
    needed = [60, 60]
    assert reason_against(needed, [30, 30], [room, room]) is None
    assert "are left of the place" in reason_against(needed, [0, 20], [room, room])
    # The first rank counts the copies of the start before, of both ranks.
    assert reason_against(needed, [90, 0], [room, room]) is None
