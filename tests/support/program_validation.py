"""Proves that lowered programs finish, whatever their sends and receives wait for.

:func:`~divisible.schedules.lowering.lower` makes programs that do, as tests show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from divisible.schedules.actions import (
    Action,
    Operation,
    Route,
    ScheduleError,
    Transfer,
)

# How many of the ranks that wait for ever an error shows.
_SHOWN_RANKS = 16


class _Result(NamedTuple):
    stage: int
    is_forward: bool
    microbatch: int
    # What came over a skip connection; nothing for the neighbour's result.
    skip: str | None = ""


#: What was computed on the rank itself, skips included.
_ALL = None


def check_programs(
    programs: Sequence[Sequence[Operation]], routes: Sequence[Route] = ()
) -> None:
    """Proves that lowered programs finish when every send and receive blocks.

    A send waits until the receiver has come to the matching receive, and the other
    way round (``MPI_Ssend``); messages between two ranks match in order. A rank
    computes only what it has the input for, and sends only what it has computed.

    Args:
        programs: For each rank its operations, such as `divisible.schedules.lowering.lower`
            returns them.
        routes: The skip connections between stages.

    Raises:
        ScheduleError: If a rank waits for ever, meets another message than the one
            it expects, or lacks an input; with ranks and operations.

    Example:
        >>> from divisible.schedules.actions import parse_operation
        >>> def check(*lines):
        ...     check_programs([[parse_operation(t) for t in x.split()] for x in lines])
        >>> check("0F0 0F0>1 1B0<1 0B0", "0F0<0 1F0 1B0 1B0>0")
        >>> check("0F0 1B0<1 0F0>1 0B0", "0F0<0 1F0 1B0 1B0>0")
        Traceback (most recent call last):
            ...
        divisible.schedules.actions.ScheduleError: deadlock: 2 of 2 ranks stop for ever when sends and receives block:
          rank 0 waits in 1B0<1
          rank 1 waits in 0F0<0
    """  # noqa: E501
    last = max(
        (op.stage for ops in programs for op in ops if isinstance(op, Action)),
        default=0,
    )
    cursor = [0] * len(programs)
    # What each rank has computed or received; the halves of a backward count as one.
    results: list[set[_Result]] = [set() for _ in programs]
    awake = list(range(len(programs)))
    while awake:
        rank = awake.pop()
        program = programs[rank]
        while cursor[rank] < len(program):
            operation = program[cursor[rank]]
            if isinstance(operation, Action):
                _compute(operation, results[rank], last, rank, routes)
                cursor[rank] += 1
                continue
            peer = operation.peer
            if not 0 <= peer < len(programs) or peer == rank:
                raise ScheduleError(
                    f"rank {rank}: {operation} names rank {peer} as its peer; there "
                    f"are ranks 0 to {len(programs) - 1} and none talks to itself"
                )
            if cursor[peer] >= len(programs[peer]):
                break
            other = programs[peer][cursor[peer]]
            if (
                not isinstance(other, Transfer)
                or other.peer != rank
                or other.direction == operation.direction
            ):
                break
            if other[::3] != operation[::3]:
                raise ScheduleError(
                    f"rank {rank} is in {operation} while rank {peer} is in {other}: "
                    "the messages between two ranks must have one order on both"
                )
            result = _result(operation.action)
            sender = rank if operation.direction == "send" else peer
            if result._replace(skip=_ALL) not in results[sender]:
                raise ScheduleError(
                    f"rank {sender} sends the result of {operation.action} before it "
                    "has computed it"
                )
            receiver = peer if sender == rank else rank
            results[receiver].add(result._replace(skip=operation.skip))
            for both in (rank, peer):
                cursor[both] += 1
            awake.append(peer)
    stopped = [rank for rank, ops in enumerate(programs) if cursor[rank] < len(ops)]
    if stopped:
        waits = "\n  ".join(
            f"rank {rank} waits in {programs[rank][cursor[rank]]}"
            for rank in stopped[:_SHOWN_RANKS]
        )
        raise ScheduleError(
            f"deadlock: {len(stopped)} of {len(programs)} ranks stop for ever when "
            f"sends and receives block:\n  {waits}"
        )


def _result(action: Action) -> _Result:
    return _Result(action.stage, action.kind == "F", action.microbatch, _ALL)


def _compute(
    action: Action,
    results: set[_Result],
    last: int,
    rank: int,
    routes: Sequence[Route],
) -> None:
    """Checks an action's inputs on its rank and adds its results."""
    each = [action._replace(microbatch=i) for i in action.microbatches]
    for one in each:
        _check_inputs(one, results, last, rank, routes)
    if action.kind != "R":
        results.update(map(_result, each))


def _check_inputs(
    action: Action,
    results: set[_Result],
    last: int,
    rank: int,
    routes: Sequence[Route],
) -> None:
    stage, kind, microbatch = action
    inputs = []
    if kind == "F":
        inputs = [
            _Result(route.source, True, microbatch, route.name)
            for route in routes
            if route.target == stage
        ]
        if stage > 0:
            inputs.append(_Result(stage - 1, True, microbatch))
    elif kind == "R":
        inputs.append(_Result(stage, True, microbatch, _ALL))
    elif kind == "W":
        inputs.append(_Result(stage, False, microbatch, _ALL))
    else:
        inputs = [
            _Result(route.target, False, microbatch, route.name)
            for route in routes
            if route.source == stage
        ]
        inputs.append(_Result(stage, True, microbatch, _ALL))
        if stage < last:
            inputs.append(_Result(stage + 1, False, microbatch))
    for needed in inputs:
        if not {needed, needed._replace(skip=_ALL)} & results:
            name = f"{needed.stage}{'F' if needed.is_forward else 'B (or I)'}"
            if needed.skip:
                name += f" under the name {needed.skip!r}"
            raise ScheduleError(
                f"rank {rank}: {action} runs before the rank has the result of "
                f"{name} of microbatch {microbatch}"
            )
