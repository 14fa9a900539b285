"""Lists of layers, as all ranks are told of them to follow channels along them.

A line is a :class:`chainer.Sequential` or a list of layers like it, with the lists that
are in it in their places. A rank of a pipeline knows a part of a line; the notes of all
ranks together make the whole.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import chainer
import chainer.links as L

#: Functions that treat each channel for itself and leave one of zeros as it is.
KEEP_ZEROS = frozenset(
    {
        "clipped_relu",
        "dropout",
        "elu",
        "leaky_relu",
        "relu",
        "relu6",
        "resize_images",
        "selu",
        "tanh",
        "unpooling_2d",
        *(
            f"{kind}_pooling_{size}d"
            for kind in ("average", "max")
            for size in (1, 2, 3, "n")
        ),
    }
)
WEIGHTED, NORMALIZING, KEEPING, OTHER = "weighted", "normalizing", "keeping", "other"


class Note(NamedTuple):
    """A layer of a line.

    Attributes:
        kind: What it does to channels: ``'weighted'`` mixes them, ``'normalizing'``
            treats each for itself, with parameters, ``'keeping'`` without, and of
            ``'other'`` nothing is known.
        text: What it is, for errors.
        weight: The path of the weight, of a weighted layer.
        parameters: The paths of what else it has for each channel that it gives.
        n_in: How many channels, or elements, a weighted layer reads.
        n_out: How many it gives.
        is_flat: Whether a weighted layer reads elements, not channels.
        link: The path of the link, so that one at two places is known.
        mixed: The paths of the weights of a layer of which nothing is known.
    """

    kind: str
    text: str
    weight: str | None = None
    parameters: tuple[str, ...] = ()
    n_in: int = 0
    n_out: int = 0
    is_flat: bool = False
    link: str | None = None
    mixed: tuple[str, ...] = ()


#: The path of a line, and the place in it.
Place = tuple[str, tuple[int, ...]]


def notes(model: chainer.Link) -> dict[Place, Note]:
    """Returns the layers of all lines of a model or of a stage, by line and place.

    Example:
        >>> import chainer.functions as F
        >>> model = chainer.Sequential(L.Linear(4, 3), F.relu)
        >>> [note.kind for note in notes(model).values()]
        ['weighted', 'keeping']
    """
    paths = {id(link): path for path, link in model.namedlinks()}
    of_params = {id(param): path for path, param in model.namedparams()}
    inside = {
        id(link)
        for line in model.links()
        if isinstance(line, chainer.Sequential)
        for link in line.links(skipself=True)
    }
    found = {}
    for path, line in model.namedlinks():
        if isinstance(line, chainer.Sequential) and id(line) not in inside:
            for place, layer in _places(line):
                found[path.rstrip("/"), place] = _note(layer, paths, of_params)
    return found


def _places(
    line: Any, before: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], Any]]:
    # A stage knows where in the model it begins.
    first = getattr(line, "layer_range", (0,))[0]
    for position, layer in enumerate(line, first):
        place = (*before, position)
        if isinstance(layer, chainer.Sequential):
            yield from _places(layer, place)
        else:
            yield place, layer


def _note(layer: Any, paths: Mapping[int, str], of_params: Mapping[int, str]) -> Note:
    if not isinstance(layer, chainer.Link):
        return _note_of_function(layer)
    path, text = paths[id(layer)], type(layer).__name__
    own = {
        name: of_params.get(id(vars(layer)[name]), f"{path}/{name}")
        for name in layer._params
    }
    others = tuple(own[name] for name in sorted(own) if name != "W")
    if isinstance(layer, L.BatchNormalization):
        # By default, and as given: over all axes but that of the channels.
        is_each = layer.axis is None or tuple(layer.axis) in ((0,), (0, 2, 3))
        kind = NORMALIZING if is_each else OTHER
        return Note(kind, text, None, others, link=path)
    is_flat = isinstance(layer, L.Linear)
    kinds = (L.Convolution1D, L.Convolution2D, L.Convolution3D, L.ConvolutionND)
    mixed = tuple(own.values())
    if not is_flat and not isinstance(layer, kinds):
        return Note(OTHER, text, link=path, mixed=mixed)
    if layer.W.array is None:
        return Note(OTHER, f"{text} without a shape yet", link=path, mixed=mixed)
    if getattr(layer, "groups", 1) != 1:
        return Note(OTHER, f"{text} with groups", link=path, mixed=mixed)
    n_out, n_in = layer.W.shape[:2]
    return Note(WEIGHTED, text, own["W"], others, n_in, n_out, is_flat, path)


def _note_of_function(layer: Any) -> Note:
    function = layer
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    module = getattr(function, "__module__", None) or ""
    is_known = name in KEEP_ZEROS and module.startswith(("chainer.", "chainer_kernels"))
    return Note(KEEPING if is_known else OTHER, name)
