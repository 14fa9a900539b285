"""Snapshots written in the background, by a thread of each rank.

The state is copied in memory, and training continues meanwhile. All ranks know the
outcome when they settle the snapshot together. Only the threads that train use MPI. So
each writing thread informs that of rank 0 by a file beside those of the snapshot::

    training    copy  step  step  step  step  step  step  settle
    rank 0           | stage-0.npz ..... waits .. manifest, name |
    rank 1           | stage-1.npz ..... rank-1.json |
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from divisible import free_memory
from divisible.communication.aborting import end_all_ranks, let_lower_ranks_speak
from divisible.files import write_json
from pipeline.between_steps import BetweenSteps
from pipeline.snapshots.arrays import one_line
from pipeline.snapshots.errors import SnapshotError, naming, on_all_ranks, words_of
from pipeline.snapshots.names import names_in
from pipeline.snapshots.writing import Writing, n_bytes_to_copy

#: The snapshot of each pipeline that its ranks have yet to settle.
pending: weakref.WeakKeyDictionary[BetweenSteps, WritingThread] = (
    weakref.WeakKeyDictionary()
)
# Pipelines whose user has been warned that there is no memory for copies.
_told: weakref.WeakSet[BetweenSteps] = weakref.WeakSet()
# Share of the pipeline's timeout. A rank that has waited for its own thread this long
# reports it, while the others still wait for this rank.
_SHARE_OF_TIMEOUT = 0.8
# Seconds between rank 0's polls for the others' records, which grow.
_SHORTEST_LOOK, _LONGEST_LOOK, _GROWTH = 0.005, 0.5, 1.3


def start(
    pipeline: BetweenSteps,
    writing: Writing,
    claims: Sequence[Mapping[str, free_memory.Claim]],
    what: str,
    report: Callable[[SnapshotError], None],
) -> bool:
    """Begins to write a snapshot, if all ranks have memory for a copy.

    Args:
        pipeline: The pipeline.
        writing: The arrays and files of this rank.
        claims: Memory that the copies need, by rank.
        what: Beginning of errors.
        report: Called with an error, on each rank.

    Returns:
        Whether writing has begun, the same on all ranks.
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
            failures = pipeline.internals.gather(failure, "save")
        except BaseException:
            # A waiting thread would prevent the process from ending.
            if save is not None:
                save.stop()
            raise
        found = [f"rank {rank}: {each}" for rank, each in enumerate(failures) if each]
        why = found[0] if found else None
    if why is None:
        pending[pipeline] = save
        save.go()
        return True
    if save is not None:
        save.stop()
    if pipeline.is_chief and pipeline not in _told:
        warnings.warn(
            f"snapshots are written at once, while the training waits, since there is"
            f" no room for a copy of the state: {why}",
            stacklevel=2,
        )
        _told.add(pipeline)
    return False


def settle(pipeline: BetweenSteps) -> None:
    """Waits for the snapshot that is being written in the background, if any.

    All ranks must call it. If the ranks cannot agree, it waits for this rank's files,
    and their outcome is reported when Python ends.

    Raises:
        SnapshotError: On every rank, if saving failed on any; a warning instead if the
            snapshot was saved that way.
    """
    save = pending.get(pipeline)
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
    del pending[pipeline]
    atexit.unregister(save.end)
    if failure is not None:
        save.report(failure)
    else:
        save.warn()


def wait_for_snapshot(pipeline: BetweenSteps) -> None:
    """Waits until a snapshot that is written in the background is complete.

    All ranks must call it. It does nothing without such a snapshot, or if it has been
    waited for already: by the next :func:`save_snapshot` or :func:`load_snapshot`, the
    end of a trainer's run, or the pipeline's ``close()``. Without any of these, the
    process waits at its end, and a failure ends all ranks.

    Args:
        pipeline (Pipeline): The pipeline.

    Raises:
        SnapshotError: On every rank, if saving failed on any. Training can continue.
        StallError: If a rank does not answer in time.
        RuntimeError: If an earlier call of the pipeline failed on this rank, so the
            outcome on other ranks is unknown; this rank's files are waited for.

    Example:
        >>> import tempfile
        >>> import chainer
        >>> import chainer.links as L
        >>> from mpi4py import MPI
        >>> from divisible import Divisible
        >>> from pipeline import Pipeline, latest_snapshot, save_snapshot
        >>> stage = Divisible(L.Linear(2, 3))
        >>> optimizer = chainer.optimizers.Adam().setup(stage)
        >>> pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_snapshot(f'{folder}/1', pipe, optimizer, background=True)
        ...     stage.cleargrads()        # and so on; later
        ...     wait_for_snapshot(pipe)
        ...     latest_snapshot(folder).name
        '1'
    """
    settle(pipeline)


class WritingThread:
    """The thread of this rank; it begins to write at :meth:`go`.

    Args:
        pipeline: The pipeline.
        writing: The arrays and files of this rank.
        what: Beginning of errors.
        report: Called with an error.

    Raises:
        MemoryError: If there is no memory for a copy.
        RuntimeError: If no thread can be started.
    """

    def __init__(
        self,
        pipeline: BetweenSteps,
        writing: Writing,
        what: str,
        report: Callable[[SnapshotError], None],
    ) -> None:
        self.what = what
        self.report = report
        world = pipeline.internals.ranks.world
        self._rank, self._n_ranks = world.rank, world.size
        self._timeout = min(pipeline.internals.ranks.timeout, threading.TIMEOUT_MAX / 2)
        self._seconds = _SHARE_OF_TIMEOUT * self._timeout
        # Kept as text, because an error refers to all objects of its frames.
        self._failure: str | None = None
        self._failure_elsewhere: str | None = None
        self._is_saved = False
        self._may_go, self._must_stop = threading.Event(), threading.Event()
        self._are_files_written = threading.Event()
        self._writing = writing
        self._process = os.getpid()
        # Python would wait for a non-daemon thread without limit; :meth:`end` waits.
        self._thread = threading.Thread(target=self._run, name="snapshot", daemon=True)
        self._n_bytes = n_bytes_to_copy(writing.contents)
        free_memory.PEAKS.hold(self._n_bytes)
        try:
            writing.copy_arrays()
            self._thread.start()
        except BaseException:
            free_memory.PEAKS.free(self._n_bytes)
            raise

    def go(self) -> None:
        """Starts writing."""
        atexit.register(self.end)
        self._may_go.set()

    def stop(self) -> None:
        """Ends the thread; rank 0 waits while it removes the failed snapshot."""
        self._must_stop.set()
        self._may_go.set()
        if self._rank == 0:
            self._thread.join(self._timeout / 2)

    def discard(self) -> None:
        """Removes files of other ranks, after this rank's thread removed the others.

        To be called when the other ranks have written their files, or failed.
        """
        if self._rank == 0 and not self._is_saved:
            self._writing.draft.discard()

    def wait_for_files(self) -> None:
        """Waits until this rank's files are on disk.

        Raises:
            SnapshotError: If this rank has failed, or takes too long.
        """
        if not self._are_files_written.wait(self._seconds):
            raise SnapshotError(f"no files after {self._seconds:.0f} s")
        if self._failure is not None:
            raise SnapshotError(self._failure)

    def wait_for_end(self) -> None:
        """Waits until rank 0 has completed the snapshot; see :meth:`wait_for_files`."""
        if self._rank > 0:
            return
        self._thread.join(self._seconds)
        if self._thread.is_alive():
            raise SnapshotError(
                f"the snapshot was not completed within {self._seconds:.0f} s"
            )
        if not self._is_saved:
            raise SnapshotError(self._failure or self._failure_elsewhere)

    def warn(self) -> None:
        """Shows the warnings about a snapshot that is saved."""
        self._writing.draft.warn()

    def end(self) -> None:
        """Waits when Python ends, and reports a failure that was not reported."""
        if os.getpid() != self._process:
            # A forked process has no such thread.
            return
        # Rank 0 waits for its own files, and then for the others'.
        self._thread.join(2 * self._timeout)
        words, own = self._failure_elsewhere, self._failure
        if self._thread.is_alive():
            own = f"not on disk {2 * self._timeout:.0f} s after the end of the script"
        if own is not None:
            words = f"rank {self._rank}: {own}"
        if words is None:
            self.warn()
            return
        try:
            self.report(SnapshotError(f"{self.what}: {words}"))
        except SnapshotError as error:
            message = f"{error}\n"
            let_lower_ranks_speak()
            end_all_ranks(
                "failed at its end",
                lambda: sys.stderr.write(message),
                has_records=False,
            )

    def _run(self) -> None:
        self._may_go.wait()
        if self._must_stop.is_set():
            free_memory.PEAKS.free(self._n_bytes)
            return
        try:
            self._save()
        except Exception as error:
            self._failure = words_of(error)
            if self._rank > 0:
                self._tell_failure()
        finally:
            if self._rank == 0:
                if not self._is_saved:
                    self._writing.draft.discard()
                self._writing.draft.release()
            self._writing.contents.clear()
            free_memory.PEAKS.free(self._n_bytes)
            self._are_files_written.set()

    def _save(self) -> None:
        writing = self._writing
        entries = writing.write_files()
        if self._rank > 0:
            record = writing.folder / _record(self._rank)
            with naming(record, "write"):
                write_json(record, entries)
            return
        self._are_files_written.set()
        written = self._await_others(entries)
        if written is not None:
            writing.finish(written)
            self._is_saved = True

    def _tell_failure(self) -> None:
        # A full disk may have room for an empty file, or not even that.
        path = self._writing.folder / _mark_of_failure(self._rank)
        # The text may have a path that is not UTF-8.
        with contextlib.suppress(Exception):
            path.write_text(self._failure, encoding="utf-8", errors="replace")

    def _await_others(self, own: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
        """Returns each rank's entries; ``None`` if one failed or all must stop."""
        folder, written = self._writing.folder, {0: own}
        waited, pause = 0.0, _SHORTEST_LOOK
        while True:
            names = set(names_in(folder))
            missing = sorted(set(range(self._n_ranks)) - written.keys())
            for rank in missing:
                if _record(rank) in names:
                    written[rank] = json.loads(_text(folder / _record(rank)))
                elif _mark_of_failure(rank) in names:
                    words = _text(folder / _mark_of_failure(rank)) or "it has failed"
                    self._failure_elsewhere = f"rank {rank}: {words}"
                    written[rank] = {}
            if len(written) == self._n_ranks:
                break
            if waited > self._timeout:
                raise SnapshotError(
                    f"waited {waited:.0f} s for the files of ranks {missing}"
                )
            if self._must_stop.wait(pause):
                return None
            # Time in which the job is suspended does not count.
            waited, pause = waited + pause, min(_LONGEST_LOOK, _GROWTH * pause)
        if self._failure_elsewhere is not None:
            return None
        for rank in range(1, self._n_ranks):
            (folder / _record(rank)).unlink()
        return [written[rank] for rank in range(self._n_ranks)]


def _text(path: Path) -> str:
    with naming(path, "read"):
        return path.read_text(encoding="utf-8")


def _record(rank: int) -> str:
    """Returns the name of the file with the entries that a rank has written."""
    return f"rank-{rank}.json"


def _mark_of_failure(rank: int) -> str:
    return f"rank-{rank}.failed"
