"""The parts of a pipeline that packages of this project use.

::

    script, extension ---> methods and properties of Pipeline
    our packages ------> pipe.internals ---> ranks, loss, step, ...
"""

from __future__ import annotations

from typing import Any

from divisible.schedules.automatic import Trial
from divisible.schedules.rank_program import Record
from pipeline.calls.ranks import Ranks
from pipeline.calls.tie_exchange import TieExchange
from pipeline.stages.loss import Loss
from pipeline.start.agreement import Start
from pipeline.step.early_exchanges import EarlyExchanges
from pipeline.step.step import Step


class Internals:
    """The parts of a pipeline, which change without notice.

    Args:
        pipeline (Pipeline): The pipeline.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline

    @property
    def ranks(self) -> Ranks:
        """The messages between ranks besides arrays."""
        return self._pipeline._ranks

    @property
    def loss(self) -> Loss:
        """The functions behind the last layer: ``lossfun`` and ``accfun``."""
        return self._pipeline._loss

    @property
    def step(self) -> Step:
        """The passes of minibatches: stages, runner, ties, updates."""
        return self._pipeline._step

    @property
    def trial(self) -> Trial | None:
        """The trial that is still to choose the schedule, of ``'auto'``."""
        return self.step.current.trial

    @property
    def record(self) -> Record | None:
        """The record of the last step on this rank: when it did what."""
        return self.step.record

    @property
    def ties(self) -> TieExchange | None:
        """The exchange of parameters that several stages share, if any do."""
        return self.step.ties

    @property
    def early_exchanges(self) -> EarlyExchanges:
        """The exchanges of gradients while a step computes."""
        return self.step.early_exchanges

    @property
    def vetoes(self) -> Any:
        """The objects of this rank that may end the next step on all ranks.

        Each has a text ``refusal``, which is empty if it does not.
        """
        return self.step.vetoes

    def gather(self, value: Any, call: str) -> list:
        """Returns every rank's ``value``, of all replicas, in rank order.

        Args:
            value: Any picklable object.
            call (str): The name of what the ranks do, such as ``'save'`` or
                ``'compress'``; all must do the same at this point.

        Raises:
            DisagreementError: On every rank, if they do not.
            StallError: If another rank does not come in time.
        """
        with self._pipeline._call(call):
            self.ranks.calls.compare()
            return self.ranks.all_gather(value, f"to {call}")

    def lay_out(self, start: Start) -> None:
        """Lays the stages out with the layers that they have now; a call of all ranks.

        Args:
            start (Start): How the layers lie.
        """
        with self._pipeline._call("rebalance"):
            self._pipeline._lay_out(start)
