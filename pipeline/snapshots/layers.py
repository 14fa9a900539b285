"""The state of layers as arrays by key.

Chainer's objects write themselves into a flat dictionary of arrays. Keys of a layer's
arrays begin with its position in the undivided model. So a snapshot of one cut can be
loaded for any other::

    model/7/W   model/7/avg_mean   optimizer/7/W/v   optimizer/7/W/t    of layer 7
    optimizer/t   optimizer/loss_scale/scale                            of no layer

Some layers get their sizes, or register more values, at their first call. They are
saved in their state: called, or not called yet. The run that loads them may be in the
other state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import chainer
import numpy as np
from chainer import Link
from chainer.link_hooks import SpectralNormalization

from divisible import Divisible
from divisible.carried_state import carrying, declared, place_of
from divisible.random_streams import restored_random_state
from divisible.streaming.link import SEGMENT_KEY
from pipeline.calls.ranks import Ranks
from pipeline.snapshots.arrays import Arrays, of_range
from pipeline.snapshots.errors import SnapshotError
from pipeline.snapshots.serializers import (
    DryReader,
    StateReader,
    StateWriter,
    dry_run,
    is_none,
    read,
)

# Running averages of batch normalization, of the shape of its parameters.
_AVERAGES = {"avg_mean", "avg_var"}


def model_arrays(stage: Divisible) -> dict[str, np.ndarray]:
    """Returns the parameters and persistent values of a stage's own layers, by key."""
    writer = StateWriter()
    stage.serialize(writer)
    return of_range(writer.target, stage.layer_range)


def load_model(model: Link, arrays: Arrays) -> None:
    """Loads a stage or a loss; its layers have a size then if they had one when saved.

    A dry run leaves them as they are.
    """
    for key in arrays:
        # Layers in memory have no segments.
        if key.endswith(f"/{SEGMENT_KEY}"):
            arrays.take(key)
    if arrays.is_dry_run:
        links = ((f"{path}/".lstrip("/"), link) for path, link in model.namedlinks())
        with dry_run(arrays, links):
            read(model.serialize, DryReader(arrays))
        note_dry_run(model, arrays)
        note_averages(model, arrays)
        return
    with as_saved(model, arrays):
        read(model.serialize, StateReader(arrays))


def note_averages(model: Link, arrays: Arrays) -> None:
    """Records running averages of other shapes than their parameters.

    Args:
        model: The layers.
        arrays: Arrays to load, by their paths in the model.
    """
    for path, link in model.namedlinks():
        if not link._persistent >= _AVERAGES:
            continue
        above = f"{path}/".lstrip("/")
        keys = [above + name for name in (*sorted(link._params), *sorted(_AVERAGES))]
        outlines = {key: arrays.outline(key) for key in keys if key in arrays}
        shapes = {k: each.shape for k, each in outlines.items() if not is_none(each)}
        first = next(iter(shapes), "")
        for key, shape in shapes.items():
            if shape != shapes[first]:
                arrays.ledger.unlike.append(
                    f"{key} was saved with shape {shape}, but {first} of the same layer"
                    f" with {shapes[first]}"
                )


@contextmanager
def as_saved(model: Link, arrays: Arrays) -> Iterator[None]:
    """Brings layers into their saved state, for a block that reads them.

    ::

        saved        here         before the block           after it
        called       not called   registers values of hooks  -
        not called   called       removes values of hooks    removes sizes, so that the
                                                             next call is the first

    Args:
        model: The layers.
        arrays: Arrays of the layers, by their paths in the model.
    """
    for path, link, hook in spectral_hooks(model):
        key = f"{path}{hook.weight_name}"
        if key not in arrays:
            continue
        if is_none(arrays[key]):
            if hook._initialized:
                _forget(link, hook)
        elif not hook._initialized and f"{path}{hook.vector_name}" in arrays:
            _prepare(link, hook, arrays[key])
    not_sized = [name for name, param in _params(model) if param.array is None]
    yield
    params = dict(_params(model))
    for name in not_sized:
        saved = arrays.get(name)
        if saved is not None and not is_none(saved):
            _check_dtype(name, params[name], saved, arrays)
    is_unsized = False
    for name, param in params.items():
        if param.array is not None and arrays.was_empty(name):
            _take_size_away(param)
            is_unsized = True
    if is_unsized and isinstance(model, Divisible):
        model.await_first_calls()
    for link in model.links():
        _bring_to_device(link)


def note_dry_run(model: Link, arrays: Arrays) -> None:
    """Records what :func:`as_saved` would do to layers that were only read.

    Args:
        model: The layers.
        arrays: See :func:`as_saved`.
    """
    for path, _, hook in spectral_hooks(model):
        key = f"{path}{hook.weight_name}"
        for name in registered_keys(path, hook) if key in arrays else ():
            if is_none(arrays.outline(key)):
                arrays.need_not(name)
            elif not hook._initialized and name in arrays:
                arrays.take(name)
    for name, param in _params(model):
        if param.array is None and name in arrays:
            saved = arrays.outline(name)
            dtype = _own_dtype(param)
            if dtype is not None and not is_none(saved):
                _note_dtype(name, chainer.get_dtype(dtype), saved, arrays)


def _check_dtype(
    name: str, param: chainer.Parameter, saved: np.ndarray, arrays: Arrays
) -> None:
    """Reverses a cast of an array into a parameter that it has sized."""
    if _own_dtype(param) is not None:
        _note_dtype(name, param.dtype, saved, arrays)
    elif saved.dtype != param.dtype:
        # The dtype came from chainer.config, which may differ while loading.
        param.array = param.device.send(saved)


def _own_dtype(param: chainer.Parameter) -> Any:
    """Returns the dtype of a parameter's initializer, if it has one."""
    return getattr(param.initializer, "dtype", None)


def _note_dtype(name: str, dtype: np.dtype, saved: np.ndarray, arrays: Arrays) -> None:
    if saved.dtype != dtype:
        arrays.ledger.unlike.append(
            f"{name} was saved with dtype {saved.dtype}, but it is {dtype} here"
        )


def spectral_hooks(
    model: Link,
) -> Iterator[tuple[str, Link, SpectralNormalization]]:
    """Yields links with spectral normalization, which registers at the first call."""
    for path, link in model.namedlinks():
        for hook in (link._local_link_hooks or {}).values():
            if isinstance(hook, SpectralNormalization):
                yield f"{path}/".lstrip("/"), link, hook


def registered_keys(path: str, hook: SpectralNormalization) -> list[str]:
    """Returns the keys of values that a hook registers on a link."""
    names = [hook.vector_name, "gamma"] if hook.use_gamma else [hook.vector_name]
    return [path + name for name in names]


def _params(model: Link) -> Iterator[tuple[str, chainer.Parameter]]:
    """Yields parameters by their keys, a shared parameter once for each layer."""
    for path, link in model.namedlinks():
        for name in sorted(link._params):
            yield f"{path}/{name}".lstrip("/"), vars(link)[name]


def _prepare(link: Link, hook: SpectralNormalization, weight: np.ndarray) -> None:
    """Makes a hook register the values of a link's first call."""
    param = getattr(link, hook.weight_name)
    # The numbers drawn here are overwritten, and must not be taken from a stream.
    with restored_random_state(link.device), chainer.using_device(link.device):
        if param.array is None:
            param.initialize(weight.shape)
        # Its largest singular value becomes gamma, so its values must be the saved
        # ones.
        if param.shape == weight.shape:
            param.array[...] = link.device.send(weight)
        hook._prepare_parameters(link)


def _forget(link: Link, hook: SpectralNormalization) -> None:
    hook.deleted(link)
    hook._initialized = False


def _take_size_away(param: chainer.Parameter) -> None:
    """Removes a parameter's array, so that the next call sizes and draws it again."""
    param._data = [None]
    param.cleargrad()


def _bring_to_device(link: Link) -> None:
    """Sends persistent values to the device that had no value before the load."""
    for name in link._persistent:
        value = vars(link)[name]
        if isinstance(value, np.ndarray) and value.ndim and link.xp is not np:
            vars(link)[name] = link.device.send(value)


def load_shares(
    stage: Divisible, replicas: Sequence[Arrays], ranks: Ranks, is_dry_run: bool
) -> None:
    """Gives a stage its replica's share of the states that layers carried.

    Args:
        stage: The stage, already loaded.
        replicas: Arrays of each saved replica, by paths in the model.
        ranks: The ranks of the pipeline.
        is_dry_run: Whether only to check that the states can be shared out.

    Raises:
        SnapshotError: If the samples cannot be divided equally.
    """
    for path, link in carrying(stage, stage.layer_range[0]):
        for name, axis in declared(link).items():
            key = f"{path}/{place_of(name)}".lstrip("/")
            parts = [arrays[key] for arrays in replicas if key in arrays]
            # If a replica had no state, the others have none for its samples.
            if len(parts) < len(replicas) or any(map(is_none, parts)):
                continue
            rows = np.concatenate(parts, axis)
            if rows.shape[axis] % ranks.n_replicas:
                raise SnapshotError(
                    f"{path}.{name} was carried by {rows.shape[axis]} samples of"
                    f" {len(parts)} replicas, and cannot be shared out among"
                    f" {ranks.n_replicas}: resume with another number of replicas"
                )
            if not is_dry_run:
                share = np.split(rows, ranks.n_replicas, axis)[ranks.replica]
                setattr(link, place_of(name), link.device.send(share))
