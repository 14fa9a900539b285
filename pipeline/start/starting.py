"""The start of a pipeline: its arguments, checked here and compared on all ranks.

::

    arguments --checked--> announcement --gathered--> start
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from mpi4py import MPI

from chainer_kernels.switch import products_in_force
from divisible import Divisible
from divisible.communication.communicators import announcement, free_dropped
from divisible.communication.errors import DisagreementError, StallError
from divisible.communication.flight_files import keep_flight_record
from divisible.communication.launchers import is_started_by_a_rank, launch_or_job
from divisible.user_warnings import warn_user
from pipeline.calls.replicas import replicas_of, world_of
from pipeline.stages.loss import Loss
from pipeline.start.agreement import (
    Refusal,
    Start,
    StartAnnouncement,
    agree,
)
from pipeline.start.arguments import Arguments, place_of
from pipeline.start.replicas import agree_on_replicas, without_draws
from pipeline.start.start_warnings import warnings_of
from pipeline.start.versions import told

# Seconds that a rank that refuses its arguments waits for others to receive the reason.
_SECONDS_TO_REFUSE = 10.0
# Number of letters of the first communicator's name, for the directory of its records.
_LETTERS_OF_A_JOB = 12


def agree_on_start(comm: Any, arguments: Arguments) -> Start:
    """Checks a rank's arguments, and compares them with those of all ranks.

    Args:
        comm: Communicator of all ranks of the pipeline, of ChainerMN or mpi4py; or a
            grid.
        arguments: Arguments of this rank.

    Returns:
        The outcome of the agreement, with the arguments in plain forms.

    Raises:
        DisagreementError: On every rank, if arguments or stages do not fit together.
        TypeError, ValueError: If this rank's own arguments are wrong; the other ranks
            get the reason.
        StallError: If another rank does not answer in time.
    """
    grid, comm = replicas_of(comm), world_of(comm)
    with refusing(comm):
        arguments = arguments.checked()
        if grid is not None and not arguments.deferred_batch_norm:
            _check_averages(arguments.stages)
        loss = Loss(arguments.lossfun, arguments.accfun)
        settings = {
            "the number of ranks in a pipeline": str(grid and grid.n_pipeline),
            "the dtype of products": products_in_force(),
            **arguments.to_compare(loss.names),
        }
        mine = StartAnnouncement.of(
            arguments.stages,
            loss.params(),
            settings,
            loss.knows_count,
            place_of(arguments.hold_in),
        )
    said = told(comm, (mine, announcement()), arguments.timeout)
    words = [word for word, _ in said]
    start = agree(words) if grid is None else agree_on_replicas(words, grid)
    start = start._replace(
        name=free_dropped([of_comm for _, of_comm in said]),
        arguments=arguments,
        loss=loss,
    )
    keep_flight_record(start.name[:_LETTERS_OF_A_JOB], comm.rank, comm.size)
    drawn = words if grid is None else without_draws(words, grid)
    of_rank = warnings_of(drawn, start.dtypes)[comm.rank]
    for text in [*of_rank, *_alone(comm, arguments.stages)]:
        warn_user(text)
    return start


def _check_averages(stages: Sequence[Divisible]) -> None:
    """Refuses running averages that replicas would move by their own samples."""
    for stage in stages:
        for path, link in stage.namedlinks():
            if "avg_mean" in link._persistent:
                raise ValueError(
                    f"deferred_batch_norm=False does not go together with replicas:"
                    f" each would move the running averages of {path} by its own"
                    f" samples. Leave it out; they then move by those of all replicas"
                )


@contextlib.contextmanager
def refusing(comm: MPI.Comm) -> Iterator[None]:
    """Sends the reason of a refusal to the other ranks, which wait for announcements.

    Args:
        comm: Communicator of all ranks.
    """
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if not isinstance(error, (TypeError, ValueError)):
            # The error is not about an argument, so a reader needs its traceback.
            text = f"{text}\n{traceback.format_exc()}"
        with contextlib.suppress(StallError, DisagreementError):
            told(comm, (Refusal(text), None), _SECONDS_TO_REFUSE)
        raise


def _alone(comm: MPI.Comm, stages: Sequence[Divisible]) -> list[str]:
    """Returns a warning if this is the only rank, which seems not to be intended."""
    is_meant = comm == MPI.COMM_SELF or is_started_by_a_rank()
    if MPI.COMM_WORLD.size > 1 or is_meant:
        return []
    started = launch_or_job()
    if started is not None and started.n_ranks > 1:
        return [
            f"{started.variable}={started.n_ranks}, but MPI knows only this rank, which"
            f" trains the whole model, as each of the others does: start the script"
            f" with the mpiexec of mpi4py's MPI library, or srun with the --mpi that it"
            f" needs; or give MPI.COMM_SELF to train on one rank"
        ]
    if len(stages) > 1:
        return [
            f"the model is cut into {len(stages)} stages, but this is the only rank:"
            f" was mpiexec forgotten? Give MPI.COMM_SELF to train on one rank"
        ]
    return []
