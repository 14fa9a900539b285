"""Layers of a float16 model with other types, and the casts of their inputs.

A layer of the model's list returns its own type, and the next layer that has a type
casts. Functions and normalizations compute in the type of their input::

    position    0              1      2              3        4
    layer       Linear, kept   relu   Linear         relu     Linear, kept
    computes    float32      float32  float16        float16  float32
    casts                             float16                 float32

A link within a layer gets its inputs in its own type, and returns the type around it,
because the layer may do anything with its outputs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import NamedTuple

import chainer
import chainer.links as L

from mixed_precision.layer_types import FLOAT32, Keep, KeptTypes, LayerTypes
from mixed_precision.streamed import is_streamed
from mixed_precision.typed_links import Typed, check_types, set_types

# Links whose parameters and statistics stay float32: they need sums over many values
# and scales near one, for which float16 has too few numbers.
_NORMALIZATIONS = (
    L.BatchNormalization,
    L.BatchRenormalization,
    L.DecorrelatedBatchNormalization,
    L.GroupNormalization,
    L.LayerNormalization,
)
_FUNCTION = (
    "keep: layer {position}, {layer}, is a function, which computes in the type of its"
    " input, or repeats the link of an earlier position: name that link, or the one"
    " before the function"
)


class _Place(NamedTuple):
    """A link in its model.

    Attributes:
        path: Path of the link.
        link: The link.
        types: Types of its arrays; ``None`` for a normalization, which keeps the dtypes
            of its parameters, and computes in the type of its input.
        around: Types of the link around it.
        is_named: Whether ``keep`` gives it types.
        is_in_list: Whether it is a layer of a list, which passes its outputs on, or the
            whole model.
    """

    path: str
    link: chainer.Link
    types: LayerTypes | None
    around: LayerTypes
    is_named: bool
    is_in_list: bool


def keep_layers(model: chainer.Link, keep: Keep) -> dict[int, str | None]:
    """Gives links their types, and puts in casts where neighbours differ.

    Args:
        model: A model or a stage of one; its links are changed.
        keep: Layers and their types, as for :func:`~mixed_precision.to_float16`.

    Returns:
        For the id of each parameter its dtype; ``None`` for one that stays as it is.

    Raises:
        TypeError: If ``keep`` is of another type.
        ValueError: If there is no such layer, or it cannot have these types.
    """
    kept = KeptTypes(keep, functools.partial(_path_of, model))
    places = list(_places(model, kept))
    _check_paths(model, kept, places)
    for place in places:
        if place.is_named:
            _check(place)
    dtypes = _parameter_dtypes(places)
    # A kept layer in another stage may send its type to this one. Whole models get the
    # same casts, so that it does not matter which of them is cast.
    is_cut = hasattr(model, "layer_range") and kept.may_name_layers
    if is_cut or any(place.is_named for place in places):
        _put_casts(model, places, is_cut)
    return dtypes


def _places(model: chainer.Link, kept: KeptTypes) -> Iterator[_Place]:
    """Yields the links of a model, each before the links within it."""
    links: dict[str, chainer.Link] = {}
    types: dict[str, LayerTypes | None] = {}
    for path, link in model.namedlinks():
        path = path.rstrip("/")
        parent = path.rpartition("/")[0] if path else None
        around = types.get(parent, LayerTypes())
        own = kept.of(path, link)
        if own is None and isinstance(link, Typed) and link.is_kept:
            # An earlier call has named the link.
            own = link.types
        if own is not None:
            types[path] = own
        else:
            # Layers of other libraries know this themselves.
            normalizes = getattr(link, "normalizes", False)
            normalizes |= isinstance(link, _normalizations())
            types[path] = None if normalizes else around
        is_in_list = isinstance(links.get(parent), chainer.Sequential)
        is_last = link is _root(model)
        links[path] = link
        yield _Place(
            path,
            link,
            types[path],
            around or LayerTypes(),
            own is not None,
            is_in_list or is_last,
        )


def _path_of(model: chainer.Link, position: int) -> str:
    """Returns the path of the layer at a position of a list.

    Raises:
        ValueError: If the model is no list, or has no link there.
    """
    if hasattr(model, "layer_range"):
        return f"/{position}"
    if not isinstance(model, chainer.Sequential):
        raise ValueError(
            f"keep: {type(model).__name__} has no layer {position}, because it is"
            f" neither a Divisible nor a Sequential: give the path of the link"
        )
    if not 0 <= position < len(model):
        raise ValueError(
            f"keep: the model has no layer {position}; its layers go from 0 to"
            f" {len(model) - 1}"
        )
    # Chainer numbers links in another order than that of the layers.
    for path, link in model.namedlinks(skipself=True):
        if link is model[position]:
            return path
    raise ValueError(_FUNCTION.format(position=position, layer=model[position]))


def _root(model: chainer.Link) -> chainer.Link:
    """Returns the link whose outputs go to the loss."""
    return model.predictor if isinstance(model, L.Classifier) else model


def _normalizations() -> tuple[type[chainer.Link], ...]:
    # Not imported: an import would start MPI, and a model with such a link has imported
    # it.
    chainermn_links = sys.modules.get("chainermn.links")
    if chainermn_links is None:
        return _NORMALIZATIONS
    return (*_NORMALIZATIONS, chainermn_links.MultiNodeBatchNormalization)


def _check_paths(model: chainer.Link, kept: KeptTypes, places: list[_Place]) -> None:
    """Refuses paths of what is no link; those in other stages are not looked at."""
    paths = [place.path for place in places if place.path]
    first, end = getattr(model, "layer_range", (0, 0))
    n_layers = len(getattr(model, "model_layers", ()))
    for path in {*kept.by_path} - {*paths}:
        position, _, within = path[1:].partition("/")
        if position.isdigit() and int(position) < n_layers:
            if not first <= int(position) < end:
                continue
            if not within:
                layer = model.model_layers[int(position)]
                raise ValueError(_FUNCTION.format(position=position, layer=layer))
        if path in {name for name, _ in model.namedparams()}:
            raise ValueError(
                f"keep: {path} is a parameter, and types belong to links: name"
                f" {path.rpartition('/')[0] or 'its link'}"
            )
        near = [p for p in paths if p.startswith(f"/{position}/")] or paths
        known = ", ".join(near[:8]) + (", ..." if len(near) > 8 else "")
        raise ValueError(f"keep: the model has no link {path}; its links are {known}")


def _check(place: _Place) -> None:
    """Refuses types that a named link cannot have."""
    streams = any(map(is_streamed, place.link.params()))
    if streams and place.types != LayerTypes(FLOAT32, FLOAT32):
        raise ValueError(
            f"keep: {place.path} is streamed, and computes in float32 from its files:"
            f" give it 'float32' for float32 outputs, or leave it out for float16"
            f" outputs"
        )
    check_types(place.path, place.link, place.types)


def _parameter_dtypes(places: list[_Place]) -> dict[int, str | None]:
    """Returns the dtype of each parameter by its id.

    Raises:
        ValueError: If links of different types share a parameter.
    """
    dtypes: dict[int, tuple[str, str | None]] = {}
    for place in places:
        dtype = None if place.types is None else place.types.array_type
        for name in sorted(place.link._params):
            param = getattr(place.link, name)
            path, known = dtypes.setdefault(id(param), (place.path, dtype))
            if known != dtype:
                raise ValueError(
                    f"keep: {path} and {place.path} share the parameter {name}, whose"
                    f" dtype would be {known} and {dtype}: give both links the same"
                    f" types"
                )
    return {key: dtype for key, (_, dtype) in dtypes.items()}


def _put_casts(model: chainer.Link, places: list[_Place], is_cut: bool) -> None:
    """Makes links cast their inputs and outputs, where their neighbours differ.

    Args:
        model: The model or stage.
        places: Its links.
        is_cut: Whether layers of its list may have types, perhaps in another stage.
    """
    for place in places:
        if place.is_named:
            leaves = place.is_in_list
            returned = None if leaves else place.around.array_type
            set_types(place.link, place.types, returned, is_kept=True)
    by_path = {place.path: place for place in places}
    lists = [place for place in places if isinstance(place.link, chainer.Sequential)]
    for place in lists:
        if place.link is not _root(model) and _has_named(place.path, places):
            # Its last layer may return another type.
            types = place.types or LayerTypes()
            set_types(place.link, types, types.array_type, is_kept=place.is_named)
            _put_casts_into_list(place.link, place.path, by_path)
    root = _root(model)
    path = "" if root is model else "/predictor"
    if isinstance(root, chainer.Sequential) and (is_cut or _has_named(path, places)):
        _put_casts_into_list(root, path, by_path)
        # A pipeline must not round the inputs of the first layer.
        root.casts_inputs = True


def _has_named(path: str, places: list[_Place]) -> bool:
    """Returns whether a layer of a list is named."""
    return any(p.is_named and p.path.rpartition("/")[0] == path for p in places)


def _put_casts_into_list(
    layers: chainer.Sequential, path: str, by_path: dict[str, _Place]
) -> None:
    places = {id(p.link): p for p in by_path.values() if _is_child(p.path, path)}
    # A stage gets inputs of any type from the one before.
    differs = True
    for layer in layers:
        if hasattr(layer, "in_one_type"):
            # The end of a skip connection, whose other end may be in another type.
            layer.in_one_type = True
        if not isinstance(layer, chainer.Link):
            continue
        place = places[id(layer)]
        if place.is_named:
            differs = True
        elif place.types is not None and next(layer.params(), None) is not None:
            if differs and not isinstance(layer, Typed):
                set_types(layer, place.types, None, is_kept=False)
            differs = False


def _is_child(path: str, parent: str) -> bool:
    return path.rpartition("/")[0] == parent
