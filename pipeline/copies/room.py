"""The memory that copies need, predicted, and whether there is enough of it.

Two whole copies are kept while the next one is made, so a rank needs room for three:
each with its own files, and those of the ranks whose partner it is::

    rank 1   own 100 MB + of rank 0  90 MB  = 190 MB,  three times: 570 MB
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from divisible.free_memory import Claim, claims, refusal
from divisible.streaming.directories import IN_MEMORY, file_system
from pipeline.between_steps import BetweenSteps
from pipeline.copies.places import Home, remove_dead_runs
from pipeline.snapshots.errors import SnapshotError, on_all_ranks

#: Whole copies that are kept.
N_KEPT = 2
# Memory comes in pages.
_PAGE = 4096
# Bytes of the header of an array, of a pickled None, and of the entries in the archive:
# before the array, after it, and in the list at the end.
_BYTES_BESIDE_ARRAY = 128 + 8 + 50 + 24 + 46
_BYTES_BESIDE_FILE = 22


def file_bytes(arrays: Mapping[str, Any]) -> int:
    """Returns the bytes that a file of arrays takes in memory, predicted.

    Args:
        arrays: The arrays of the file, by key.

    Example:
        >>> file_bytes({'model/0/W': np.zeros((1000, 10), np.float32)})
        40960
    """
    n_bytes = _BYTES_BESIDE_FILE
    for key, value in arrays.items():
        name = 2 * len(f"{key}.npy".encode())
        n_bytes += np.asarray(value).nbytes + _BYTES_BESIDE_ARRAY + name
    return -(-n_bytes // _PAGE) * _PAGE


def needed_bytes(n_bytes: Sequence[int], partners: Sequence[int | None]) -> list[int]:
    """Returns the bytes of all copies that each rank's folder has at most.

    Args:
        n_bytes: Bytes of each rank's own files.
        partners: Partner of each rank.

    Example:
        >>> needed_bytes([100, 200], [1, 0]), needed_bytes([100, 200], [None, None])
        ([900, 900], [300, 600])
    """
    needed = list(n_bytes)
    for rank, partner in enumerate(partners):
        if partner is not None:
            needed[partner] += n_bytes[rank]
    return [(N_KEPT + 1) * each for each in needed]


def room_in(directory: Path, place: str) -> dict[str, Claim]:
    """Returns the memory that is left for copies, by each place with a limit.

    Args:
        directory: Directory of the copies.
        place: Name of the directory that no other one has, on any host.
    """
    found = claims(0) if file_system(directory) in IN_MEMORY else {}
    left = shutil.disk_usage(directory).free
    found[f"files {place}"] = Claim(f"the file system of {directory}", 0, left)
    return found


def held_bytes(folder: Path) -> int:
    """Returns the bytes that files in a folder take, with all folders in it."""
    return sum(
        path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()
    )


def reason_against(
    needed: Sequence[int], held: Sequence[int], rooms: Sequence[Mapping[str, Claim]]
) -> str | None:
    """Returns the place without room for the copies, in words, or ``None``.

    Args:
        needed: Bytes that the copies of each rank need.
        held: Bytes that they have by now.
        rooms: The memory that is left, by rank.
    """
    everyone = [
        {
            # The first rank of a place may hold more than it needs: all copies of the
            # start before, which leave room to the other ranks of the place.
            name: claim._replace(taken=claim.taken + most - now)
            for name, claim in room.items()
        }
        for most, now, room in zip(needed, held, rooms)
    ]
    return refusal(everyone)


def claim(pipeline: BetweenSteps, home: Home, needed: Sequence[int], what: str) -> None:
    """Refuses copies for which there is no room; all ranks must call it.

    Args:
        pipeline: The pipeline.
        home: The folders of the run's copies.
        needed: Bytes that the copies of each rank need.
        what: Beginning of an error.

    Raises:
        SnapshotError: On every rank, if some place has no room.
    """

    def look() -> tuple[int, dict[str, Claim]]:
        held = held_bytes(home.folder)
        if home.is_first:
            held += sum(map(held_bytes, home.earlier))
        return held, room_in(home.directory, home.places[home.rank])

    def reason() -> str | None:
        mine = on_all_ranks(pipeline, "save", what, look)
        return reason_against(needed, *zip(*pipeline.internals.gather(mine, "save")))

    why = reason()
    if why is not None:
        if home.is_first:
            remove_dead_runs(home.directory, home.run_folder, is_needed=True)
        why = reason()
    if why is not None:
        raise SnapshotError(
            f"{what}: {why}. Each rank keeps three copies of its state and of its"
            f" partner's. Use more hosts, or snapshot() alone"
        )
