"""Layers that move into a stage and out of it, while the stage stays the same object.

::

    stage    (0, 4)    a b c d                      the user's, with links a to d
    model              0 1 2 3 4 5    deferred      what a script builds
    other    (2, 6)        c d 4 5                  the links that stay, and new ones
    stage    (2, 6)        c d 4 5                  after `become`
"""

from __future__ import annotations

from chainer import Link

from divisible.model import Divisible

# Attributes of a stage that do not belong to its layers.
_OWN = ("name", "_device", "_local_link_hooks", "_within_init_scope")


def entangled(model: Divisible) -> set[int]:
    """Returns the positions of layers that share parameters or state with others.

    A stage gets a new object for such a layer when other layers move. Where the others
    are decides whether the layer shares their parameters or has a copy.

    Args:
        model (Divisible): An undivided model, or a stage.

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
    # One link at several positions may have any state.
    first, _ = model.layer_range
    places: dict[int, list[int]] = {}
    for position, layer in enumerate(model, first):
        if isinstance(layer, Link):
            places.setdefault(id(layer), []).append(position)
    return found.union(*(each for each in places.values() if each[1:]))


def new_layers(
    model: Divisible, stage: Divisible, layer_range: tuple[int, int]
) -> list[int]:
    """Returns the positions of layers for which a stage gets new objects.

    Args:
        model (Divisible): An undivided model, equal to the one of ``stage``.
        stage (Divisible): The stage with its present layers.
        layer_range: Positions of the layers that the stage is to have.
    """
    (first, last), shared = stage.layer_range, entangled(model)
    return [i for i in range(*layer_range) if not first <= i < last or i in shared]


def different_stage(
    model: Divisible, stage: Divisible, layer_range: tuple[int, int]
) -> Divisible:
    """Returns a stage of other layers, which keeps the objects of layers that stay.

    The :func:`new_layers` are made with their initial weights. The given stage is
    unchanged.

    Args:
        model (Divisible): An undivided model, equal to the one of ``stage``. Its layers
            are replaced by those that stay.
        stage (Divisible): The stage with its present layers.
        layer_range: Positions of the layers of the new stage.
    """
    first, _ = stage.layer_range
    staying = set(range(*layer_range)).difference(new_layers(model, stage, layer_range))
    model._replace_layers(
        stage[i - first] if i in staying else layer for i, layer in enumerate(model)
    )
    other = model.divide(*layer_range)
    # Parameters that have left, but are still used, are to be refused by their paths.
    known = stage._undivided.elsewhere.params() if stage.is_stage else {}
    params = {**known, **dict(stage.namedparams())}
    other._undivided = other._undivided.seen_from(other, params)
    return other


def become(stage: Divisible, other: Divisible) -> None:
    """Gives a stage the layers of another stage, with all that depends on them.

    Args:
        stage (Divisible): The stage, which stays the same object.
        other (Divisible): The other stage, which must not be used any more.
    """
    for name, value in list(vars(stage).items()):
        if isinstance(value, Link):
            # The attribute may be a layer that has left.
            del vars(stage)[name]
    vars(stage).update((k, v) for k, v in vars(other).items() if k not in _OWN)
