"""Snapshots that are written in the background, by a thread of each rank.

The state is copied in memory, and the training goes on meanwhile; the outcome is known
on all ranks when they settle it together::

    training    copy  step  step  step  step  step  step  settle
    threads         | files ......... | manifest, name |

See :mod:`pipeline.snapshots.writing_thread`.
"""

from __future__ import annotations

import atexit
import functools
import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Callable

from divisible import free_memory
from pipeline.pipeline import Pipeline
from pipeline.snapshots.arrays import one_line
from pipeline.snapshots.errors import SnapshotError, on_all_ranks
from pipeline.snapshots.writing import Writing
from pipeline.snapshots.writing_thread import WritingThread

_pending: weakref.WeakKeyDictionary[Pipeline, WritingThread] = (
    weakref.WeakKeyDictionary()
)
# Those whose user knows that there is no room for copies.
_told: weakref.WeakSet[Pipeline] = weakref.WeakSet()


def start(
    pipeline: Pipeline,
    writing: Writing,
    claims: Sequence[Mapping[str, free_memory.Claim]],
    what: str,
    report: Callable[[SnapshotError], None],
) -> bool:
    """Begins to write a snapshot, if all ranks have room for a copy of their state.

    Args:
        pipeline: The pipeline.
        writing: What this rank has to do.
        claims: What the copies take, by rank.
        what: What fails if it fails, in words.
        report: What to do then, on each rank.

    Returns:
        Whether it has begun, the same on all ranks.
    """
    save, why = None, free_memory.refusal(claims)
    if why is None:
        failure = None
        try:
            if writing.has_streamed:
                raise MemoryError("it streams weights from disk, and copies none")
            save = WritingThread(pipeline, writing, what, report)
        except (MemoryError, RuntimeError) as error:
            failure = one_line(error)
        try:
            failures = pipeline.gather(failure, "save")
        except BaseException:
            # A thread that waits would keep the process from its end.
            if save is not None:
                save.stop()
            raise
        found = [f"rank {rank}: {each}" for rank, each in enumerate(failures) if each]
        why = found[0] if found else None
    if why is None:
        _pending[pipeline] = save
        save.go()
        return True
    if save is not None:
        save.stop()
    if pipeline.ranks.is_chief and pipeline not in _told:
        warnings.warn(
            f"snapshots are written at once, while the training waits, since there is"
            f" no room for a copy of the state: {why}",
            stacklevel=2,
        )
        _told.add(pipeline)
    return False


def settle(pipeline: Pipeline) -> None:
    """Waits for the snapshot that is written in the background, if there is one.

    To be called on every rank. Where the ranks cannot agree, it waits for this rank's
    files, and the end of Python tells what came of them.

    Raises:
        SnapshotError: On every rank, if it failed on any; whoever saved it may have
            said that it is to be a warning.
    """
    save = _pending.get(pipeline)
    if save is None:
        return
    attempt = functools.partial(on_all_ranks, pipeline, "save", save.what)
    failure = None
    try:
        attempt(save.wait_for_files)
        attempt(save.wait_for_end)
    except SnapshotError as error:
        save.stop()
        save.discard()
        failure = error
    del _pending[pipeline]
    atexit.unregister(save.end)
    if failure is not None:
        save.report(failure)
    else:
        save.warn()


def wait_for_snapshot(pipeline: Pipeline) -> None:
    """Waits until a snapshot that is written in the background is there.

    To be called on every rank. It does nothing if there is none, or if the next
    :func:`save_snapshot` or :func:`load_snapshot`, the end of a trainer's run, or the
    pipeline's ``close()`` has waited for it before. Where nobody does, the end of
    Python waits, and a failure ends all ranks.

    Args:
        pipeline (Pipeline): The pipeline.

    Raises:
        SnapshotError: On every rank, if saving failed on any. Training can go on.
        StallError: If a rank does not come in time.
        RuntimeError: If an earlier call of the pipeline failed on this rank, so it is
            not known what came of the other ranks' files; this rank's are waited for.

    Example:
        >>> import tempfile
        >>> import chainer
        >>> import chainer.links as L
        >>> from mpi4py import MPI
        >>> from divisible import Divisible
        >>> from pipeline import Pipeline, latest_snapshot, save_snapshot
        >>> stage = Divisible(L.Linear(2, 3))
        >>> optimizer = chainer.optimizers.Adam().setup(stage)
        >>> pipe = Pipeline(stage, MPI.COMM_SELF, 1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_snapshot(f'{folder}/1', pipe, optimizer, background=True)
        ...     stage.cleargrads()        # and so on; later
        ...     wait_for_snapshot(pipe)
        ...     latest_snapshot(folder).name
        '1'
    """
    settle(pipeline)
