"""Layers that a rule names, and their weights.

A layer is a link with parameters of two or more dimensions, its weights. A layer is
known by its path in the model, which is the same on every rank of a pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import chainer

_PATTERN = "*?["
#: Classes whose weights have inputs along the first axis, and outputs along the second.
_INPUTS_FIRST = frozenset({"Deconvolution2D", "DeconvolutionND"})
#: Classes whose first axis is not the outputs; a depthwise convolution has a part of
#: each input's outputs there.
_NO_ROWS = _INPUTS_FIRST | {"DepthwiseConvolution2D"}


class Weighted(NamedTuple):
    """A layer that has weights, in the form that all ranks exchange.

    Attributes:
        kinds: Names of the layer's class and of its base classes.
        weights: Paths and shapes of the layer's weights. Where several layers use one
            weight, the path is that of the first layer.
        unsized: Paths of parameters that have no shape yet.
    """

    kinds: tuple[str, ...]
    weights: Mapping[str, tuple[int, ...]]
    unsized: tuple[str, ...]


def weighted_layers(model: chainer.Link) -> dict[str, Weighted]:
    """Returns the layers of a model, or of a stage, by their paths.

    Example:
        >>> import chainer.links as L
        >>> model = chainer.Sequential(L.Linear(4, 3), L.BatchNormalization(3))
        >>> weighted_layers(model)["/0"].weights
        {'/0/W': (3, 4)}
    """
    paths = {id(param): path for path, param in model.namedparams()}
    found = {}
    for path, link in model.namedlinks():
        weights, unsized = {}, []
        for name in sorted(link._params):
            param = vars(link)[name]
            # A parameter that a stage shares has a path that is not its link's.
            known = paths.get(id(param), f"{path.rstrip('/')}/{name}")
            if param.array is None:
                unsized.append(known)
            elif param.ndim >= 2 and param.dtype.kind == "f":
                weights[known] = tuple(param.shape)
        if weights or unsized:
            found[path] = Weighted(kinds_of(link), weights, tuple(unsized))
    return found


def kinds_of(link: chainer.Link) -> tuple[str, ...]:
    """Returns the names of the class of a link and of its base classes."""
    kinds = [kind.__name__ for kind in type(link).__mro__]
    # A link without a class of its own, as in NStepLSTM, has the name of the base
    # class.
    return tuple(kinds[: kinds.index("Link")]) or ("Link",)


def output_axis(kinds: Sequence[str]) -> int:
    """Returns the axis of a weight that stands for the outputs.

    Example:
        >>> output_axis(("Linear",)), output_axis(("Deconvolution2D",))
        (0, 1)
    """
    return 1 if _INPUTS_FIRST & {*kinds} else 0


def check_rows(
    chosen: Sequence[str], layers: Mapping[str, Weighted], granularity: Any, rule: str
) -> None:
    """Refuses to prune rows of weights whose rows are not outputs.

    Raises:
        ValueError: If a layer has such weights; the message names the layer.
    """
    for path in chosen if granularity == "row" else ():
        if _NO_ROWS & {*layers[path].kinds}:
            raise ValueError(
                f"{rule}: {path} is {layers[path].kinds[0]}, whose weights have no row"
                f" for each output: give it granularity='element' or a block, or leave"
                f" it out"
            )


def together(of_ranks: Iterable[Mapping[str, Weighted]]) -> dict[str, Weighted]:
    """Returns the layers of all ranks."""
    return {path: layer for layers in of_ranks for path, layer in layers.items()}


def matching(
    entries: Sequence[str],
    layers: Mapping[str, Weighted],
    rule: str,
    is_part: bool = False,
) -> list[str]:
    """Returns the paths of the layers that a rule names, made or not.

    Args:
        entries: Entries of the rule, in the form of :class:`~model_compression.Prune`.
        layers: Layers of the whole model.
        rule: Text of the rule, for errors.
        is_part: Whether there are more layers elsewhere.

    Raises:
        ValueError: If an entry names no layer.
    """
    found: dict[str, None] = {}
    for entry in entries:
        chosen = [path for path in layers if _means(entry, path, layers[path])]
        if not chosen and not is_part:
            known = ", ".join(list(layers)[:12]) or "none"
            more = f" and {len(layers) - 12} more" if len(layers) > 12 else ""
            what = "pattern" if any(c in entry for c in _PATTERN) else "layer"
            raise ValueError(
                f"{rule}: the {what} {entry!r} means no layer with weights; those of"
                f" this model are {known}{more}"
            )
        found.update(dict.fromkeys(chosen))
    return list(found)


def select(
    entries: Sequence[str],
    layers: Mapping[str, Weighted],
    rule: str,
    is_part: bool = False,
) -> list[str]:
    """Returns the paths of layers with weights that a rule names, see :func:`matching`.

    Raises:
        ValueError: If an entry names no layer, or a layer that has no shape yet.
    """
    found = matching(entries, layers, rule, is_part)
    for path in found:
        if layers[path].unsized:
            raise ValueError(
                f"{rule}: {', '.join(layers[path].unsized)} has no shape before the"
                f" first minibatch: give {path} its sizes, or call the model once"
            )
    return [path for path in found if layers[path].weights]


def _means(entry: str, path: str, layer: Weighted) -> bool:
    if any(character in entry for character in _PATTERN):
        return fnmatchcase(path, entry)
    # A path of a chain stands for all layers in it.
    below = entry.rstrip("/") + "/"
    return entry in layer.kinds or path == entry or f"{path}/".startswith(below)


def weights_of(
    chosen: Sequence[str], layers: Mapping[str, Weighted]
) -> dict[str, tuple[int, ...]]:
    """Returns the weights of layers, by path, with their shapes."""
    weights: dict[str, tuple[int, ...]] = {}
    for path in chosen:
        weights.update(layers[path].weights)
    return weights


def check_users(
    chosen: Sequence[str], layers: Mapping[str, Weighted], rule: str
) -> None:
    """Refuses a rule that does not name all layers that use a weight.

    Raises:
        ValueError: If another layer of the model uses one as well.
    """
    weights = weights_of(chosen, layers)
    for path, layer in layers.items():
        shared = weights.keys() & layer.weights.keys()
        if shared and path not in chosen:
            named = [each for each in chosen if shared & layers[each].weights.keys()]
            raise ValueError(
                f"{rule}: {' and '.join(named)} has the weight"
                f" {', '.join(sorted(shared))} in common with {path}, which the rule"
                f" does not name: name all layers that use it"
            )
