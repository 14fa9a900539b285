"""The copies of a pipeline's run in the memory of hosts.

::

    save 12   settle 11 | write, name | send to partners ....
              step 13  .................................... |
    save 13   settle 12: whole, drop 10 | write, name | send ...

A copy is whole when the files of all ranks are on their own host and on that of a
partner. Two whole copies are kept. The next one has its name as soon as all ranks have
written their files: it is used as well, if each of its files is somewhere.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.between_steps import BetweenSteps
from pipeline.copies import places, room
from pipeline.copies.gathering import Found, gathered, newest
from pipeline.copies.opening import open_home
from pipeline.copies.partners import partners
from pipeline.copies.room import claim
from pipeline.copies.sending import Sending, Transfer
from pipeline.copies.writing import begin, finish, refuse_large_weights
from pipeline.snapshots.background import settle
from pipeline.snapshots.directories import Draft, remove_whole
from pipeline.snapshots.errors import SnapshotError, on_all_ranks
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.finding import age, latest_on_all_ranks, open_on_all_ranks
from pipeline.snapshots.loading import files_to_read, load, load_snapshot
from pipeline.snapshots.optimizers import OptimizersOfStages

_SAVE = "cannot copy the run to memory"
_LOAD = "cannot load the copy in memory"


class Copies:
    """The copies of a run in the memory of hosts: ``pipe.copies``.

    :func:`~pipeline.memory_copies` does with a trainer what this does by hand. All
    ranks must call each method.

    Args:
        pipeline (Pipeline): The pipeline.

    Attributes:
        resumed_from (Snapshot or None): The copy that :meth:`load` has loaded last.

    Example:
        >>> import tempfile
        >>> import chainer
        >>> from mpi4py import MPI
        >>> from divisible import Divisible
        >>> from pipeline import Pipeline
        >>> stage = Divisible(chainer.links.Linear(2, 3))
        >>> pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=1)
        >>> optimizer = pipe.setup(chainer.optimizers.Adam())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pipe.copies.open('a name', directory=folder)
        ...     found = pipe.copies.load(optimizer)
        ...     pipe.copies.save(optimizer, values={'epoch': 7})
        ...     pipe.copies.load(optimizer).values
        ...     pipe.close()
        {'epoch': 7}
    """

    def __init__(self, pipeline: BetweenSteps) -> None:
        self._of = weakref.ref(pipeline)
        self.resumed_from: Snapshot | None = None
        self._home: places.Home | None = None
        self._partners: list[int | None] = []
        self._process = os.getpid()
        self._reset()

    def _reset(self) -> None:
        # Bytes of each rank's copies for which there was room.
        self._granted: Sequence[int] = ()
        self._needed: Sequence[int] = ()
        self._whole: list[Path] = []
        self._under_way: tuple[Sending, Path] | None = None
        self._number, self._time = 0, 0.0
        # Folders of the copy that the run goes on from.
        self._loaded: set[Path] = set()

    @property
    def n_bytes(self) -> int:
        """Bytes that this rank's copies take at most, predicted; 0 before the first.

        Three copies of its own files, and of the files of ranks whose partner it is.
        """
        return self._needed[self._home.rank] if self._needed else 0

    @property
    def folder(self) -> Path | None:
        """Directory of this rank's copies; ``None`` before the first call."""
        return None if self._home is None else self._home.folder

    def open(
        self, name: str | None = None, directory: str | os.PathLike | None = None
    ) -> None:
        """Makes a folder for the copies of each rank.

        The other methods do it themselves, with the arguments' defaults. Calls after
        the first do nothing.

        Args:
            name (str): Name of the run, by which it finds its copies when it is started
                again; rank 0's is used. By default the path of the script.
            directory: Directory in memory; by default ``/dev/shm``. Each rank may have
                another. Ranks of a host with the same one share a place, which is lost
                as a whole.

        Raises:
            SnapshotError: On every rank, if a rank cannot write there, or if a run of
                this name still lives.
        """
        if self._home is not None:
            return
        pipeline = self._pipeline
        self._home = open_home(
            pipeline,
            name or os.path.abspath(sys.argv[0]),
            Path(directory or places.SHARED_MEMORY).absolute(),
        )
        self._partners = partners(self._home.places)
        of = weakref.ref(self)
        pipeline.internals.ranks.before_close["copies"] = lambda: of().free()
        atexit.register(_free_at_end, of)

    def save(
        self,
        optimizer: Any,
        *,
        state: Mapping[str, Any] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        """Copies what :func:`~pipeline.save_snapshot` saves to the memory of hosts.

        It returns when each rank's files are in the memory of its own host. They travel
        to that of its partner while the next minibatch is computed; the next call, or
        :meth:`wait`, waits for them.

        Args:
            optimizer (chainer.Optimizer or list): See :func:`~pipeline.save_snapshot`.
            state: See :func:`~pipeline.save_snapshot`.
            values: See :func:`~pipeline.save_snapshot`.

        Raises:
            SnapshotError: On every rank, if a rank has failed, or if there is no room.
                The copies before stay, and training can continue.
            StallError: If a rank does not answer in time.
        """
        pipeline = self._pipeline
        pipeline.internals.ranks.calls.check_usable()
        if pipeline.internals.step.confirming is not None:
            # An update that is corrected may give optimizers other arrays.
            pipeline.confirm_update()
        self.open()
        self.wait()
        if not self._number and self._home.is_first:
            self._home.remove_earlier(self._loaded)
        self._number += 1
        name = places.copy_name(pipeline.n_steps, self._number)
        draft = Draft(self._home.folder / name)
        try:
            self._save(draft, optimizer, dict(state or {}), dict(values or {}))
        except BaseException as error:
            draft.discard()
            # After other errors, other ranks may count on a copy that has its name.
            if isinstance(error, SnapshotError):
                remove_whole(draft.path)
            raise
        finally:
            draft.release()

    def _save(
        self,
        draft: Draft,
        optimizer: Any,
        state: Mapping[str, Any],
        values: Mapping[str, Any],
    ) -> None:
        pipeline = self._pipeline
        ranks = pipeline.internals.ranks
        writing, n_bytes = begin(pipeline, optimizer, state, values, draft, _SAVE)
        self._claim(n_bytes)
        on_all_ranks(pipeline, "save", _SAVE, refuse_large_weights, writing)
        entries = on_all_ranks(pipeline, "save", _SAVE, writing.write_files)
        said = pipeline.internals.gather((entries, time.time()), "save")
        written, (now, *_) = zip(*said)
        # Copies are told apart by their time, also if a clock is set back.
        self._time = max(now, math.nextafter(self._time, math.inf))
        transfers = [
            Transfer(name, entry["bytes"], rank, partner)
            for rank, partner in enumerate(self._partners)
            if partner is not None
            for name, entry in written[rank].items()
        ]

        def prepare() -> Sending:
            finish(writing, written, self._time)
            return Sending(ranks, transfers, draft.path.joinpath, draft.path)

        sending = on_all_ranks(pipeline, "save", _SAVE, prepare)
        with ranks.calls.guarded():
            sending.start()
            pipeline.internals.step.runner.poll_for(sending.most_bytes)
        self._under_way = sending, draft.path

    def _claim(self, n_bytes: Sequence[int]) -> None:
        """Refuses copies for which there is no room.

        Args:
            n_bytes: Bytes of each rank's files.
        """
        self._needed = room.needed_bytes(n_bytes, self._partners)
        granted = self._granted or [0] * len(self._needed)
        if any(now > before for now, before in zip(self._needed, granted)):
            claim(self._pipeline, self._home, self._needed, _SAVE)
            self._granted = self._needed

    def wait(self) -> None:
        """Waits until the last copy is whole: until partners have their files, too.

        Raises:
            SnapshotError: On every rank, if a rank has failed.
            StallError: If a rank does not answer in time.
        """
        if self._under_way is None:
            return
        pipeline, (sending, folder) = self._pipeline, self._under_way
        with pipeline.internals.ranks.calls.guarded():
            sending.wait()
        self._under_way = None
        try:
            on_all_ranks(pipeline, "save", _SAVE, sending.name_files)
        except SnapshotError:
            remove_whole(folder)
            raise
        self._whole.append(folder)
        del self._whole[: -room.N_KEPT]
        # Also what could not be removed before.
        self._home.remove_all_but(self._whole)
        if len(self._whole) == room.N_KEPT and self._home.is_first:
            self._home.remove_earlier()

    def load(
        self,
        optimizer: Any,
        *,
        state: Mapping[str, Any] | None = None,
        strict: bool = True,
        snapshots: str | os.PathLike | None = None,
    ) -> Snapshot | None:
        """Loads the newest whole copy, on any number of stages and replicas.

        Each of its files must be in the memory of a host of this run. Hosts get the
        files that they lack from the others.

        Args:
            optimizer (chainer.Optimizer or list): See :func:`~pipeline.load_snapshot`.
            state: See :func:`~pipeline.load_snapshot`.
            strict (bool): See :func:`~pipeline.load_snapshot`.
            snapshots: Directory of snapshots on disk. If the newest of them is newer
                than all whole copies, it is loaded instead.

        Returns:
            Snapshot or None: The loaded state; ``None`` if there is neither a copy nor
            a snapshot.

        Raises:
            SnapshotError: See :func:`~pipeline.load_snapshot`.
        """
        pipeline, found, disk = self._pipeline, self.newest(), None
        if snapshots is not None:
            path = latest_on_all_ranks(pipeline, snapshots)
            if path is not None:
                disk = open_on_all_ranks(pipeline, path)
                self.follow(disk)
        if disk is not None and (found is None or age(found.snapshot) < age(disk)):
            return load_snapshot(
                disk.path, pipeline, optimizer, state=state, strict=strict
            )
        if found is None:
            return None
        return self.load_found(found, optimizer, state, strict)

    def newest(self) -> Found | None:
        """Returns the newest copy of which each file is whole on some host, if any.

        Rank 0 warns of newer ones.
        """
        self.open()
        self.wait()
        return newest(self._pipeline, self._home, self._warn)

    def _warn(self, words: str) -> None:
        if self._pipeline.is_chief:
            warnings.warn(words, stacklevel=2)

    def load_found(
        self,
        found: Found,
        optimizer: Any,
        state: Mapping[str, Any] | None = None,
        strict: bool = True,
    ) -> Snapshot:
        """Loads a copy that :meth:`newest` has found; see :meth:`load`."""
        pipeline, home = self._pipeline, self._home
        settle(pipeline)
        snapshot = replace(found.snapshot, replica=pipeline.replica)

        def names() -> list[str]:
            optimizers = OptimizersOfStages(optimizer, pipeline)
            return sorted({*files_to_read(snapshot, pipeline, optimizers)})

        needed = on_all_ranks(pipeline, "load", _LOAD, names)
        with gathered(pipeline, home, found, needed, _LOAD) as folder:
            loaded = load(folder, pipeline, optimizer, state, strict, is_part=True)
        self.follow(loaded)
        here = found.folders.get(home.places[home.rank], {})
        self._loaded = {Path(each) for folders in here.values() for each in folders}
        self.resumed_from = replace(loaded, path=home.run_folder)
        return self.resumed_from

    def follow(self, snapshot: Snapshot) -> None:
        """Makes the next copies newer than a snapshot, also if a clock is wrong."""
        self._time = max(self._time, snapshot.time)

    def keep(self) -> None:
        """Leaves the copies where they are when Python ends, to go on from them."""
        self.wait()
        self._home = None
        self._reset()

    def free(self) -> None:
        """Removes the copies: the run has ended, and needs them no more.

        Raises:
            SnapshotError: On every rank, if a rank has failed.
            StallError: If a rank does not answer in time.
        """
        if self._home is None:
            return
        self.wait()
        self._remove()

    def _remove(self) -> None:
        home, self._home = self._home, None
        self._reset()
        home.remove()

    def end(self) -> None:
        """Removes this rank's copies when Python ends, unless an error has ended it."""
        pipeline = self._of()
        # A forked process has the copies of its parent.
        if self._home is None or pipeline is None or os.getpid() != self._process:
            return
        ranks = pipeline.internals.ranks
        if ranks.calls.has_failed or getattr(sys, "last_value", None) is not None:
            return
        if self._under_way is not None:
            with contextlib.suppress(Exception):
                self._under_way[0].wait()
        self._remove()

    @property
    def _pipeline(self) -> BetweenSteps:
        return self._of()


def _free_at_end(of: weakref.ref[Copies]) -> None:
    copies = of()
    if copies is not None:
        copies.end()
