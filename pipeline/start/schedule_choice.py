"""A schedule that ``divisible run --schedule`` gives to a script.

The script says ``schedule='auto'``, and runs the given schedule instead of choosing one
by the times of its stages.
"""

from __future__ import annotations

import os

from mpi4py import MPI

from divisible.schedules.automatic import AUTO
from divisible.schedules.schedule_files import name_or_file
from divisible.user_warnings import warn_user
from pipeline.start.arguments import Arguments
from pipeline.start.starting import refusing

#: Variable of the environment with the name of a schedule, or the path of its file.
VARIABLE = "DIVISIBLE_SCHEDULE"


def with_given_schedule(world: MPI.Comm, arguments: Arguments) -> Arguments:
    """Returns arguments with the schedule of the command line, where one is given.

    Args:
        world: The communicator of all ranks.
        arguments: The arguments of this rank.

    Raises:
        OSError: If the file cannot be read.
        ScheduleError: If there is neither such a schedule nor such a file, or its
            schedule cannot run.
    """
    given = os.environ.get(VARIABLE)
    if given is None:
        return arguments
    if not isinstance(arguments.schedule, str) or arguments.schedule != AUTO:
        if world.rank == 0:
            warn_user(
                f"divisible run --schedule is given {given}, which this pipeline does"
                f" not use: give it schedule='auto' in the script"
            )
        return arguments
    with refusing(world):
        return arguments._replace(schedule=name_or_file(given))
