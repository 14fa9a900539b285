"""Saves a training run on all ranks together.

Arrays are saved by layer, so a run that was saved on four stages resumes on two, on
eight, or in one process; see :mod:`pipeline.snapshots.layers`. On disk, a snapshot is
complete or does not exist; see :mod:`pipeline.snapshots.directories`.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from divisible import free_memory
from pipeline.between_steps import BetweenSteps
from pipeline.snapshots.background import pending, settle, start
from pipeline.snapshots.directories import Draft, Lock
from pipeline.snapshots.errors import SnapshotError, on_all_ranks, on_first
from pipeline.snapshots.finding import Series
from pipeline.snapshots.names import COMMON, check_name
from pipeline.snapshots.writing import (
    Contents,
    SaveAnnouncement,
    Writing,
    collect,
    common_arrays,
    n_bytes_to_copy,
    of_replica,
)

_locks: weakref.WeakKeyDictionary[BetweenSteps, Lock | None] = (
    weakref.WeakKeyDictionary()
)


def save_snapshot(
    path: str | os.PathLike,
    pipeline: BetweenSteps,
    optimizer: Any,
    *,
    state: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
    n_retains: int = -1,
    background: bool = False,
) -> None:
    """Saves everything that a training run needs to continue bit for bit.

    All ranks must call it, between two minibatches. Each rank writes its stages. The
    snapshot appears under its name when all ranks have written everything to disk. If a
    rank is killed, a disk is full or a directory cannot be written to, earlier
    snapshots stay as they were.

    A snapshot has the parameters and persistent values of the layers; those of a loss
    that is a link, from the rank with the last stage; and the pipeline's state. Of the
    optimizers, it has everything that Chainer saves. It also has their hyperparameters,
    frozen parameters, float32 master weights and the loss scale, and the state of hooks
    with a method ``serialize``. It has the random states of NumPy and Python on each
    rank, ``state`` and ``values``. It does not have the generators of CuPy and cuDNN;
    layers in a pipeline do not depend on CuPy's. Iterators that prefetch continue in
    the same order if they shuffle by :class:`~pipeline.SeededShuffle`.

    On a grid, the first replica writes everything, and later replicas write only values
    that differ. These are loaded if the number of replicas is the same again. If
    several pipelines do not know of each other, let one save and all load.

    Args:
        path: Directory of the snapshot; a snapshot that is there is replaced. Several
            hosts need a shared file system.
        pipeline (Pipeline): The pipeline.
        optimizer (chainer.Optimizer or list): Optimizers of this rank's stages, set
            up; and one for a loss with parameters. A stage without an optimizer is
            saved without one.
        state: Other objects with a state, by name: iterators, trainers and others with
            a method ``serialize``, ``numpy.random.RandomState`` and ``Generator``. Rank
            0's state is saved, and state that only the rank with the first stage has.
            Random states of all ranks are saved.
        values: Numbers, texts, and lists and dictionaries of them, by name; rank 0's
            are saved. :func:`load_snapshot` returns them.
        n_retains (int): Number of snapshots to keep in the same directory, of those
            whose names differ only in numbers; at most 0 for all.
        background (bool): Whether to return when the state has been copied in memory. A
            thread of each rank then writes the files while training continues, and the
            snapshot gets its name when all files are on disk. If there is no memory for
            the copy, rank 0 warns once, and all ranks write at once.

    Raises:
        SnapshotError: On every rank, if saving failed on any, or another run saves in
            the same directory. Training can continue. A failure in the background is
            raised by the next call of this function, of :func:`wait_for_snapshot` or
            :func:`load_snapshot`, or by ``pipeline.close()``; this function still saves
            the next snapshot. Without such a call, the process waits for the files when
            it ends, at most twice the pipeline's timeout, and a failure ends all ranks.
        RuntimeError: If the model is only partly loaded; see :func:`load_snapshot`.
        StallError: If a rank does not answer in time, or writes for longer than the
            pipeline's timeout.

    Example:
        >>> import tempfile
        >>> import chainer
        >>> import chainer.links as L
        >>> from mpi4py import MPI
        >>> from divisible import Divisible
        >>> from pipeline import Pipeline, load_snapshot
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
    pipeline: BetweenSteps,
    optimizer: Any,
    *,
    state: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
    n_retains: int = -1,
    background: bool = False,
    report: Callable[[SnapshotError], None] = _raise,
    among: tuple[str, str] | None = None,
) -> None:
    """Saves like :func:`save_snapshot`, and passes errors to ``report``.

    All ranks call ``report``, now or, in the background, when the outcome is known. The
    folder and the pattern ``among`` select the snapshots among which this one is the
    newest, and those that are old; by default all in the same directory.
    """
    try:
        check_name(path)
    except ValueError as error:
        raise SnapshotError(str(error)) from None
    pipeline.internals.ranks.calls.check_usable()
    if pipeline.internals.step.confirming is not None:
        # An update that is corrected may give optimizers other arrays.
        pipeline.confirm_update()
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
                # The thread uses the draft from here on.
                stack.pop_all()
                return
            entries = on_all_ranks(pipeline, "save", what, writing.write_files)
            written = pipeline.internals.gather(entries, "save")
            on_first(pipeline, "save", what, writing.finish, written)
        except BaseException as error:
            draft.discard()
            if not isinstance(error, SnapshotError):
                raise
            report(error)
        else:
            draft.warn()


def _collect(
    pipeline: BetweenSteps, what: str, background: bool, *run: Any
) -> tuple[Contents, Sequence[SaveAnnouncement], Sequence[Any]]:
    """Returns the arrays that this rank writes, and announcements of all ranks.

    Args:
        pipeline: The pipeline.
        what: Beginning of errors.
        background: Whether the files are written in the background.
        run: Arguments of :func:`collect` after the pipeline.

    Returns:
        This rank's arrays; the announcements by rank; and the memory that a copy of
        each rank's arrays needs, or ``None`` if it makes none.
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
) -> tuple[Contents, SaveAnnouncement, dict[str, free_memory.Claim] | None]:
    """Returns the results of :func:`collect`, and the memory of a copy."""
    contents, mine = collect(*run)
    claims = free_memory.claims(n_bytes_to_copy(contents)) if background else None
    return contents, mine, claims


def _hold(pipeline: BetweenSteps, lock: Lock | None) -> None:
    """Keeps a lock until its pipeline is freed, or saves elsewhere."""
    _locks[pipeline] = lock
    of = weakref.ref(pipeline)
    pipeline.internals.ranks.before_close["snapshots"] = lambda: _end(of())


def _end(pipeline: BetweenSteps) -> None:
    settle(pipeline)
    _locks.pop(pipeline, None)


@contextlib.contextmanager
def _settled(pipeline: BetweenSteps) -> Iterator[None]:
    """Waits for the snapshot before; raises its failure after the block.

    If the block fails as well, the error has both texts.
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
    announcements: Sequence[SaveAnnouncement], claims: Sequence[Any], what: str
) -> None:
    """Refuses one snapshot with several paths, or written in several ways."""
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
