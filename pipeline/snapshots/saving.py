"""Saves a training run on all ranks together.

What is saved is sorted by layer, so a run that was saved on four stages goes on with
two, with eight, or on one process; see :mod:`pipeline.snapshots.layers`. On disk a
snapshot is there completely or not at all; see :mod:`pipeline.snapshots.directories`.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from divisible import free_memory
from pipeline.pipeline import Pipeline
from pipeline.snapshots.background import pending, settle, start
from pipeline.snapshots.directories import Draft, Lock
from pipeline.snapshots.errors import SnapshotError, on_all_ranks, on_first
from pipeline.snapshots.finding import Series
from pipeline.snapshots.names import COMMON, check_name
from pipeline.snapshots.writing import (
    Announcement,
    Contents,
    Writing,
    collect,
    common_arrays,
    n_bytes_to_copy,
    of_replica,
)

_locks: weakref.WeakKeyDictionary[Pipeline, Lock | None] = weakref.WeakKeyDictionary()


def save_snapshot(
    path: str | os.PathLike,
    pipeline: Pipeline,
    optimizer: Any,
    *,
    state: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
    n_retains: int = -1,
    background: bool = False,
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
    :class:`~pipeline.SeededShuffle`.

    On a grid the first replica writes, and later ones what they have otherwise: that is
    loaded where there are as many replicas again, or as far as there are. Pipelines
    that know nothing of each other: let one save, and all load.

    Args:
        path: The snapshot's directory; one that is there is replaced. Several hosts
            need a file system that they share.
        pipeline (Pipeline): The pipeline.
        optimizer (chainer.Optimizer or list): The optimizers of this rank's stages,
            set up, and one for a loss with parameters; a stage without one is saved
            without the state of an optimizer.
        state: By name what else has a state: iterators, trainers and other objects with
            a method ``serialize``, ``numpy.random.RandomState`` and ``Generator``. The
            state on rank 0 is saved, and what only the rank with the first stage has;
            of random states those on each.
        values: By name numbers, texts, lists and dictionaries of them; those of the
            first rank are saved. :func:`load_snapshot` returns them.
        n_retains (int): How many snapshots to keep of those in the same directory whose
            names differ in numbers only; at most 0 for all.
        background (bool): Whether to return when the state has been copied in memory. A
            thread of each rank writes the files while the training goes on, and the
            snapshot gets its name when all are on disk. Where there is no memory for
            the copy, rank 0 warns once, and all ranks write at once.

    Raises:
        SnapshotError: On every rank, if it failed on any, or another run saves in the
            same directory. Training can go on. If it failed in the background, the next
            call of this function, of :func:`wait_for_snapshot` or
            :func:`load_snapshot`, or ``pipeline.close()`` raises it; this function
            saves the next snapshot all the same. If there is none, the process waits
            for the files at its end, twice the pipeline's timeout at most, and a
            failure ends all ranks then.
        RuntimeError: If the model is loaded in part; see :func:`load_snapshot`.
        StallError: If a rank does not come, or writes for longer than the pipeline's
            timeout.

    Example:
        >>> import tempfile
        >>> import chainer
        >>> import chainer.links as L
        >>> from mpi4py import MPI
        >>> from divisible import Divisible
        >>> from pipeline import load_snapshot
        >>> stage = Divisible(L.Linear(2, 3))
        >>> optimizer = chainer.optimizers.Adam().setup(stage)
        >>> pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_snapshot(f'{folder}/1', pipe, optimizer, values={'epoch': 7})
        ...     load_snapshot(f'{folder}/1', pipe, optimizer).values
        {'epoch': 7}
    """
    save(
        path,
        pipeline,
        optimizer,
        state=state,
        values=values,
        n_retains=n_retains,
        background=background,
    )


def _raise(error: SnapshotError) -> None:
    raise error


def save(
    path: str | os.PathLike,
    pipeline: Pipeline,
    optimizer: Any,
    *,
    state: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
    n_retains: int = -1,
    background: bool = False,
    report: Callable[[SnapshotError], None] = _raise,
    among: tuple[str, str] | None = None,
) -> None:
    """Saves as :func:`save_snapshot`, and gives to ``report`` what that raises.

    It is called on every rank, now or, for a snapshot in the background, when the
    outcome is known. The folder and the pattern ``among`` say which snapshots it is the
    newest of, and which of them are old; by default all in the same directory.
    """
    try:
        check_name(path)
    except ValueError as error:
        raise SnapshotError(str(error)) from None
    pipeline.internals.ranks.calls.check_usable()
    path, values = Path(path), dict(values or {})
    folder, pattern = among or (path.parent, "*")
    series = Series(Path(folder), pattern, n_retains)
    draft = Draft(path, series.folder)
    what = f"cannot save the snapshot {path}"
    with _settled(pipeline), contextlib.ExitStack() as stack:
        stack.callback(draft.release)
        try:
            run = optimizer, dict(state or {}), values, draft
            contents, announcements, claims = _collect(pipeline, what, background, *run)
            writing = Writing.of(
                pipeline, announcements, contents, values, draft, series
            )
            _hold(pipeline, draft.lock)
            if background and start(pipeline, writing, claims, what, report):
                # The draft is the thread's.
                stack.pop_all()
                return
            entries = on_all_ranks(pipeline, "save", what, writing.write_files)
            written = pipeline.internals.gather(entries, "save")
            on_first(pipeline, "save", what, writing.finish, written)
        except SnapshotError as error:
            draft.discard()
            report(error)
        else:
            draft.warn()


def _collect(
    pipeline: Pipeline, what: str, background: bool, *run: Any
) -> tuple[Contents, Sequence[Announcement], Sequence[Any]]:
    """Returns what this rank is to write, and what all ranks say of it.

    Args:
        pipeline: Whose ranks they are.
        what: The beginning of errors.
        background: Whether the files are to be written in the background.
        run: As :func:`collect` takes it, without the pipeline.

    Returns:
        Its arrays; and by rank the announcements, and what a copy of its arrays would
        take, or ``None`` where none is made.
    """
    contents, mine, claims = on_all_ranks(
        pipeline, "save", what, _prepare, background, pipeline, *run
    )
    said = pipeline.internals.gather((mine, claims), "save")
    announcements, everyones_claims = zip(*said)
    _compare(announcements, everyones_claims, what)
    contents = of_replica(contents, mine, announcements)
    if pipeline.is_chief:
        contents[COMMON] = common_arrays(announcements, contents[COMMON])
    return contents, announcements, everyones_claims


def _prepare(
    background: bool, *run: Any
) -> tuple[Contents, Announcement, dict[str, free_memory.Claim] | None]:
    """Returns what :func:`collect` does of a run, and what a copy would take."""
    contents, mine = collect(*run)
    claims = free_memory.claims(n_bytes_to_copy(contents)) if background else None
    return contents, mine, claims


def _hold(pipeline: Pipeline, lock: Lock | None) -> None:
    """Keeps a lock as long as a pipeline is there, or until it saves elsewhere."""
    _locks[pipeline] = lock
    of = weakref.ref(pipeline)
    pipeline.internals.ranks.before_close = lambda: _end(of())


def _end(pipeline: Pipeline) -> None:
    settle(pipeline)
    _locks.pop(pipeline, None)


@contextlib.contextmanager
def _settled(pipeline: Pipeline) -> Iterator[None]:
    """Waits for the snapshot before; if that failed, it raises it after the block.

    What fails in the block as well has the words of both.
    """
    try:
        if pipeline in pending:
            settle(pipeline)
    except SnapshotError as failed:
        try:
            yield
        except SnapshotError as error:
            raise SnapshotError(f"{error}; and before it, {failed}") from failed
        raise
    yield


def _compare(
    announcements: Sequence[Announcement], claims: Sequence[Any], what: str
) -> None:
    """Refuses to save one snapshot under several names, or in several ways."""
    for rank, theirs in enumerate(announcements):
        if theirs.path != announcements[0].path:
            raise SnapshotError(
                f"{what}: rank {rank} has another path, {theirs.path}, than rank 0,"
                f" {announcements[0].path}"
            )
        if (claims[rank] is None) != (claims[0] is None):
            raise SnapshotError(
                f"{what}: rank {rank} saves"
                f" {'at once' if claims[rank] is None else 'in the background'}, but"
                f" rank 0 does not"
            )
