"""The parts of a pipeline that packages of this project use.

::

    script, extension ---> methods and properties of Pipeline
    our packages ------> pipe.internals ---> ranks, loss, step, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from divisible.planning.message_plan import as_plans
from divisible.schedules.automatic import ScheduleTrial
from divisible.schedules.group_trial import GroupTrial
from divisible.schedules.rank_program import Record, Span
from pipeline.calls.ranks import Ranks
from pipeline.calls.tie_exchange import TieExchange
from pipeline.stages.loss import Loss
from pipeline.start.agreement import Start
from pipeline.step.early_exchanges import EarlyExchanges
from pipeline.step.results import LateOutputs
from pipeline.step.step import Step
from pipeline.step.step_end import StepEnd


class Internals:
    """The parts of a pipeline, which change without notice.

    Args:
        pipeline (Pipeline): The pipeline.

    Attributes:
        ranks (Ranks): The messages between ranks besides arrays.
        loss (Loss): The functions behind the last layer: ``lossfun`` and ``accfun``.
        step (Step): The steps of minibatches: stages, runner, ties, updates.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self.ranks: Ranks = pipeline._ranks
        self.loss: Loss = pipeline._loss
        self.step: Step = pipeline._step

    @property
    def trial(self) -> ScheduleTrial | GroupTrial | None:
        """The trial of schedules or groups that ``'auto'`` has not finished yet."""
        return self.step.current.trial

    @property
    def hold_dtype(self) -> str:
        """Dtype in which activations wait for their backward."""
        return self._pipeline._arguments.hold_dtype

    @property
    def message_dtypes(self) -> list[str]:
        """Dtypes of messages over each edge, as texts; none if no edge is narrowed."""
        n_edges = self._pipeline.schedule.n_stages - 1
        plans = as_plans(self._pipeline._arguments.dtypes_over(n_edges))
        return [*map(str, plans)]

    @property
    def has_streamed_layers(self) -> bool:
        """Whether a rank has layers whose weights are on disk."""
        return bool(self.step.start.streamed)

    @property
    def record(self) -> Record | None:
        """The times of the last step on this rank; ``None`` before the first step."""
        return self.step.record

    def record_after(self, span: Span) -> None:
        """Adds what this rank did after the last step to the record of the step."""
        if self.step.record is not None:
            self.step.record = self.step.record.followed_by(span)

    @property
    def ties(self) -> TieExchange | None:
        """The exchange of parameters that several stages share, if there are some."""
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
        """Returns ``value`` of every rank, of all replicas, in rank order.

        Args:
            value: Any picklable object.
            call (str): Name of the call, such as ``'save'`` or ``'compress'``, the
                same on all ranks.

        Raises:
            DisagreementError: On every rank, if the ranks' calls differ.
            StallError: If another rank does not answer in time.
        """
        with self._pipeline._call(call):
            if self.ranks.world.size == 1:
                return [value]
            self.ranks.calls.compare()
            return self.ranks.all_gather(value, f"to {call}")

    def evaluate_late(
        self, x: Any, t: Any, goes_on: bool
    ) -> tuple[dict[str, float], StepEnd]:
        """Evaluates one minibatch of many, and does not wait for the last stage.

        Args:
            x (array or tuple of arrays): Inputs; read on the first stage's rank.
            t (array or tuple of arrays): Targets; read on the last stage's rank.
            goes_on (bool): Whether the call before was for the same data set.

        Returns:
            The means of values that layers reported, and the end of the minibatch.
        """
        with self._pipeline._call("evaluate", goes_on):
            return self.step.evaluate(x, t)

    def predict_late(self, x: Any, axis: int | Sequence[int]) -> LateOutputs:
        """Predicts one minibatch of many, and does not wait for the last stage.

        Args:
            x (array or tuple of arrays): Inputs; read on the first stage's rank.
            axis (int or sequence of ints): Axis of the samples in the outputs.

        Returns:
            LateOutputs: All ranks must read the outputs, minibatch by minibatch.
        """
        with self._pipeline._call("predict"):
            return self.step.predict(x, axis)

    def lay_out(self, start: Start) -> None:
        """Lays out the stages with their present layers; all ranks must call it.

        Args:
            start (Start): Agreed arguments, with the present layers.
        """
        with self._pipeline._call("rebalance"):
            self._pipeline._lay_out(start)
