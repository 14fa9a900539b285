"""Makes the arguments of each rank from a plan, or from an undivided model.

::

    model, comm, plan, other arguments
        | every rank sends its arguments        before any other message
        v
    the plan in force, a grid if it has replicas, this rank's stages, its arguments

If stages were divided by hand, nothing is done, and no message is sent.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from data_parallel import Grid
from divisible import Divisible, Machine, Plan
from divisible.planning.message_plan import narrowed_pairs
from divisible.planning.retained_arrays import FULL
from divisible.planning.units import count
from divisible.user_warnings import warn_user
from pipeline.calls.replicas import world_of
from pipeline.start.arguments import Arguments, directory_of, waiting_features
from pipeline.start.found_machine import find_machine
from pipeline.start.plan_agreement import (
    PlanFacts,
    PlanWords,
    agree_on_plan,
    from_rank_0,
)
from pipeline.start.plan_choice import (
    AUTO,
    VARIABLE,
    Chosen,
    Wish,
    choose,
    known_plan,
    save,
)
from pipeline.start.plans import Given, InForce, put_together
from pipeline.start.schedule_choice import with_given_schedule
from pipeline.start.starting import refusing
from pipeline.start.undivided import (
    check_undivided,
    divided,
    equal_stages,
    is_as_it_is,
    is_undivided,
)
from pipeline.start.versions import told

#: Values of arguments that neither a script nor a plan gives.
DEFAULTS = {
    "schedule": "1f1b",
    "recompute": "never",
    "fuse": "none",
    "hold_in": "memory",
    "hold_dtype": FULL,
    "weight_groups": 1,
}


class PlanWish(NamedTuple):
    """The arguments of a pipeline that concern a plan.

    Attributes:
        plan: A plan, the file of a plan, or ``'auto'``; ``None`` for none.
        x: Inputs of a first minibatch, for ``'auto'``; read on rank 0.
        t: Targets of this minibatch, for ``'auto'``; read on rank 0.
        machine: The machine, for ``'auto'``; ``None`` to measure it.
        directory: Directory for the plan and the run's snapshots, for ``'auto'``.
    """

    plan: Plan | str | os.PathLike | None = None
    x: Any = None
    t: Any = None
    machine: Machine | None = None
    directory: str | os.PathLike | None = None

    @property
    def is_auto(self) -> bool:
        """Whether the plan is still to be chosen."""
        return isinstance(self.plan, str) and self.plan == AUTO

    @property
    def kind(self) -> str:
        """The kind of the plan, as a text."""
        if self.is_auto:
            return "'auto'"
        return "a Plan" if isinstance(self.plan, Plan) else "a file"


class Opening(NamedTuple):
    """The arguments of a rank, with the plan and the communicator.

    Attributes:
        arguments: The arguments, with this rank's stages.
        comm: The communicator, or a grid.
        plan: The plan in force; ``None`` if stages were given.
        grid: The grid that was made for the plan; ``None`` if none was made.
        changes: Texts about arguments that differ from the plan.
    """

    arguments: Arguments
    comm: Any
    plan: Plan | None = None
    grid: Grid | None = None
    changes: tuple[str, ...] = ()


def open_plan(comm: Any, arguments: Arguments, wish: PlanWish) -> Opening:
    """Returns the arguments of this rank; all ranks must call it.

    Args:
        comm: The communicator of all ranks, or a grid.
        arguments: Arguments of this rank; ``None`` for those that a plan decides.
        wish: The plan given to this rank, if any, with the arguments for it.

    Raises:
        DisagreementError: On every rank, if the ranks' arguments do not fit together.
            On the other ranks, if one refuses.
        TypeError, ValueError: If this rank's own arguments are wrong.
        StallError: If another rank does not answer in time.
    """
    arguments = with_given_schedule(world_of(comm), arguments)
    given = Given(
        arguments.n_microbatches,
        arguments.schedule,
        arguments.recompute,
        arguments.fuse,
        arguments.weight_groups,
        arguments.overlap_minibatches,
        arguments.hold_dtype,
        arguments.message_dtype,
    )
    if not wish.is_auto and VARIABLE in os.environ and world_of(comm).rank == 0:
        warn_user(
            f"divisible run --plan is given {os.environ[VARIABLE]}, which this pipeline"
            f" does not use: give it plan='auto' in the script"
        )
    if wish.plan is not None:
        return _by_plan(comm, arguments, wish, given)
    with refusing(world_of(comm)):
        _check_used(wish)
        completed = _completed(arguments)
        if not is_undivided(arguments.stages):
            return Opening(completed, comm)
        n_ranks = _n_pipeline(comm)
        found = equal_stages(arguments.stages, completed.schedule, n_ranks)
        stages = arguments.stages
        if not is_as_it_is(stages, found):
            stages = divided(stages, found, _place(comm), None)
    return Opening(completed._replace(stages=stages), comm)


def _completed(arguments: Arguments) -> Arguments:
    """Returns arguments with defaults for those that were not given."""
    missing = {
        name: default
        for name, default in DEFAULTS.items()
        if getattr(arguments, name) is None
    }
    return arguments._replace(**missing)


def _by_plan(comm: Any, arguments: Arguments, wish: PlanWish, given: Given) -> Opening:
    world, timeout = world_of(comm), arguments.timeout
    with refusing(world):
        check_undivided(arguments.stages)
        known, why = _known(comm, arguments, wish, given)
        facts = PlanFacts.of(
            known,
            _settings(wish, given),
            _given_place(arguments),
            socket.gethostname(),
            arguments.stages,
        )
        words = PlanWords.of(facts)
    said = agree_on_plan([each for each, _ in told(world, (words, None), timeout)])
    plan, model = said[0].plan, arguments.stages
    if plan is None:
        plan = _chosen(comm, arguments, wish, given, why)
    elif wish.is_auto and world.rank == 0:
        print(f"plan='auto': as in {why}: {plan.headline}", flush=True)
    n_pipeline = _n_pipeline(comm, plan.replicas)
    _check_ranks(plan, model, comm)
    places = [_place(comm, rank, n_pipeline) for rank in range(world.size)]
    held: list[str | None] = [None] * n_pipeline
    for place, each in zip(places, said):
        held[place] = each.hold_in or held[place]
    # With 'auto' a dtype is where the plan narrows messages, not on all edges.
    besides = given._replace(message_dtype=None) if wish.is_auto else given
    found = put_together(plan, besides, held)
    if found.warning and world.rank == 0:
        warn_user(found.warning)
    grid = None
    if plan.replicas > 1 and not isinstance(comm, Grid):
        comm = grid = Grid.of(plan, world)
    elif isinstance(comm, Grid) and comm.shares is None:
        comm.shares = plan.shares
    place = _place(comm, world.rank, n_pipeline)
    with refusing(world):
        directory = directory_of(arguments.hold_in)
        stages = divided(model, found, place, directory)
    arguments = _options(arguments, found, stages, place)
    return Opening(arguments, comm, found.plan, grid, found.changes)


def _options(
    arguments: Arguments, found: InForce, stages: list[Divisible], place: int
) -> Arguments:
    """Returns the arguments of a rank, from the plan in force."""
    plan = found.plan
    hold_in = plan.hold_in[place]
    if hold_in == "disk":
        hold_in = arguments.hold_in or hold_in
    return arguments._replace(
        stages=stages,
        n_microbatches=plan.n_microbatches,
        schedule=found.schedule,
        recompute=plan.recompute,
        recomputed=plan.recomputed,
        fuse=found.fuse,
        weight_groups=found.weight_groups,
        overlap_minibatches=found.overlap_minibatches,
        stage_groups=plan.stage_groups,
        message_dtype=None,
        edge_dtypes=narrowed_pairs(plan.messages),
        hold_in=hold_in,
        hold_dtype=plan.hold_dtype,
    )


def _given_place(arguments: Arguments) -> str | None:
    """Returns the place that an argument gives instead of the plan, if it does.

    A directory only says where a plan's disk is.
    """
    hold_in = arguments.hold_in
    return None if directory_of(hold_in) is not None else hold_in


def _known(
    comm: Any, arguments: Arguments, wish: PlanWish, given: Given
) -> tuple[Plan | None, str]:
    """Returns this rank's plan, as far as it is known, before any message.

    Raises:
        OSError: If the file of the plan cannot be read.
        TypeError, ValueError: If it is not a plan, or an argument is wrong.
    """
    world = world_of(comm)
    _check_besides(arguments, wish, world.size)
    if isinstance(wish.plan, Plan):
        _check_ranks(wish.plan, arguments.stages, comm)
        return wish.plan, ""
    if not isinstance(wish.plan, (str, os.PathLike)):
        raise TypeError(
            f"plan must be a Plan, the name of a file, or 'auto', not"
            f" {type(wish.plan).__name__}"
        )
    if world.rank != 0:
        return None, ""
    if not wish.is_auto:
        plan = Plan.load(wish.plan)
        _check_ranks(plan, arguments.stages, comm)
        return plan, ""
    return known_plan(arguments.stages, world.size, wish.directory)


def _check_besides(arguments: Arguments, wish: PlanWish, n_ranks: int) -> None:
    """Refuses arguments before the layers are measured, rather than after."""
    completed = _completed(arguments)
    if arguments.n_microbatches is None and isinstance(completed.schedule, str):
        completed = completed._replace(n_microbatches=1)
    completed.checked()
    _check_used(wish)
    if not isinstance(wish.directory, (str, os.PathLike, type(None))):
        raise TypeError(
            f"directory must be a path, not {type(wish.directory).__name__}"
        )
    if wish.machine is not None and not isinstance(wish.machine, Machine):
        raise TypeError(f"machine must be a Machine, not {type(wish.machine).__name__}")
    if wish.machine is not None and wish.machine.ranks != n_ranks:
        raise ValueError(
            f"machine has {count(wish.machine.ranks, 'rank')}, but there are {n_ranks}:"
            f" give Machine(ranks={n_ranks}, ...)"
        )


def _check_used(wish: PlanWish) -> None:
    """Refuses arguments for ``'auto'`` with another plan, or without one."""
    unused = [name for name in wish._fields[1:] if getattr(wish, name) is not None]
    if unused and not wish.is_auto:
        are, them = ("is", "it") if len(unused) == 1 else ("are", "them")
        plan = "there is no plan" if wish.plan is None else f"the plan is {wish.kind}"
        raise ValueError(
            f"{', '.join(unused)} {are} for plan='auto', which measures and plans, but"
            f" {plan}: give plan='auto', or leave {them} out"
        )


def _settings(wish: PlanWish, given: Given) -> dict[str, str]:
    """Returns the arguments that must be equal on all ranks, as texts, by name."""
    return {
        "plan": wish.kind,
        "machine": str(wish.machine),
        **{name: str(value) for name, value in given._asdict().items()},
    }


def _check_ranks(plan: Plan, model: Divisible, comm: Any) -> None:
    """Refuses a plan for other ranks, or for another model."""
    plan.check(model, world_of(comm).size)
    if isinstance(comm, Grid) and comm.n_replicas != plan.replicas:
        raise ValueError(
            f"the plan {plan.cuts} has {count(plan.replicas, 'replica')}, but the grid"
            f" has {comm.n_replicas}: make it with Grid.of(plan, comm), or give the"
            f" communicator"
        )


def _n_pipeline(comm: Any, replicas: int = 1) -> int:
    """Returns the number of ranks in a pipeline, of a grid or a communicator."""
    if isinstance(comm, Grid):
        return comm.n_pipeline
    return world_of(comm).size // replicas


def _place(comm: Any, rank: int | None = None, n_pipeline: int | None = None) -> int:
    """Returns the number in its pipeline of a rank of all, by default of this one."""
    rank = world_of(comm).rank if rank is None else rank
    if isinstance(comm, Grid):
        return comm.place(rank)[1]
    return rank if n_pipeline is None else rank % n_pipeline


def _chosen(
    comm: Any, arguments: Arguments, wish: PlanWish, given: Given, why: str
) -> Plan:
    """Returns the plan that rank 0 chooses; all ranks must call it."""
    world = world_of(comm)
    machine, model = wish.machine, arguments.stages
    if machine is None:
        machine = find_machine(world, arguments.timeout)
        if model.device.xp is not np:
            # The memory found is that of hosts.
            machine = dataclasses.replace(machine, memory=None)
    if isinstance(comm, Grid):
        replicas = [comm.n_replicas]
    elif model.carried_states:
        # Layers carry states that belong to the samples of their replica.
        replicas = [1]
    else:
        replicas = [n for n in range(1, world.size + 1) if world.size % n == 0]

    def make(goes_on: Callable[[], None]) -> Chosen:
        chosen = choose(
            Wish(
                model,
                wish.x,
                wish.t,
                arguments.lossfun,
                given,
                machine,
                replicas,
                directory_of(arguments.hold_in),
                _may_overlap(arguments),
            ),
            goes_on,
        )
        return save(chosen, wish.directory)

    chosen = from_rank_0(world, make, arguments.timeout)
    if world.rank == 0:
        for line in filter(None, (why, *chosen.lines)):
            print(line, flush=True)
    return chosen.plan


def _may_overlap(arguments: Arguments) -> bool:
    """Returns whether minibatches may overlap, as far as known at the start."""
    model, is_wanted = arguments.stages, arguments.overlap_minibatches is not False
    scale = arguments.loss_scale
    if arguments.overlap_minibatches is True:
        # Updates are confirmed later.
        scale = None
    waits = waiting_features(model, scale)
    return is_wanted and not model.ties and not any(waits.values())
