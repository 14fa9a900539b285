"""The undivided model, as far as a stage that was cut from it knows it.

A stage has a part of the layers. Of the others it knows what reaches into its own, and
keeps none of them alive::

    position     0     1     2     3     4
    undivided    a     b     c     d     e      a line of text for each, skips, ties
    stage              b     c     d            own layers
    elsewhere    W                       W      parameters by path, while they live
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from chainer import Link, Parameter

from divisible.skips import Skip
from divisible.ties import SharedState, Tie


class Elsewhere:
    """Parameters of other stages, as far as something on this rank holds them.

    A loss, say, may use a parameter of a layer that is in no stage here: its gradient
    would be lost, so a pipeline refuses it by its path. In a file there are none.

    Args:
        params: Parameters by their paths in the undivided model.
        own: Those that the stage has, which are left out.

    Example:
        >>> a, b = Parameter(), Parameter()
        >>> elsewhere = Elsewhere({'/0/W': a, '/1/W': b}, own=[b])
        >>> elsewhere.path_of(a), elsewhere.path_of(b)
        ('/0/W', None)
    """

    def __init__(
        self,
        params: Mapping[str, Parameter],
        own: Iterable[Parameter] = (),
    ) -> None:
        ids = {id(param) for param in own}
        others = {path: param for path, param in params.items() if id(param) not in ids}
        self._params = weakref.WeakValueDictionary(others)

    def path_of(self, param: Parameter) -> str | None:
        """Returns the path of a parameter if it is one of these."""
        paths = (path for path, other in self._params.items() if other is param)
        return next(paths, None)

    def params(self) -> dict[str, Parameter]:
        """Returns by their paths those that there still are."""
        return dict(self._params)

    def __deepcopy__(self, memo: dict) -> Elsewhere:
        # A copied stage still has to know the very parameters that others have.
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Weak references cannot be pickled; elsewhere they would point to nothing.
        return Elsewhere, ({},)


def first_difference(here: Any, there: Any) -> str | None:
    """Returns the name of what the layers of two models share differently.

    Args:
        here: A model, a stage, or what else knows skips, ties and shared states.
        there: The other one.

    Example:
        >>> a = Undivided(('relu',), (), (), (), ())
        >>> first_difference(a, a), first_difference(a, a._replace(ties=('tie',)))
        (None, 'ties')
    """
    names = ("skips", "ties", "shared_states")
    return next((n for n in names if getattr(here, n) != getattr(there, n)), None)


class Undivided(NamedTuple):
    """The undivided model, as a stage or a view of it knows it.

    Attributes:
        layers: A line of text for each layer.
        skips: Its skip connections.
        ties: The parameters that several layers use.
        shared_states: What else several layers have in common.
        carried_states: The paths of links that carry a state between minibatches.
        elsewhere: The parameters of other stages.
    """

    layers: tuple[str, ...]
    skips: tuple[Skip, ...]
    ties: tuple[Tie, ...]
    shared_states: tuple[SharedState, ...]
    carried_states: tuple[str, ...]
    elsewhere: Elsewhere = Elsewhere({})

    def ties_before(self, start: int, end: int) -> list[Tie]:
        """Returns the ties between some layers and layers before them.

        Args:
            start (int): The position of the first of the layers.
            end (int): The position after the last one.
        """
        return [
            tie
            for tie in self.ties
            if tie.positions[0] < start
            and any(start <= position < end for position in tie.positions)
        ]

    def seen_from(self, stage: Link, params: Mapping[str, Parameter]) -> Undivided:
        """Returns what a stage knows that has some of the parameters, and no others.

        Args:
            stage: Has its own.
            params: Of the model, by their paths.
        """
        return self._replace(elsewhere=Elsewhere(params, stage.params()))
