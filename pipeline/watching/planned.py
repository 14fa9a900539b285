"""The predictions of a plan for this rank."""

from __future__ import annotations

from typing import NamedTuple

from pipeline.pipeline import Pipeline


class Planned(NamedTuple):
    """The predictions of a plan; ``None`` without one.

    Attributes:
        step: Seconds of a step, forward and backward.
        bubble: Share of a step that ranks wait.
        computing: Seconds that this rank computes in a step.
    """

    step: float | None = None
    bubble: float | None = None
    computing: float | None = None


def planned_of(pipeline: Pipeline) -> Planned:
    """Returns the predictions for this rank by the plan in force.

    Example:
        >>> from mpi4py import MPI
        >>> from divisible import Divisible
        >>> import chainer.links as L
        >>> pipe = Pipeline(Divisible(L.Linear(4, 3)), MPI.COMM_SELF, n_microbatches=2)
        >>> planned_of(pipe)
        Planned(step=None, bubble=None, computing=None)
    """
    plan = pipeline.plan
    if plan is None or plan.stages is None or plan.step_seconds is None:
        return Planned()
    of_stages = sum(plan.stages[number].seconds for number in pipeline.stages)
    computing = of_stages * pipeline.schedule.n_microbatches
    return Planned(plan.step_seconds, plan.bubble, computing)
