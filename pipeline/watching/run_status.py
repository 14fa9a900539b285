"""The state of a run, which every rank writes into a file while it trains."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from divisible.communication import flight_files
from divisible.communication.flight_record import own_flight_record
from divisible.schedules.rank_program import Record
from divisible.side_files import SideFiles
from pipeline.pipeline import Pipeline
from pipeline.training.measures import process_memory
from pipeline.watching.journal import add_to_journal
from pipeline.watching.journal_warnings import JournalWarnings
from pipeline.watching.pace import Pace
from pipeline.watching.planned import planned_of
from pipeline.watching.process_counters import ProcessCounters
from pipeline.watching.reported_numbers import numbers_of
from pipeline.watching.run_line import line_of
from pipeline.watching.slow_links import LinkTimes, messages_of
from pipeline.watching.slow_ranks import slow_ranks
from pipeline.watching.start_entry import start_entry
from pipeline.watching.status_files import (
    FOLDER,
    Messages,
    RankStatus,
    make_folder,
    read_statuses,
    remove_others,
)
from pipeline.watching.step_seconds import Columns, History
from pipeline.watching.terminal_line import TerminalLine, terminal_of

# Least seconds between two files, and between two minibatches whose times are read.
_BETWEEN_FILES, _BETWEEN_SAMPLES = 0.5, 0.05
# At most this share of the time is spent on files, whatever the file system takes.
_SHARE = 0.002
# Seconds without a sign of slowness before the journal has that it is over.
_CALM = 30.0


class RunStatus:
    """Writes the state of this rank, and shows that of all ranks in a line.

    ``divisible watch`` and ``divisible report`` read the files, which are in the folder
    ``ranks`` of the run's. All ranks of a loop of your own make one, and call
    :meth:`note` after each update; for Chainer's trainer there is
    :class:`~pipeline.ProgressLine`. Each rank writes its file twice a second at most,
    and spends a five-hundredth of its time on files at most. Nothing is sent to other
    ranks. If a file cannot be written, the rank warns once, and the training goes on.

    Rank 0 reads the files of all ranks, as far as it sees them in its file system.
    While its output goes to a terminal, it shows them in one line. Other lines appear
    above it. It keeps a journal of starts, ends, warnings and slow ranks.

    Args:
        pipeline (Pipeline): The pipeline.
        out: Folder of the run, the same on all ranks.
        n_steps (int or None): Number of minibatches until the end, to show the time
            left.
        line (bool or None): Whether rank 0 shows the line. By default it does if its
            output, or that of its launcher, is a terminal.

    Example:
        >>> import tempfile
        >>> import chainer.links as L
        >>> import numpy as np
        >>> from mpi4py import MPI
        >>> from divisible import Divisible
        >>> pipe = Pipeline(Divisible(L.Linear(4, 3)), MPI.COMM_SELF, n_microbatches=2)
        >>> x, t = np.ones((6, 4), np.float32), np.zeros(6, np.int32)
        >>> with tempfile.TemporaryDirectory() as out:
        ...     with RunStatus(pipe, out, n_steps=2, line=False) as status:
        ...         for _ in range(2):
        ...             status.note(pipe.step(x, t), epoch=1)
        ...     sorted(os.listdir(Path(out, "ranks")))
        ['journal.jsonl', 'rank-0.json']
    """

    def __init__(
        self,
        pipeline: Pipeline,
        out: str | os.PathLike,
        *,
        n_steps: int | None = None,
        line: bool | None = None,
    ) -> None:
        if n_steps is not None and n_steps < 1:
            raise ValueError(f"n_steps must be 1 or more, not {n_steps}")
        self._pipeline, self._n_steps = pipeline, n_steps
        self._ranks = pipeline.internals.ranks
        self._folder = Path(out, FOLDER)
        self._files = SideFiles("the state of the run")
        self._counters, self._history = ProcessCounters(), History()
        self._columns: Columns | None = None
        # The result of the last minibatch, and of the one before, which has come.
        self._last: Mapping[str, Any] = {}
        self._before: Mapping[str, Any] = {}
        self._epoch: float | None = None
        self._share: float | None = None
        self._n_samples, self._pace = 0, Pace()
        # Minibatches whose messages are written: those with numbers that a power of two
        # divides, so that ranks choose the same ones.
        self._every = 1
        self._marked: deque[tuple[int, Record]] = deque(maxlen=2)
        self._links = LinkTimes()
        self._state = "runs"
        # When a rank or a link was slow last, by its name.
        self._slow: dict[str, float] = {}
        self._runs, self._planned = self._arrangement(), planned_of(pipeline)
        self._line: TerminalLine | None = None
        self._warnings: JournalWarnings | None = None
        self._job = pipeline.internals.step.start.name
        self._took: deque[float] = deque(maxlen=5)
        self._last_note = time.perf_counter()
        self._last_counts = self._counters.read()
        self._next_sample = self._next_file = 0.0
        self._between_files = _BETWEEN_FILES
        self._open(line)

    def _open(self, wants_line: bool | None) -> None:
        with self._files.writing(self._folder):
            make_folder(self._folder.parent)
            if self._ranks.is_chief:
                remove_others(self._folder, self._ranks.world.size)
                add_to_journal(self._folder, "start", **start_entry(self._pipeline))
            self._write()
        if not self._ranks.is_chief:
            return
        self._warnings = JournalWarnings(self._note_warning)
        self._warnings.open()
        if wants_line is not False:
            device = terminal_of(sys.stdout)
            if wants_line or device is not None:
                self._line = TerminalLine(sys.stdout, device)
                self._line.open()

    def above(self, stream: TextIO) -> TextIO:
        """Returns a stream whose lines appear above the line of the run.

        Args:
            stream: A stream that was kept from before, such as ``sys.stdout``.
        """
        return stream if self._line is None else self._line.above(stream)

    def note(
        self,
        result: Mapping[str, Any] | None = None,
        *,
        epoch: float | None = None,
        share: float | None = None,
    ) -> None:
        """Notes that a minibatch is through, with its update.

        Args:
            result: Numbers by name, such as what :meth:`.Pipeline.step` returned. They
                are read one minibatch later, when they have come from other ranks.
            epoch (float or None): Number of epochs so far, with a fraction.
            share (float or None): Share of the training that is done; by default that
                of ``n_steps``.
        """
        now = time.perf_counter()
        self._before, self._last = self._last, {} if result is None else result
        self._epoch, self._share = epoch, share
        record = self._pipeline.internals.record
        if record is not None and self._pipeline.n_steps % self._every == 0:
            self._marked.append((self._pipeline.n_steps, record))
        self._n_samples += sum(self._ranks.calls.agreed.n_samples)
        if now >= self._next_sample:
            self._sample(now)
        self._last_note = now
        if now >= self._next_file:
            queued = self._counters.read().queued
            with self._files.writing(self._folder):
                self._write()
            # Other programs may have had the processor meanwhile.
            queued = self._counters.read().queued - queued
            self._took.append(max(0.0, time.perf_counter() - now - queued))
            self._between_files = max(_BETWEEN_FILES, min(self._took) / _SHARE)
            self._next_file = now + self._between_files

    def _sample(self, now: float) -> None:
        """Reads the times of the last minibatch, or begins to count for the next one.

        Of minibatches that are shorter than the time between two samples, the second of
        a pair counts.
        """
        counts, before = self._counters.read(), self._last_counts
        self._last_counts = counts
        if before is None:
            return
        interval = now - self._last_note
        if interval < _BETWEEN_SAMPLES:
            self._last_counts, self._next_sample = None, now + _BETWEEN_SAMPLES
        record = self._pipeline.internals.record
        if record is None or not record.times:
            return
        if self._columns is None or record.program is not self._columns.program:
            # A new program means other layers, or another schedule.
            self._columns = Columns(record.program)
            self._history.clear()
        seconds = self._columns.seconds(record, interval, counts.since(before))
        self._history.add(seconds)

    def _write(self) -> None:
        """Writes this rank's file; rank 0 reads the others, and shows the line."""
        self._check_change()
        mine = self._status()
        if not self._ranks.is_chief:
            mine.write(self._folder)
            return
        others = [
            each
            for each in read_statuses(self._folder, self._job).ranks
            if each.rank != mine.rank
        ]
        found = sorted([mine, *others], key=lambda status: status.rank)
        self._links.add(found)
        slow = {f"rank {each.rank}": str(each) for each in slow_ranks(found)}
        if not slow:
            # A rank that computes longer also sends later.
            for link in self._links.slow(found):
                slow[f"the link {link.source}>{link.target}"] = str(link)
        mine.slow = list(slow.values())
        mine.write(self._folder)
        self._note_slow(slow)
        if self._line is not None and mine.n_steps:
            self._line.show(line_of(found))

    def _note_slow(self, slow: dict[str, str]) -> None:
        """Adds ranks that have become slow, or are no longer slow, to the journal.

        Args:
            slow: Sentences by the names of ranks and links.
        """
        now = time.perf_counter()
        for name in slow.keys() - self._slow.keys():
            self._note_event("slow", slow[name])
        self._slow.update(dict.fromkeys(slow, now))
        for name, seen in [*self._slow.items()]:
            if now - seen > _CALM:
                del self._slow[name]
                self._note_event("slow", f"{name} is as fast as usual again")

    def _check_change(self) -> None:
        """Checks whether layers have moved, or a schedule was chosen."""
        before, self._runs = self._runs, self._arrangement()
        if before == self._runs:
            return
        self._links.clear()
        self._planned = planned_of(self._pipeline)
        if self._ranks.is_chief:
            names = "the schedule", "the cuts"
            changes = [
                f"{name} from {then} to {now}"
                for name, then, now in zip(names, before, self._runs)
                if then != now
            ]
            self._note_event("move", f"changes {' and '.join(changes)}")

    def _arrangement(self) -> tuple[str, list[int]]:
        """Returns the name of the schedule, and the cuts."""
        return self._pipeline.schedule.name, list(self._pipeline.cuts)

    def _note_warning(self, text: str) -> None:
        # A warning that these files cannot be written would otherwise lead to another.
        if not self._files.n_failed:
            with self._files.writing(self._folder):
                self._note_event("warning", text)

    def _note_event(self, event: str, text: str, **facts: Any) -> None:
        add_to_journal(self._folder, event, text, step=self._pipeline.n_steps, **facts)

    def _status(self) -> RankStatus:
        """Returns the state of this rank."""
        pipe, history, ranks = self._pipeline, self._history, self._ranks
        share = self._share
        if share is None and self._n_steps is not None:
            share = min(1.0, pipe.n_steps / self._n_steps)
        (stage, *_) = pipe.stages.values()
        slowness = history.slowness()
        a_second = self._pace.rates(pipe.n_steps, self._n_samples)
        return RankStatus(
            job=self._job,
            rank=ranks.world.rank,
            n_ranks=ranks.world.size,
            replica=ranks.replica,
            host=own_flight_record.host,
            process=os.getpid(),
            time=time.time(),
            n_steps=pipe.n_steps,
            stages={
                str(number): list(layers.layer_range)
                for number, layers in pipe.stages.items()
            },
            state=self._state,
            epoch=self._epoch,
            share=share,
            seconds_left=self._pace.seconds_left(share),
            steps_per_second=None if a_second is None else a_second[0],
            samples_per_second=None if a_second is None else a_second[1],
            values=numbers_of(self._before),
            n_counted=len(history),
            now=history.now(),
            usual=history.usual(),
            slowness=slowness,
            longer=history.longer(),
            messages=self._messages(a_second),
            memory=process_memory(stage.device),
            planned_seconds=self._planned.computing,
            planned_step=self._planned.step,
            planned_bubble=self._planned.bubble,
            flight_record=str(flight_files.own_file() or ""),
            between_files=self._between_files,
        )

    def _messages(self, a_second: tuple[float, float] | None) -> list[Messages]:
        """Returns the times of messages, and chooses the next minibatches for them."""
        if a_second is not None:
            wanted = a_second[0] * _BETWEEN_FILES
            self._every = 2 ** max(0, math.ceil(math.log2(wanted)))
        if self._ranks.size == 1:
            return []
        offset = time.time() - time.perf_counter()
        return [
            messages_of(record, self._ranks, step, offset)
            for step, record in self._marked
        ]

    def close(self, reason: str = "finished") -> None:
        """Writes the end of the run, and removes the line.

        Args:
            reason (str): The reason of the end.
        """
        if self._state != "runs":
            return
        self._state = reason
        if reason == "finished":
            # After an error, the last values may not come.
            self._before = self._last
        if self._line is not None:
            self._line.close()
        if self._warnings is not None:
            self._warnings.close()
        with self._files.writing(self._folder):
            self._write_end(reason)
        self._counters.close()

    def _write_end(self, reason: str) -> None:
        self._status().write(self._folder)
        if self._ranks.is_chief:
            self._note_event("end", reason)

    def __enter__(self) -> RunStatus:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close("finished" if error is None else f"{kind.__name__}: {error}")
