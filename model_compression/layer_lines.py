"""Descriptions of lists of layers, for all ranks, which follow channels along them.

A line is a :class:`chainer.Sequential` or a list of layers like it; lists within it are
parts of the line. A rank of a pipeline knows a part of a line; the descriptions of all
ranks together make the whole.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import chainer
import chainer.links as L

#: Functions that treat each channel for itself and map zeros to zeros.
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
# Modules whose forwards and functions are known to compute what their names say.
_KNOWN = ("chainer.", "chainer_kernels.", "divisible.", "model_compression.")
WEIGHTED, NORMALIZING, KEEPING, OTHER = "weighted", "normalizing", "keeping", "other"


class Note(NamedTuple):
    """A layer of a line.

    Attributes:
        kind: Effect on channels: ``'weighted'`` mixes them, ``'normalizing'`` treats
            each for itself, with parameters, ``'keeping'`` without, and ``'other'`` is
            unknown.
        text: Description of the layer, for errors.
        weight: Path of the weight of a weighted layer.
        parameters: Paths of other parameters with an element for each output channel.
        n_in: Number of channels, or elements, that a weighted layer reads.
        n_out: Number of channels that a weighted layer outputs.
        is_flat: Whether a weighted layer reads elements, not channels.
        link: Path of the link, by which a link at two places is recognized.
        mixed: Paths of the weights of a layer of the kind ``'other'``.
        n_dims: Number of dimensions of a weighted layer's outputs.
        axes: Axes over which a normalizing layer computes its statistics; ``None`` for
            all but the axis of the channels.
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
    n_dims: int = 0
    axes: tuple[int, ...] | None = None


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
    lines = [link for link in model.links() if _is_line(link)]
    inside = {id(link) for line in lines for link in line.links(skipself=True)}
    found = {}
    for line in lines:
        if id(line) not in inside:
            # Stages that are one target of an optimizer have the path of the model.
            path = paths.get(id(line), "/").rstrip("/")
            for place, layer in _places(line):
                found[path, place] = _note(layer, paths, of_params)
    return found


def _is_line(layer: Any) -> bool:
    """Returns whether a layer only passes its input through a list of layers."""
    return isinstance(layer, chainer.Sequential) and not _oddity(layer)


def _places(
    line: Any, before: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], Any]]:
    # A stage has its first position in the model.
    first = getattr(line, "layer_range", (0,))[0]
    for position, layer in enumerate(line, first):
        place = (*before, position)
        if _is_line(layer):
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
    mixed, odd = tuple(own.values()), _oddity(layer)
    if odd:
        return Note(OTHER, f"{text} with {odd}", link=path, mixed=mixed)
    others = tuple(own[name] for name in sorted(own) if name != "W")
    if isinstance(layer, L.BatchNormalization):
        # A renormalization has an axis that it does not use.
        is_plain = not isinstance(layer, L.BatchRenormalization)
        axes = layer.axis if is_plain else None
        axes = None if axes is None else tuple(axes)
        return Note(NORMALIZING, text, None, others, link=path, axes=axes)
    is_flat = isinstance(layer, L.Linear)
    kinds = (L.Convolution1D, L.Convolution2D, L.Convolution3D, L.ConvolutionND)
    if not is_flat and not isinstance(layer, kinds):
        return Note(OTHER, text, link=path, mixed=mixed)
    if layer.W.array is None:
        return Note(OTHER, f"{text} without a shape yet", link=path, mixed=mixed)
    if getattr(layer, "groups", 1) != 1:
        return Note(OTHER, f"{text} with groups", link=path, mixed=mixed)
    n_out, n_in = layer.W.shape[:2]
    weighted = Note(WEIGHTED, text, own["W"], others, n_in, n_out, is_flat, path)
    return weighted._replace(n_dims=layer.W.ndim)


def _oddity(layer: chainer.Link) -> str:
    """Returns why a link may compute otherwise than its class; "" if it does not."""
    for kind in type(layer).__mro__:
        for name in ("forward", "__call__"):
            if name in vars(kind) and not _is_known(vars(kind)[name]):
                return f"a {name} of its own"
    for hook in (layer._local_link_hooks or {}).values():
        # Other hooks may change the weights, as spectral normalization does.
        if not isinstance(hook, chainer.link_hooks.TimerHook):
            return f"a {type(hook).__name__} hook"
    return ""


def _is_known(function: Any) -> bool:
    """Returns whether a function is Chainer's, or one of ours that replaces it."""
    module = getattr(function, "__module__", None) or ""
    return module.startswith(_KNOWN)


def _note_of_function(layer: Any) -> Note:
    function = layer
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    is_keeping = name in KEEP_ZEROS and _is_known(function)
    return Note(KEEPING if is_keeping else OTHER, name)
