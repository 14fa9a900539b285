"""The folders of a run's copies, made on all ranks together."""

from __future__ import annotations

import secrets
from pathlib import Path

from pipeline.between_steps import BetweenSteps
from pipeline.copies import places
from pipeline.snapshots.errors import on_all_ranks

_WHAT = "cannot keep copies in memory"


def open_home(pipeline: BetweenSteps, name: str, directory: Path) -> places.Home:
    """Makes this rank's folder for copies; all ranks must call it.

    The first rank of each place makes the folder of the run, and removes those of runs
    that are dead.

    Args:
        pipeline: The pipeline.
        name: Name of the run; rank 0's is used.
        directory: Directory in memory, which ranks of one place share.

    Raises:
        SnapshotError: On every rank, if a rank cannot write there, or if a run of this
            name still lives.
    """
    place = on_all_ranks(pipeline, "load", _WHAT, places.place_of, directory)
    mine = place, secrets.token_hex(4), name
    everyone = pipeline.internals.gather(mine, "load")
    all_places, (start, *_), (name, *_) = zip(*everyone)
    rank = pipeline.internals.ranks.world.rank
    run_folder = places.folder_of_run(directory, name)

    def make_run_folder() -> None:
        if all_places.index(place) == rank:
            places.make_run_folder(run_folder)
            places.remove_dead_runs(directory, run_folder)

    on_all_ranks(pipeline, "load", _WHAT, make_run_folder)
    folder, lock = on_all_ranks(
        pipeline, "load", _WHAT, places.make_rank_folder, run_folder, start, rank
    )
    return places.Home(directory, run_folder, folder, lock, start, all_places, rank)
