"""The skip connections of a stage, and the routes that their tensors take.

A stashed tensor with users in several stages takes one route to each of them. A route
begins in a stage that has the tensor: one of the same rank if there is one, or else
the nearest stage before. So each rank gets the tensor once::

    stages            0          1          2          3        of ranks 0, 1, 0, 1
    layers         stash('a')  pop('a')   pop('a')   pop('a')
    forward           |--- a --->|                                 a message
                      |------ a@2 ------->|                        none
                                 |------- a ------->|              none
    gradients         0 <------- 1 <------- 3,  0 <------- 2       added in each stage

A stage adds up the gradients of its own users, and then those of its routes, in the
order of their stages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Callable

from divisible import Divisible
from divisible.communication.signatures import Tensors
from divisible.schedules.actions import Route
from divisible.skips import Skip


def routes_of(
    skips: Iterable[Skip],
    stage_of: Callable[[int], int],
    stage_ranks: Sequence[int],
) -> list[tuple[str, Route]]:
    """Returns the routes of all skip connections between stages.

    Args:
        skips: The skip connections of the undivided model.
        stage_of: Returns the stage of a position.
        stage_ranks: For each stage its rank.

    Returns:
        For each route the name of its connection. A route has that name too, unless
        another one with it begins in the same stage.

    Example:
        >>> skips = [Skip("a", 0, 1), Skip("a", 0, 2), Skip("a", 0, 3)]
        >>> for name, route in routes_of(skips, int, [0, 1, 0, 1]):
        ...     print(name, *route)
        a a 0 1
        a a@2 0 2
        a a 1 3
    """
    skips = list(skips)
    taken = {skip.name for skip in skips}
    users: dict[str, list[int]] = {}
    for name, stashed, popped in skips:
        stages = users.setdefault(name, [stage_of(stashed)])
        if stage_of(popped) not in stages:
            stages.append(stage_of(popped))
    found: list[tuple[str, Route]] = []
    for name, (first, *others) in users.items():
        # The last stage of each rank that has the tensor.
        there = {stage_ranks[first]: first}
        begun: set[int] = set()
        before = first
        for stage in others:
            source = there.get(stage_ranks[stage], before)
            route = name
            if source in begun:
                route = f"{name}@{stage}"
                while route in taken:
                    route += "@"
            begun.add(source)
            found.append((name, Route(route, source, stage)))
            there[stage_ranks[stage]] = before = stage
    return found


def skips_across(
    layers: Divisible, leaving: Collection[str] | None = None, end: int | None = None
) -> tuple[list[str], dict[str, int]]:
    """Returns the skip connections that enter layers from before, and that leave them.

    A tensor may have several users. It enters layers that pop it. It leaves them again
    if a later layer of the stage pops it, or if it leaves the stage from here.

    Args:
        layers (Divisible): The layers.
        leaving: Names of the connections that leave the stage of the layers; by default
            all that a layer after the stage pops.
        end (int or None): Position after the last layer of the stage; by default that
            of the layers.

    Returns:
        The names of the entering ones; and of those that leave, by name, the positions
        of the layers that hand them over.
    """
    start, stop = layers.layer_range
    end = stop if end is None else end
    entering: dict[str, int] = {}
    handed_over: dict[str, int] = {}
    kept = set()
    for name, stashed, popped in layers.skips:
        if start <= stashed < stop:
            handed_over[name] = stashed
        elif stashed < start <= popped < stop:
            handed_over[name] = entering[name] = popped
        if popped >= stop and (popped < end or leaving is None or name in leaving):
            kept.add(name)
    return list(entering), {n: at for n, at in handed_over.items() if n in kept}


class StageSkips:
    """The names of a stage's skip connections, and those of its routes.

    Args:
        entering: By route into the stage, the name of its connection.
        leaving: By route out of the stage, the name of its connection, in the order of
            the stages at the other ends.

    Attributes:
        entering: The argument.
        leaving: The argument.
        names: Names of the connections that leave the stage.
    """

    def __init__(self, entering: Mapping[str, str], leaving: Mapping[str, str]) -> None:
        self.entering, self.leaving = entering, leaving
        self.names = frozenset(leaving.values())

    @classmethod
    def alone(cls, layers: Divisible) -> StageSkips:
        """Returns those of a stage whose connections go straight to their next user."""
        entering, leaving = skips_across(layers)
        return cls(dict(zip(entering, entering)), {name: name for name in leaving})

    @classmethod
    def on(cls, number: int, routes: Iterable[tuple[str, Route]]) -> StageSkips:
        """Returns those of a stage.

        Args:
            number (int): Number of the stage.
            routes: The routes of the model; see :func:`routes_of`.
        """
        routes = list(routes)
        return cls(
            {route.name: name for name, route in routes if route.target == number},
            {route.name: name for name, route in routes if route.source == number},
        )

    def taken(self, tensors: Mapping[str, Tensors]) -> dict[str, Tensors]:
        """Returns tensors that came over routes, by the names of connections."""
        return {self.entering[route]: each for route, each in tensors.items()}

    def handed_over(self, tensors: Mapping[str, Tensors]) -> dict[str, Tensors]:
        """Returns tensors of connections, by the routes that they take."""
        return {route: tensors[name] for route, name in self.leaving.items()}

    def added_up(self, gradients: Mapping[str, Tensors]) -> dict[str, Tensors]:
        """Returns gradients that came back over routes, added up by connection."""
        found: dict[str, Tensors] = {}
        for route, name in self.leaving.items():
            given = gradients[route]
            found[name] = _sum(found[name], given) if name in found else given
        return found

    def returned(self, gradients: Mapping[str, Tensors]) -> dict[str, Tensors]:
        """Returns gradients of connections, by the routes that they go back."""
        return {route: gradients[name] for route, name in self.entering.items()}


def _sum(first: Tensors, second: Tensors) -> Tensors:
    return tuple(
        one._replace(array=_added(one.array, other.array))
        for one, other in zip(first, second)
    )


def _added(first: Any, second: Any) -> Any:
    """Returns a new array: those of messages are used again."""
    if first is None or second is None:
        return second if first is None else first
    return first + second
