"""Schedules as plain data: generated, proved, lowered to messages, simulated.

::

    actions             the vocabulary
    schedule            for each rank its actions, in order
    grid                as text, and back
    dependencies        what each action waits for
    validation          complete, in order, free of deadlock; how much is held
    generators          GPipe, 1F1B, interleaved, looped BFS, zero bubble
    list_scheduling     one made for given costs
    lowering            the sends and receives between the actions
    program_validation  free of deadlock with them, whatever they wait for
    simulator           how long all that takes
    recomputation       the same with forwards that run again
    timeline            what ran when, predicted or measured; trace and plot: as files
    automatic           the schedule that the first minibatches choose
    paper_model         the paper's equations

Nothing in here imports Chainer or MPI.
"""

from divisible.schedules.actions import Action, ScheduleError, Transfer
from divisible.schedules.catalogue import NAMES, STAGES_PER_RANK, create
from divisible.schedules.costs import Costs
from divisible.schedules.generators import (
    gpipe,
    interleaved,
    looped_bfs,
    one_f_one_b,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)
from divisible.schedules.list_scheduling import list_schedule
from divisible.schedules.schedule import Schedule
from divisible.schedules.timeline import Timeline

__all__ = [
    "NAMES",
    "STAGES_PER_RANK",
    "Action",
    "Costs",
    "Transfer",
    "Schedule",
    "ScheduleError",
    "Timeline",
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
