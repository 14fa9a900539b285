"""Calls of all ranks between the steps of a pipeline."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, TypeVar

from divisible.schedules.timeline import Timeline
from pipeline.calls.ranks import Ranks
from pipeline.internals import Internals
from pipeline.step.step import Step

_Own = TypeVar("_Own", bound="CallsBetweenSteps")


class CallsBetweenSteps:
    """Calls of a pipeline that run no minibatch."""

    _ranks: Ranks
    _step: Step

    @property
    def internals(self) -> Internals:
        """The parts that packages of this project use; they change without notice."""
        return Internals(self)

    @property
    def is_chief(self) -> bool:
        """Whether this rank prints and writes logs for all ranks."""
        return self._ranks.is_chief

    @property
    def n_replicas(self) -> int:
        """Number of pipelines that share a minibatch."""
        return self._ranks.n_replicas

    @property
    def replica(self) -> int:
        """Number of this rank's pipeline among the replicas."""
        return self._ranks.replica

    def _call(self, name: str) -> AbstractContextManager[None]:
        """Returns the context of a call."""
        raise NotImplementedError

    def timeline(self) -> Timeline:
        """Returns the times of every rank's actions in the last :meth:`step`.

        Recording is always on, and reads the clock twice per action or message. All
        ranks must call this. On a GPU, the times are those of launches.

        Returns:
            Timeline: The timeline of all ranks of the pipeline, the same on each of
            them, on one clock that starts with the first action. A wait is a receive,
            from when it was needed to when it was complete. On a grid, it is the
            timeline of this replica, with the exchanges so far.

        Raises:
            RuntimeError: If no step has been run yet.
            DisagreementError: If another rank makes a different call.
            StallError: If another rank does not answer in time.
        """
        if (record := self._step.record) is None:
            raise RuntimeError("no step has been run yet")
        with self._call("timeline"):
            self._ranks.calls.compare()
            return self._ranks.timeline(
                record, self._step.early_exchanges.spans(record)
            )

    def close(self) -> None:
        """Frees the pipeline's communicator; all ranks must call it.

        This is needed only if many pipelines are made in one process. A pipeline is a
        context manager that closes itself. After a failed call, or if the pipeline is
        closed already, nothing is done.

        Raises:
            DisagreementError: If another rank makes a different call.
            StallError: If another rank does not answer in time, or its script has
                ended.
            SnapshotError: If a snapshot in the background has failed. Call it again
                then.
        """
        # A failed call may have messages under way, whose buffers must stay.
        if self._ranks.calls.has_failed or self._ranks.are_closed:
            return
        if self._ranks.before_close is not None:
            self._ranks.before_close()
        # If one rank closed alone, it could not answer others that wait for it.
        with self._call("close"):
            self._ranks.calls.compare()
        self._step.close()
        self._ranks.close()

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        # After an error, the other ranks do not close with this one.
        if error is None:
            self.close()
