"""A rank's part of a copy: its arrays, and the files of them for its own host.

The parts are those of a snapshot. But each rank writes into a folder of its own, with a
manifest of its own, since no other host sees its files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.between_steps import BetweenSteps
from pipeline.copies.room import file_bytes
from pipeline.snapshots.directories import Draft
from pipeline.snapshots.errors import SnapshotError, on_all_ranks
from pipeline.snapshots.finding import Series
from pipeline.snapshots.names import COMMON
from pipeline.snapshots.writing import (
    SaveAnnouncement,
    Writing,
    collect,
    common_arrays,
    of_replica,
)


def begin(
    pipeline: BetweenSteps,
    optimizer: Any,
    state: Mapping[str, Any],
    values: Mapping[str, Any],
    draft: Draft,
    what: str,
) -> tuple[Writing, list[int]]:
    """Collects the arrays of this rank; all ranks must call it.

    Args:
        pipeline: The pipeline.
        optimizer: The optimizers of this rank's stages.
        state: Other objects of the run.
        values: Numbers and texts of the script.
        draft: The folder of this rank's part.
        what: Beginning of errors.

    Returns:
        This rank's part, and the bytes of each rank's files.
    """
    run = pipeline, optimizer, state, values, draft
    contents, mine = on_all_ranks(pipeline, "save", what, _collect, *run)
    announcements: list[SaveAnnouncement] = pipeline.internals.gather(mine, "save")
    contents = of_replica(contents, mine, announcements)
    if pipeline.is_chief:
        contents[COMMON] = common_arrays(announcements, contents[COMMON])
    series = Series(draft.path.parent, "*", 0)
    writing = Writing.of(pipeline, announcements, contents, values, draft, series)
    writing.snapshot = replace(writing.snapshot, path=draft.folder)
    n_bytes = sum(file_bytes(arrays) for arrays in contents.values())
    return writing, pipeline.internals.gather(n_bytes, "save")


def _collect(*run: Any) -> Any:
    pipeline, *_, draft = run
    contents, mine = collect(*run)
    if not pipeline.is_chief:
        # Rank 0's has begun: it begins all other snapshots.
        draft.begin()
    return contents, mine


def finish(
    writing: Writing, written: Sequence[Mapping[str, Any]], time: float
) -> dict[str, Mapping[str, Any]]:
    """Writes this rank's manifest, and gives its part of the copy its name.

    Args:
        writing: This rank's part.
        written: The files of each rank: size and checksum by name.
        time: Time of the copy, in seconds since 1970.

    Returns:
        The files of all ranks.

    Raises:
        SnapshotError: If the file system refuses.
    """
    files = {name: entry for rank in written for name, entry in rank.items()}
    replace(writing.snapshot, files=files, time=time).write_manifest()
    writing.draft.finish()
    return files


def refuse_large_weights(writing: Writing) -> None:
    """Refuses weights on disk, because they do not fit in memory.

    Raises:
        SnapshotError: If some weights are on disk.
    """
    if writing.has_streamed:
        raise SnapshotError(
            "weights of this rank are on disk, for they do not fit in memory. Save the"
            " run by snapshot() only"
        )
