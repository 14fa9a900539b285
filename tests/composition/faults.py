"""Faults that are planted in the project, to see whether they are found."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from divisible.backward import joint_weights
from pipeline.calls import tie_exchange
from pipeline.snapshots import restoring
from pipeline.stages.carried_rows import CarriedRows
from pipeline.stages.loss import Loss


def _drop_tied_copy(patch: Any) -> None:
    """Ranks that do not own a tied parameter leave their gradient out of the sum."""
    add_up = tie_exchange.TieExchange.add_up

    def wrong(self: Any) -> None:
        for tie in self._ties:
            for copy in tie.copies[1:] if tie.is_owner else tie.copies:
                if copy.grad is not None:
                    copy.grad[...] = 0
        add_up(self)

    patch.setattr(tie_exchange.TieExchange, "add_up", wrong)


def _state_of_another_replica(patch: Any) -> None:
    """A replica goes on from the states of another one's samples."""
    load_shares = restoring.load_shares

    def wrong(stage: Any, replicas: Any, ranks: Any, is_dry_run: bool) -> None:
        other = (ranks.replica + 1) % ranks.n_replicas
        given = types.SimpleNamespace(n_replicas=ranks.n_replicas, replica=other)
        load_shares(stage, replicas, given, is_dry_run)

    patch.setattr(restoring, "load_shares", wrong)


def _state_of_another_sample(patch: Any) -> None:
    """A sample goes on from the state of another one."""
    begin = CarriedRows.begin

    def wrong(self: Any, trains: bool) -> None:
        begin(self, trains)
        for i, rows in self._before.items():
            if rows is not None and len(rows) > 1:
                self._before[i] = rows[::-1].copy()

    patch.setattr(CarriedRows, "begin", wrong)


def _scale_twice(patch: Any) -> None:
    """The loss is multiplied by its scale twice."""
    gradient = Loss.gradient

    def wrong(self: Any, microbatch: int, loss: Any) -> Any:
        found = gradient(self, microbatch, loss)
        found *= self.scale
        return found

    patch.setattr(Loss, "gradient", wrong)


def _leave_out_late_microbatch(patch: Any) -> None:
    """The last microbatch of a group adds nothing to the weights' gradients."""
    together = joint_weights.run_weights_together

    def wrong(walks: Any, weight_gradients: Any) -> None:
        together(walks[:-1], weight_gradients)

    patch.setattr("pipeline.stages.segment.run_weights_together", wrong)


#: Functions that plant a fault, by its name.
FAULTS: dict[str, Callable[[Any], None]] = {
    "tied copy": _drop_tied_copy,
    "state of another replica": _state_of_another_replica,
    "state of another sample": _state_of_another_sample,
    "scale twice": _scale_twice,
    "late microbatch": _leave_out_late_microbatch,
}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """Plants a fault within the block; none for ''."""
    with pytest.MonkeyPatch.context() as patch:
        if name:
            FAULTS[name](patch)
        yield
