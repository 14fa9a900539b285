"""Calls of all ranks between the passes of minibatches: to tell, and to close."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, TypeVar

from divisible.schedules.rank_program import Record
from divisible.schedules.timeline import Timeline
from pipeline.calls.ranks import Ranks
from pipeline.step.step import Step

_Own = TypeVar("_Own", bound="CallsBetweenSteps")


class CallsBetweenSteps:
    """Calls of a pipeline that pass no minibatch.

    Attributes:
        ranks (Ranks): What the ranks tell each other besides arrays.
        body (Step): What happens within a call.
    """

    ranks: Ranks
    body: Step

    @property
    def record(self) -> Record | None:
        """The last step on this rank: when it did what."""
        return self.body.record

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
        if (record := self.record) is None:
            raise RuntimeError("no step has been run yet")
        with self._call("timeline"):
            self.ranks.calls.compare()
            return self.ranks.timeline(record, self.body.early_exchanges.spans(record))

    def gather(self, value: Any, call: str) -> list:
        """Returns every rank's ``value``, of all replicas, in rank order.

        Args:
            value: Any picklable object.
            call (str): What the ranks do, such as ``'save'`` or ``'compress'``; all
                must do the same at this point.

        Raises:
            DisagreementError: On every rank, if they do not.
            StallError: If another rank does not come in time.
        """
        with self._call(call):
            if self.ranks.world.size == 1:
                return [value]
            self.ranks.calls.compare()
            return self.ranks.all_gather(value, f"to {call}")

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
        if self.ranks.calls.has_failed or self.ranks.are_closed:
            return
        if self.ranks.before_close is not None:
            self.ranks.before_close()
        # A rank that closed alone could not tell others that wait for it.
        with self._call("close"):
            self.ranks.calls.compare()
        self.body.close()
        self.ranks.close()

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        # After an error the other ranks are not there to close with.
        if error is None:
            self.close()
