"""Layers that come into a stage and go out of it, while the stage stays the object.

::

    stage    (0, 4)    a b c d                      the user's, with links a to d
    model              0 1 2 3 4 5    deferred      what a script builds
    other    (2, 6)        c d 4 5                  the links that stay, and new ones
    stage    (2, 6)        c d 4 5                  after `become`
"""

from __future__ import annotations

from chainer import Link

from divisible.model import Divisible

# What belongs to a stage and not to its layers.
_OWN = ("name", "_device", "_local_link_hooks", "_within_init_scope")


def entangled(model: Divisible) -> set[int]:
    """Returns the positions of layers that have something in common with others.

    A stage gets such a layer anew when others come or go: whether it shares the
    parameters of another layer, or has a copy, depends on where that one is.

    Args:
        model (Divisible): Undivided, or a stage of it.

    Example:
        >>> import chainer.links as L
        >>> model = Divisible(L.Linear(2, 2), L.Linear(3, 3), L.Linear(2, 2))
        >>> model.tie('/0/W', '/2/W')
        >>> entangled(model)
        {0, 2}
    """
    found = {
        position
        for each in (*model.ties, *model.shared_states)
        for position in each.positions
    }
    # One link in several places, which may keep whatever it likes.
    first, _ = model.layer_range
    places: dict[int, list[int]] = {}
    for position, layer in enumerate(model, first):
        if isinstance(layer, Link):
            places.setdefault(id(layer), []).append(position)
    return found.union(*(each for each in places.values() if each[1:]))


def new_layers(
    model: Divisible, stage: Divisible, layer_range: tuple[int, int]
) -> list[int]:
    """Returns the positions of the layers that a stage gets anew for another range.

    Args:
        model (Divisible): Undivided, equal to the one that ``stage`` is of.
        stage (Divisible): The layers that there are.
        layer_range: Those that there are to be.
    """
    (first, last), shared = stage.layer_range, entangled(model)
    return [i for i in range(*layer_range) if not first <= i < last or i in shared]


def different_stage(
    model: Divisible, stage: Divisible, layer_range: tuple[int, int]
) -> Divisible:
    """Returns a stage of other layers, with the very same layers where they stay.

    The :func:`new_layers` are made, with the weights they begin with. The stage is as
    it was.

    Args:
        model (Divisible): Undivided, equal to the one that ``stage`` is of. Its layers
            are replaced by those that stay.
        stage (Divisible): The layers that there are.
        layer_range: Those of the new stage.
    """
    first, _ = stage.layer_range
    staying = set(range(*layer_range)).difference(new_layers(model, stage, layer_range))
    model._replace_layers(
        stage[i - first] if i in staying else layer for i, layer in enumerate(model)
    )
    other = model.divide(*layer_range)
    # What left, and is used here all the same, is to be refused by its name.
    known = stage._undivided.elsewhere.params() if stage.is_stage else {}
    params = {**known, **dict(stage.namedparams())}
    other._undivided = other._undivided.seen_from(other, params)
    return other


def become(stage: Divisible, other: Divisible) -> None:
    """Gives a stage the layers of another one, and all that depends on them.

    Args:
        stage (Divisible): Stays the same object.
        other (Divisible): Not to be used any more.
    """
    for name, value in list(vars(stage).items()):
        if isinstance(value, Link):
            # An attribute beside the list, of a layer that may have left.
            del vars(stage)[name]
    vars(stage).update((k, v) for k, v in vars(other).items() if k not in _OWN)
