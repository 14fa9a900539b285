"""Moves of hidden units from rank to rank, with their optimizer states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import chainer
from chainer.backends import cuda

from divisible.communication.waiting import kept_at_errors
from heterogeneous.messages import UNITS, Messages, Pending
from heterogeneous.moved_units import Transfer, between, overlap
from heterogeneous.partition import RectangularPartition
from heterogeneous.units import Block, shape_of


class MappingState(NamedTuple):
    """An array that an update rule keeps for each element of a parameter.

    Attributes:
        name: Name that the rule gives to the array, such as ``'v'``.
        of: Name of the parameter.
        rule: The update rule.
    """

    name: str
    of: str
    rule: chainer.UpdateRule

    @property
    def array(self) -> Any:
        """The present array."""
        return self.rule.state[self.name]


def states_of(link: chainer.Link, names: Sequence[str]) -> list[MappingState]:
    """Returns the states of parameters' update rules, in the same order on all ranks.

    Args:
        link: Link with the parameters.
        names: Names of the parameters that are divided among ranks.

    Raises:
        ValueError: If a rule keeps an array that does not have the parameter's shape,
            and so cannot be divided by hidden units.
    """
    found = []
    for name in names:
        param = getattr(link, name)
        rule = param.update_rule
        state = {} if rule is None or rule.state is None else rule.state
        for key in sorted(state):
            value = state[key]
            if not isinstance(value, chainer.get_array_types()) or not value.ndim:
                continue
            if value.shape != param.shape or value.dtype != param.dtype:
                raise ValueError(
                    f"{type(rule).__name__} keeps {key!r} of {name}, {value.dtype} of"
                    f" shape {value.shape}, not {param.dtype} of {param.shape}: it"
                    f" cannot be divided by hidden units. Use another optimizer"
                )
            found.append(MappingState(key, name, rule))
    return found


def remap(
    messages: Messages,
    moves: Sequence[Transfer],
    before: tuple[int, int],
    after: tuple[int, int],
    parameters: Sequence[tuple[chainer.Parameter, str]],
    states: Sequence[MappingState],
) -> None:
    """Gives each rank the units of another partition.

    Args:
        messages: Messages of this rank.
        moves: Transfers of all ranks.
        before: First of this rank's units, and the one after the last.
        after: First of this rank's units after the remapping, and the one after the
            last.
        parameters: Parameters of the network, with their names.
        states: States of the parameters' update rules.
    """
    names = [*(name for _, name in parameters), *(state.of for state in states)]
    old = [*(param.array for param, _ in parameters), *(each.array for each in states)]
    new = _resized(names, old, after[1] - after[0])
    source, target = Block(names, old, before[0]), Block(names, new, after[0])
    target.copy(source, *overlap(before, after))
    move(messages, moves, source, target)
    for (param, _), array in zip(parameters, new):
        param.cleargrad()
        param.array = array
    for state, array in zip(states, new[len(parameters) :]):
        state.rule.state[state.name] = array


def gathered(
    messages: Messages,
    partition: RectangularPartition,
    names: Sequence[str],
    arrays: Sequence[Any],
) -> list[Any]:
    """Returns arrays of all hidden units, on every rank.

    Args:
        messages: Messages of this rank.
        partition: Partition of the ranks.
        names: Names of the parameters.
        arrays: Arrays of this rank's units.
    """
    everything = (0, partition.m)
    own = partition.rectangles[messages.rank].units
    new = _resized(names, arrays, partition.m)
    source, target = Block(names, arrays, own[0]), Block(names, new, 0)
    target.copy(source, *own)
    moves = between(partition, [everything] * partition.n_processors)
    move(messages, moves, source, target)
    return new


def move(
    messages: Messages, moves: Sequence[Transfer], source: Block, target: Block
) -> None:
    """Sends and receives hidden units.

    Args:
        messages: Messages of this rank.
        moves: Transfers of all ranks, in the same order on all.
        source: Units that this rank has.
        target: Units that this rank gets.
    """
    me = messages.rank
    pending: list[Pending] = []
    with kept_at_errors(pending):
        arriving = [each for each in moves if each.target == me]
        received = [
            messages.receive(each.source, target.empty(*each[2:]), UNITS)
            for each in arriving
        ]
        pending += received
        for each in moves:
            if each.source == me:
                block = source.pack(each.start, each.stop)
                pending.append(messages.send(each.target, block, UNITS))
        messages.wait(pending)
    for each, (_, _, _, block) in zip(arriving, received):
        target.unpack(block, each.start, each.stop)


def _resized(names: Sequence[str], arrays: Sequence[Any], n_units: int) -> list[Any]:
    """Returns arrays without values, for another number of units."""
    found = []
    for name, array in zip(names, arrays):
        xp: Any = cuda.get_array_module(array)
        found.append(xp.empty(shape_of(name, array, n_units), array.dtype))
    return found
