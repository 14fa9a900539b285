"""The undivided model, as far as a stage that was cut from it needs it.

A stage has a part of the layers. It stores only data of the other layers that its own
layers need, and keeps no other layer alive::

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
    """Parameters of other stages, as long as something on this rank holds them.

    A loss, for example, may use a parameter of a layer that is in no stage here. The
    gradient would be lost, so a pipeline refuses the parameter by its path. Copies of
    this object in files are empty.

    Args:
        params: Parameters by their paths in the undivided model.
        own: Parameters of the stage, which are left out.

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
        """Returns the path of a parameter of another stage; otherwise ``None``."""
        paths = (path for path, other in self._params.items() if other is param)
        return next(paths, None)

    def params(self) -> dict[str, Parameter]:
        """Returns the parameters that still exist, by path."""
        return dict(self._params)

    def __deepcopy__(self, memo: dict) -> Elsewhere:
        # A copied stage still has to recognize the original parameters.
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Weak references cannot be pickled, and elsewhere would point to nothing.
        return Elsewhere, ({},)


def first_difference(here: Any, there: Any) -> str | None:
    """Returns the first kind of sharing between layers in which two models differ.

    Args:
        here: A model, a stage, or another object with skips, ties and shared states.
        there: The other model.

    Example:
        >>> a = Undivided(('relu',), (), (), (), ())
        >>> first_difference(a, a), first_difference(a, a._replace(ties=('tie',)))
        (None, 'ties')
    """
    names = ("skips", "ties", "shared_states")
    return next((n for n in names if getattr(here, n) != getattr(there, n)), None)


class Undivided(NamedTuple):
    """The undivided model, as a stage or a view of it needs it.

    Attributes:
        layers: A line of text for each layer.
        skips: The skip connections.
        ties: The parameters that several layers use.
        shared_states: The states that several layers share and stages cannot share.
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
        """Returns the ties of some layers with layers before them.

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
        """Returns this data for a stage that has some of the parameters.

        Args:
            stage: The stage with its parameters.
            params: Parameters of the model, by their paths.
        """
        return self._replace(elsewhere=Elsewhere(params, stage.params()))
