"""Snapshots that are written in the background, by a thread of each rank.

The state is copied in memory; the training goes on meanwhile. MPI is for the threads
that train, so the ranks' threads tell rank 0's by files beside those of the snapshot::

    rank 0    copy | stage-0.npz ........ waits ........ manifest, name |
    rank 1    copy | stage-1.npz ............. rank-1.json              |
              step   step   step   step   step   step   step   step     settle
                                                          the outcome, on all ranks
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import sys
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from divisible.communication.aborting import end_all_ranks, let_lower_ranks_speak
from divisible.files import write_json
from pipeline.pipeline import Pipeline
from pipeline.snapshots import room
from pipeline.snapshots.arrays import one_line
from pipeline.snapshots.errors import SnapshotError
from pipeline.snapshots.listing import names_in
from pipeline.snapshots.on_all_ranks import on_all_ranks, words_of
from pipeline.snapshots.writing import Writing

# Of the pipeline's timeout: who has waited for its own thread so long tells the others,
# while they still wait for it.
_SHARE_OF_TIMEOUT = 0.8
# Rank 0 looks for the others' records, at first often.
_SHORTEST_LOOK, _LONGEST_LOOK, _GROWTH = 0.005, 0.5, 1.3
_pending: weakref.WeakKeyDictionary[Pipeline, _Save] = weakref.WeakKeyDictionary()
# Those whose user knows that there is no room for copies.
_told: weakref.WeakSet[Pipeline] = weakref.WeakSet()


def start(
    pipeline: Pipeline,
    writing: Writing,
    claims: Sequence[Mapping[str, room.Claim]],
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
    save, why = None, room.refusal(claims)
    if why is None:
        failure = None
        try:
            save = _Save(pipeline, writing, what, report)
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
    if pipeline.rank == 0 and pipeline not in _told:
        warnings.warn(
            f"snapshots are written at once, while the training waits, since there is"
            f" no room for a copy of the state: {why}",
            stacklevel=2,
        )
        _told.add(pipeline)
    return False


def settle(pipeline: Pipeline) -> None:
    """Waits for the snapshot that is written in the background, if there is one.

    To be called on every rank.

    Raises:
        SnapshotError: On every rank, if it failed on any; whoever saved it may have
            said that it is to be a warning.
    """
    save = _pending.pop(pipeline, None)
    if save is None:
        return
    attempt = functools.partial(on_all_ranks, pipeline, "save", save.what)
    try:
        attempt(save.wait_for_files)
        attempt(save.wait_for_end)
    except SnapshotError as error:
        save.stop()
        save.report(error)
    finally:
        atexit.unregister(save.end)


def wait_for_snapshot(pipeline: Pipeline) -> None:
    """Waits until a snapshot that is written in the background is there.

    To be called on every rank. It does nothing if there is none, or if the next
    :func:`save_snapshot` or :func:`load_snapshot`, or the end of a trainer's run, has
    waited for it before.

    Args:
        pipeline (Pipeline): The pipeline.

    Raises:
        SnapshotError: On every rank, if saving failed on any. Training can go on.
        StallError: If a rank does not come in time.

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


class _Save:
    """A snapshot that this rank's thread writes; it begins at :meth:`go`.

    Raises:
        MemoryError: If there is no memory for a copy.
        RuntimeError: If there is none for a thread.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        writing: Writing,
        what: str,
        report: Callable[[SnapshotError], None],
    ) -> None:
        self.what = what
        self.report = report
        self._rank, self._n_ranks = pipeline.rank, pipeline.ranks.size
        self._timeout = pipeline.ranks.timeout
        self._failure: Exception | None = None
        self._failure_elsewhere: str | None = None
        self._may_go, self._must_stop = threading.Event(), threading.Event()
        self._are_files_written = threading.Event()
        writing.copy_arrays()
        self._writing = writing
        # Python waits for it at its end.
        self._thread = threading.Thread(target=self._run, name="snapshot", daemon=False)
        self._thread.start()

    def go(self) -> None:
        """Lets the thread begin."""
        atexit.register(self.end)
        self._may_go.set()

    def stop(self) -> None:
        """Ends the thread; waits while rank 0 removes what has failed."""
        self._must_stop.set()
        self._may_go.set()
        if self._rank == 0:
            self._thread.join(self._timeout / 2)

    def wait_for_files(self) -> None:
        """Waits until this rank's files are on disk; raises what has failed here."""
        seconds = _SHARE_OF_TIMEOUT * self._timeout
        if not self._are_files_written.wait(seconds):
            raise SnapshotError(f"the files are not on disk after {seconds:.0f} s")
        if self._failure is not None:
            raise self._failure

    def wait_for_end(self) -> None:
        """Waits until rank 0 has given the snapshot its name."""
        if self._rank > 0:
            return
        seconds = _SHARE_OF_TIMEOUT * self._timeout
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise SnapshotError(f"it has not its name after {seconds:.0f} s")
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Tells of a failure when Python ends; nobody has asked for the outcome."""
        words = self._failure_elsewhere
        if self._failure is not None:
            words = f"rank {self._rank}: {words_of(self._failure)}"
        if words is None:
            return
        try:
            self.report(SnapshotError(f"{self.what}: {words}"))
        except SnapshotError as error:
            message = f"{error}\n"
            let_lower_ranks_speak()
            end_all_ranks("failed at its end", lambda: sys.stderr.write(message))

    def _run(self) -> None:
        self._may_go.wait()
        if self._must_stop.is_set():
            return
        writing, is_saved = self._writing, False
        try:
            entries = writing.write_files()
            if self._rank > 0:
                write_json(writing.folder / _record(self._rank), entries)
            self._are_files_written.set()
            if self._rank == 0:
                written = self._await_others(entries)
                if written is not None:
                    writing.finish(written)
                    is_saved = True
        except Exception as error:
            self._failure = error.with_traceback(None)
            writing.contents.clear()
            if self._rank > 0:
                self._tell_failure(words_of(error))
        finally:
            if self._rank == 0:
                if not is_saved:
                    writing.draft.discard()
                writing.draft.release()
            self._are_files_written.set()

    def _tell_failure(self, words: str) -> None:
        # On a disk that is full there may be room for a name alone, or not for that.
        path = self._writing.folder / _mark_of_failure(self._rank)
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
            file.write(words)

    def _await_others(self, own: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
        """Returns what each rank has written; ``None`` if one failed, or none comes."""
        folder, written = self._writing.folder, {0: own}
        waited, pause = 0.0, _SHORTEST_LOOK
        while len(written) < self._n_ranks:
            names = set(names_in(folder))
            for rank in set(range(self._n_ranks)) - written.keys():
                if _record(rank) in names:
                    text = (folder / _record(rank)).read_text(encoding="utf-8")
                    written[rank] = json.loads(text)
                elif _mark_of_failure(rank) in names:
                    text = (folder / _mark_of_failure(rank)).read_text("utf-8")
                    self._failure_elsewhere = f"rank {rank}: {text or 'it failed'}"
                    written[rank] = {}
            missing = sorted(set(range(self._n_ranks)) - written.keys())
            if missing and waited > self._timeout:
                raise SnapshotError(
                    f"waited {waited:.0f} s for the files of ranks {missing}"
                )
            if missing and self._must_stop.wait(pause):
                return None
            # The time in which a job is suspended does not count.
            waited, pause = waited + pause, min(_LONGEST_LOOK, _GROWTH * pause)
        if self._failure_elsewhere is not None:
            return None
        for rank in range(1, self._n_ranks):
            (folder / _record(rank)).unlink()
        return [written[rank] for rank in range(self._n_ranks)]


def _record(rank: int) -> str:
    """Returns the name of the file that says what a rank has written."""
    return f"rank-{rank}.json"


def _mark_of_failure(rank: int) -> str:
    return f"rank-{rank}.failed"
