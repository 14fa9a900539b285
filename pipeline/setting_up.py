"""Sets a pipeline up: from arguments to stages, a transport and a runner.

::

    arguments --checked--> announcement --gathered--> layout
                                                        |
           schedule, stages, ties, transport, runner <--'
"""

from __future__ import annotations

import contextlib
import functools
import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

import chainer
from mpi4py import MPI

from divisible import Divisible
from divisible.communication.collectives import all_gather
from divisible.communication.communicators import announcement, free_dropped
from divisible.communication.errors import StallError
from divisible.communication.flight_files import keep_flight_record
from divisible.communication.launchers import is_started_by_a_rank, launch_or_job
from divisible.communication.transport import Transport
from divisible.schedules.automatic import AUTO, Trial, first_schedule
from divisible.schedules.catalogue import create
from divisible.schedules.recomputation import recompute
from divisible.schedules.schedule import Schedule
from divisible.streaming.held_store import HeldStore
from pipeline.agreement import Announcement, Layout, Refusal, agree, check_placement
from pipeline.arguments import Arguments
from pipeline.global_hooks import GlobalHooks
from pipeline.ranks import Ranks
from pipeline.replicas import (
    agree_on_replicas,
    replicas_of,
    world_of,
)
from pipeline.runner import Runner
from pipeline.stages.held_elsewhere import HeldElsewhere
from pipeline.stages.loss import Loss
from pipeline.stages.stage import Stage
from pipeline.tie_exchange import TieExchange
from pipeline.update_agreement import UpdateAgreement

# How long a rank that refuses its arguments waits for the others to hear why.
_SECONDS_TO_REFUSE = 10.0
# Of the name of the first pipeline's communicator, for the directory of its records.
_LETTERS_OF_A_JOB = 12


def agree_on_start(comm: Any, arguments: Arguments) -> tuple[Arguments, Loss, Layout]:
    """Checks a rank's arguments, and compares them with those of all others.

    Args:
        comm: Of all ranks of the pipeline, of ChainerMN or mpi4py; or a grid.
        arguments: What this rank was given.

    Returns:
        The arguments in their plain forms, the loss made of them, and how the model
        lies on the ranks.

    Raises:
        DisagreementError: On every rank, if they do not fit together.
        TypeError, ValueError: If this rank's own arguments are wrong; the other ranks
            are told so.
        StallError: If another rank does not come in time.
    """
    grid, comm = replicas_of(comm), world_of(comm)
    try:
        arguments = arguments.checked()
        loss = Loss(arguments.lossfun, arguments.accfun)
        settings = {
            "the number of ranks in a pipeline": str(grid and grid.n_pipeline),
            **arguments.to_compare(loss.names),
        }
        mine = Announcement.of(
            arguments.stages, loss.params(), settings, arguments.loss_scale is not None
        )
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if not isinstance(error, (TypeError, ValueError)):
            # No bad argument: who reads it wants to know where it came from.
            text = f"{text}\n{traceback.format_exc()}"
        refusal = Refusal(text)
        with contextlib.suppress(StallError):
            all_gather(comm, refusal, _SECONDS_TO_REFUSE)
        raise
    said = all_gather(comm, (mine, announcement()), arguments.timeout, "to start")
    words = [each if isinstance(each, Refusal) else each[0] for each in said]
    layout = agree(words) if grid is None else agree_on_replicas(words, grid)
    layout = layout._replace(name=free_dropped([of_comm for _, of_comm in said]))
    keep_flight_record(layout.name[:_LETTERS_OF_A_JOB], comm.rank, comm.size)
    for text in [*layout.warnings[comm.rank], *_alone(comm, arguments.stages)]:
        # Where the script makes its pipeline.
        warnings.warn(text, stacklevel=3)
    return arguments, loss, layout


def _alone(comm: MPI.Comm, stages: Sequence[Divisible]) -> list[str]:
    """Returns a warning if this is the only rank, and was not meant to be."""
    is_meant = comm == MPI.COMM_SELF or is_started_by_a_rank()
    if MPI.COMM_WORLD.size > 1 or is_meant:
        return []
    started = launch_or_job()
    if started is not None and started.n_ranks > 1:
        return [
            f"{started.variable}={started.n_ranks}, but for MPI this is the only rank,"
            f" and trains the whole model, as each of the others does: start the script"
            f" with the mpiexec of mpi4py's MPI library, or srun with the --mpi that it"
            f" needs; or give MPI.COMM_SELF to train on one rank"
        ]
    if len(stages) > 1:
        return [
            f"the model is cut into {len(stages)} stages, but this is the only rank:"
            f" was mpiexec forgotten? Give MPI.COMM_SELF to train on one rank"
        ]
    return []


def make_schedule(
    arguments: Arguments, stage_ranks: Sequence[int]
) -> tuple[Schedule, Trial | None]:
    """Returns the schedule asked for, and what will choose another one, if so.

    Args:
        arguments: Those of this rank.
        stage_ranks: For each stage the rank that holds it.

    Raises:
        ScheduleError: If there is no such schedule for such stages.
        DisagreementError: If it wants them on other ranks.
    """
    n_microbatches, checkpoint = arguments.n_microbatches, arguments.checkpoint
    trial = None
    if isinstance(arguments.schedule, Schedule):
        schedule = arguments.schedule
    elif arguments.schedule == AUTO:
        schedule = first_schedule(stage_ranks, n_microbatches)
        trial = Trial(stage_ranks, n_microbatches, checkpoint)
    else:
        n_stages, n_ranks = len(stage_ranks), len(set(stage_ranks))
        schedule = create(arguments.schedule, n_stages, n_microbatches, n_ranks)
    check_placement(schedule, stage_ranks)
    return recompute(schedule, checkpoint), trial


class Parts(NamedTuple):
    """The parts of a pipeline that depend on where its layers lie.

    Attributes:
        stages: This rank's by their numbers in the pipeline.
        ties: Keeps parameters equal that several stages share, if any do.
        updates: Compares how the ranks' optimizers treat the model.
        runner: Runs schedules.
    """

    stages: dict[int, Stage]
    ties: TieExchange | None
    updates: UpdateAgreement
    runner: Runner

    @classmethod
    def of(
        cls,
        arguments: Arguments,
        loss: Loss,
        layout: Layout,
        ranks: Ranks,
        before: Parts | None = None,
    ) -> Parts:
        """Makes them; a call of all ranks.

        Args:
            arguments: Those of this rank.
            loss: Follows the last stage.
            layout: How the layers lie on the ranks.
            ranks: All of the pipeline.
            before: The parts that these take the place of, where the same stages had
                other layers. They are closed, but what they know of optimizers' hooks
                goes on.
        """
        stages = _make_stages(arguments, loss, layout, ranks)
        layers = {number: stage.layers for number, stage in stages.items()}
        if before is None:
            n_stages = len(layout.stage_ranks)
            hooks = GlobalHooks(layers, loss.links, n_stages, arguments.seed, ranks)
        else:
            before.close()
            hooks = before.updates.hooks
            hooks.forget_layers()
        return cls(
            stages,
            _make_ties(stages, layout, ranks),
            UpdateAgreement(layout.shared, layers, hooks, ranks),
            _make_runner(arguments, stages, layout, ranks),
        )

    def begin(
        self,
        step: int,
        n_microbatches: int,
        listener: Callable,
        is_updated_early: Callable[[chainer.Parameter], bool] | None,
    ) -> None:
        """Begins a minibatch; see :meth:`.Stage.begin`.

        Args:
            step (int): How many there were before.
            n_microbatches (int): Of the minibatch.
            listener: Returns what a stage calls with complete gradients, or ``None``.
            is_updated_early: What a stage asks of each parameter, or ``None``.
        """
        for stage in self.stages.values():
            stage.begin(step, n_microbatches, listener(stage), is_updated_early)

    def finish(self, loss_scale: float | None, correction: float) -> None:
        """Ends a minibatch; see :meth:`.Stage.finish`."""
        for stage in self.stages.values():
            stage.finish(loss_scale, correction)
        if self.ties is not None:
            self.ties.add_up()

    def reset_states(self, of_training: bool) -> None:
        """Lets layers begin anew that carry a state; see :meth:`.CarriedRows.reset`."""
        for stage in self.stages.values():
            stage.carried.reset(of_training)

    def carried(self, trains: bool) -> tuple[int, str] | None:
        """Returns of how many samples states are; see :meth:`.CarriedRows.fewest`.

        Args:
            trains (bool): Whether it is a step of training.
        """
        fewest = (stage.carried.fewest(trains) for stage in self.stages.values())
        return min(filter(None, fewest), default=None)

    def close(self) -> None:
        """Frees what they need to exchange messages; a call of all ranks."""
        for each in (self.runner, self.ties, self.updates):
            if each is not None:
                each.close()


def _make_stages(
    arguments: Arguments, loss: Loss, layout: Layout, ranks: Ranks
) -> dict[int, Stage]:
    """Returns a rank's stages by their numbers in the pipeline."""
    gather = None
    if ranks.grid is not None:
        gather = functools.partial(
            all_gather,
            ranks.grid.data,
            timeout=arguments.timeout,
            purpose="to share what batch normalization has found",
        )
    numbers = [i for i, owner in enumerate(layout.stage_ranks) if owner == ranks.rank]
    last = len(layout.stage_ranks) - 1
    if last not in numbers:
        # Chainer's gradients begin as NaN, and here nothing else clears these.
        for param in loss.params():
            param.cleargrad()
    return {
        number: Stage(
            layers,
            loss if number == last else None,
            arguments.seed,
            arguments.deferred_batch_norm,
            ranks.replica * arguments.n_microbatches,
            gather,
        )
        for number, layers in zip(numbers, arguments.stages)
    }


def _make_ties(
    stages: Mapping[int, Stage], layout: Layout, ranks: Ranks
) -> TieExchange | None:
    """Returns what keeps parameters equal that several stages share, if any do."""
    if not layout.shared:
        return None
    layers = {number: stage.layers for number, stage in stages.items()}
    return TieExchange(
        layout.shared,
        layers,
        layout.stage_ranks,
        ranks.comm,
        ranks.timeout,
        ranks.watch,
        f"{layout.name} ties",
    )


def _make_runner(
    arguments: Arguments, stages: Mapping[int, Stage], layout: Layout, ranks: Ranks
) -> Runner:
    """Returns what runs schedules, over the transport asked for."""
    if arguments.transport == "mpi":
        xp = arguments.stages[0].device.xp
        transport = Transport(ranks.comm, ranks.timeout, xp, arguments.wire_dtype)
    else:
        # ChainerMN is slow to load, and needed for this transport only.
        from pipeline.chainermn import ChainerMNTransport

        transport = ChainerMNTransport(ranks.comm, ranks.timeout)
    transport.watch = ranks.watch
    return Runner(
        stages,
        layout.stage_ranks,
        ranks.rank,
        transport,
        layout.routes,
        ranks.title,
        _make_elsewhere(arguments),
    )


def _make_elsewhere(arguments: Arguments) -> HeldElsewhere | None:
    """Returns where microbatches are held between forward and backward."""
    if arguments.hold_in == "memory":
        return None
    return HeldElsewhere(HeldStore(arguments.hold_directory, arguments.timeout))
