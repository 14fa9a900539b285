"""Other pipelines over layers that move, which would go on with the old ones.

::

    pipe     0 1 | 2 3     ->     0 | 1 2 3      layer 1 has moved, and is trained there
    other    0 1 | 2 3            0 1 | 2 3      has the old layer 1: is refused
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from divisible import Divisible
from pipeline.calls.call_agreement import ACCUMULATES
from pipeline.pipeline import Pipeline

# Calls that compute with layers, or change them. A pipeline can still be closed.
_CALLS = ("step", ACCUMULATES, "evaluate", "predict", "rebalance", "compress")

_REASON = (
    "layers of this pipeline have moved to other ranks with those of another pipeline,"
    " and this one has their old weights: make a new Pipeline of the stages that each"
    " rank has now"
)


def with_layers_that_leave(
    pipeline: Pipeline, stages: Mapping[int, Divisible]
) -> list[int]:
    """Returns the numbers of other pipelines that have layers which leave this rank.

    Args:
        pipeline (Pipeline): The pipeline, whose stages still have all their layers.
        stages: Future stages of this rank that change, by number.
    """
    leaving: set[int] = set()
    for number, stage in stages.items():
        leaving |= {id(link) for link in pipeline.stages[number].links(skipself=True)}
        leaving -= {id(link) for link in stage.links(skipself=True)}
    return [
        other.calls.pipeline
        for other in pipeline.internals.step.others()
        if any(
            id(each) in leaving
            for stage in other.stages.values()
            for each in stage.links()
        )
    ]


def exclude(pipeline: Pipeline, said: Sequence[Collection[int]]) -> None:
    """Refuses the calls of other pipelines that have layers which have moved.

    Args:
        pipeline (Pipeline): The pipeline whose layers have moved.
        said: Numbers of these pipelines, from each rank.
    """
    numbers = set().union(*said)
    for other in pipeline.internals.step.others() if numbers else ():
        if other.calls.pipeline in numbers:
            other.calls.excluded.update(dict.fromkeys(_CALLS, _REASON))
