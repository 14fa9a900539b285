"""Schedules as plain data: generated, proved, lowered to messages, simulated.

::

    schedule            for each rank its actions, in order
    grid                as text, and back
    dependencies        what each action waits for
    validation          complete, in order, free of deadlock; how much is held
    generators          GPipe, 1F1B, interleaved, looped BFS, zero bubble
    list_scheduling     one made for given costs
    lowering            the sends and receives between the actions
    program_validation  free of deadlock with them, whatever they wait for
    simulator           how long all that takes

The vocabulary is in `pipeline.actions`. Nothing in here imports Chainer or MPI.
"""

from pipeline.schedules.generators import (
    NAMES,
    STAGES_PER_RANK,
    create,
    gpipe,
    interleaved,
    looped_bfs,
    one_f_one_b,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)
from pipeline.schedules.list_scheduling import list_schedule

__all__ = [
    "NAMES",
    "STAGES_PER_RANK",
    "create",
    "gpipe",
    "interleaved",
    "list_schedule",
    "looped_bfs",
    "one_f_one_b",
    "zero_bubble_h1",
    "zero_bubble_h2",
    "zero_bubble_v",
]
