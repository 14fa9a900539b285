"""Saves a training run on all ranks together.

What is saved is sorted by layer, so a run that was saved on four stages goes on with
two, with eight, or on one process; see :mod:`pipeline.snapshots.layer_state`. On disk a
snapshot is there completely or not at all; see :mod:`pipeline.snapshots.directories`.
"""

from __future__ import annotations

import functools
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import chainer
import numpy as np

from divisible import __version__
from pipeline.pipeline import Pipeline
from pipeline.snapshots import manifest
from pipeline.snapshots.arrays import write_arrays
from pipeline.snapshots.collecting import Announcement, collect, common_arrays
from pipeline.snapshots.directories import Draft, remove_old, time_after_others
from pipeline.snapshots.errors import SnapshotError
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.names import check_name
from pipeline.snapshots.on_all_ranks import on_all_ranks


def save_snapshot(
    path: str | os.PathLike,
    pipeline: Pipeline,
    optimizers: Any,
    state: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
    n_retains: int = -1,
) -> None:
    """Saves all that a training run needs to continue bit for bit.

    To be called on every rank, between two minibatches. Each rank writes its stages;
    the snapshot appears under its name when everything is on disk, on all ranks. A
    rank that is killed, a full disk or a directory that cannot be written to leave the
    snapshots that were there as they were.

    Saved are parameters and persistent values of the layers and of a loss that is a
    link, from the rank with the last stage; of the optimizers all that
    Chainer saves, hyperparameters, which parameters are frozen, float32 master weights,
    loss scale, and the state of hooks that have a method ``serialize``; the pipeline's
    state; the random states of NumPy and Python, of each rank; ``state`` and
    ``values``. Not saved are the
    generators of CuPy and cuDNN; layers in a pipeline do not depend on CuPy's.
    Iterators that prefetch go on in the same order if they shuffle by
    :class:`~pipeline.SeededShuffle`. Of several replicas of a pipeline let one save,
    and all load.

    Args:
        path: The snapshot's directory; one that is there is replaced. Several hosts
            need a file system that they share.
        pipeline (Pipeline): The pipeline.
        optimizers (chainer.Optimizer or list): Those of this rank's stages, set up, and
            one for a loss with parameters; a stage without one is saved without the
            state of an optimizer.
        state: By name what else has a state: iterators, trainers and other objects with
            a method ``serialize``, ``numpy.random.RandomState`` and ``Generator``. The
            state on rank 0 is saved, and what only the rank with the first stage has;
            of random states those on each.
        values: By name numbers, texts, lists and dictionaries of them; those of the
            first rank are saved. :func:`load_snapshot` returns them.
        n_retains (int): How many snapshots to keep of those in the same directory whose
            names differ in numbers only; at most 0 for all.

    Raises:
        SnapshotError: On every rank, if it failed on any. Training can go on.
        RuntimeError: If the model is loaded in part; see :func:`load_snapshot`.
        StallError: If a rank does not come, or writes for longer than the pipeline's
            timeout.

    Example:
        >>> import tempfile
        >>> import chainer.links as L
        >>> from mpi4py import MPI
        >>> from divisible import Divisible
        >>> from pipeline import load_snapshot
        >>> stage = Divisible(L.Linear(2, 3))
        >>> optimizer = chainer.optimizers.Adam().setup(stage)
        >>> pipe = Pipeline(stage, MPI.COMM_SELF, 1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_snapshot(f'{folder}/1', pipe, optimizer, values={'epoch': 7})
        ...     load_snapshot(f'{folder}/1', pipe, optimizer).values
        {'epoch': 7}
    """
    try:
        check_name(path)
    except ValueError as error:
        raise SnapshotError(str(error)) from None
    pipeline.ranks.calls.check_usable()
    draft = Draft(Path(path))
    state, values = dict(state or {}), dict(values or {})
    what = f"cannot save the snapshot {path}"
    attempt = functools.partial(on_all_ranks, pipeline, "save", what)
    try:
        contents, mine = attempt(collect, pipeline, optimizers, state, values, draft)
        announcements = pipeline.gather(mine, "save")
        for rank, theirs in enumerate(announcements):
            if theirs.path != announcements[0].path:
                raise SnapshotError(
                    f"{what}: rank {rank} has another path, {theirs.path}, than rank 0,"
                    f" {announcements[0].path}"
                )
        if pipeline.rank == 0:
            contents[manifest.COMMON] = common_arrays(
                announcements, contents[manifest.COMMON]
            )
        entries = attempt(_write, contents, Path(announcements[0].folder))
        written = pipeline.gather(entries, "save")
        attempt(_finish, pipeline, announcements, written, values, draft, n_retains)
    except SnapshotError:
        if pipeline.rank == 0:
            draft.discard()
        raise
    finally:
        draft.release()


def _write(
    contents: Mapping[str, Mapping[str, np.ndarray]], folder: Path
) -> dict[str, dict[str, Any]]:
    """Writes this rank's files, and returns their entries in the manifest."""
    return {
        name: write_arrays(folder / name, arrays) for name, arrays in contents.items()
    }


def _finish(
    pipeline: Pipeline,
    announcements: Sequence[Announcement],
    written: Sequence[Mapping[str, Any]],
    values: Mapping[str, Any],
    draft: Draft,
    n_retains: int,
) -> None:
    """Writes the manifest, and gives the snapshot its name; rank 0 does."""
    if pipeline.rank > 0:
        return
    ranges = {}
    for each in announcements:
        ranges.update(each.layer_ranges)
    schedule = pipeline.schedule
    snapshot = Snapshot(
        path=draft.folder,
        layer_ranges=[ranges[number] for number in sorted(ranges)],
        files={name: entry for rank in written for name, entry in rank.items()},
        time=time_after_others(draft.path, time.time()),
        n_ranks=schedule.n_ranks,
        n_steps=pipeline.n_steps,
        schedule={
            "name": schedule.name,
            "n_microbatches": schedule.n_microbatches,
            "text": str(schedule),
        },
        versions={
            "chainer": chainer.__version__,
            "divisible": __version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        values=values,
    )
    snapshot.write_manifest()
    is_on_disk = draft.finish()
    if n_retains > 0 and is_on_disk:
        remove_old(draft.path, n_retains)
