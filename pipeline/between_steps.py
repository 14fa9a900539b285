"""Calls of all ranks between the passes of minibatches: to tell, and to close."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, TypeVar

from divisible.schedules.timeline import Timeline
from pipeline.calls.ranks import Ranks
from pipeline.internals import Internals
from pipeline.step.step import Step

_Own = TypeVar("_Own", bound="CallsBetweenSteps")


class CallsBetweenSteps:
    """Calls of a pipeline that pass no minibatch."""

    _ranks: Ranks
    _step: Step

    @property
    def internals(self) -> Internals:
        """The parts that packages of this project use; they change without notice."""
        return Internals(self)

    @property
    def is_chief(self) -> bool:
        """Whether this rank is the one of all that prints and writes logs."""
        return self._ranks.is_chief

    @property
    def n_replicas(self) -> int:
        """How many pipelines share a minibatch."""
        return self._ranks.n_replicas

    @property
    def replica(self) -> int:
        """The number of this rank's pipeline among the replicas."""
        return self._ranks.replica

    def _call(self, name: str) -> AbstractContextManager[None]:
        """Returns the guard around a call."""
        raise NotImplementedError

    def timeline(self) -> Timeline:
        """Returns what every rank did in the last :meth:`step`, and when.

        Recording is always on: two readings of the clock for an action or a message.
        To be called on every rank. On a GPU the times are of launches.

        Returns:
            Timeline: Of all ranks of the pipeline, on each of them, on one clock that
            starts with the first action. A wait is a receive, from when it was needed
            to when it was there. On a grid: of this replica, and exchanges so far.

        Raises:
            RuntimeError: If there was no step yet.
            DisagreementError: If another rank makes another call.
            StallError: If another rank does not come in time.
        """
        if (record := self._step.record) is None:
            raise RuntimeError("no step has been run yet")
        with self._call("timeline"):
            self._ranks.calls.compare()
            return self._ranks.timeline(
                record, self._step.early_exchanges.spans(record)
            )

    def close(self) -> None:
        """Frees the pipeline's communicator; to be called on every rank.

        Needed only where many pipelines are made in one process. A pipeline is a
        context manager that closes itself. After a call that failed, and if it is
        closed already, it does nothing.

        Raises:
            DisagreementError: If another rank makes another call.
            StallError: If another rank does not come in time, or has left.
            SnapshotError: If a snapshot in the background has failed; call it again.
        """
        # A failed call may have messages under way, which hold on to everything.
        if self._ranks.calls.has_failed or self._ranks.are_closed:
            return
        if self._ranks.before_close is not None:
            self._ranks.before_close()
        # A rank that closed alone could not tell others that wait for it.
        with self._call("close"):
            self._ranks.calls.compare()
        self._step.close()
        self._ranks.close()

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        # After an error the other ranks are not there to close with.
        if error is None:
            self.close()
