"""Layers that are sized, and register more, at their first call.

A snapshot has them as they were: called, or not called yet. What loads it may have
called them, or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import chainer
import numpy as np
from chainer import Link
from chainer.link_hooks import SpectralNormalization

from divisible import Divisible
from divisible.random_streams import restored_random_state
from pipeline.snapshots.arrays import Arrays
from pipeline.snapshots.serializers import is_none


@contextmanager
def as_saved(model: Link, arrays: Arrays) -> Iterator[None]:
    """Brings layers to where they were when they were saved, while a block reads them.

    ::

        saved        here         before the block           after it
        called       not called   registers what hooks do    -
        not called   called       removes what hooks have    takes sizes away, so that
                                  registered                 the next call is the first

    Args:
        model: The layers.
        arrays: Of the layers, by their paths in the model.
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
    """Notes what :func:`as_saved` does to layers that were read without a change.

    Args:
        model: The layers, read.
        arrays: As in :func:`as_saved`.
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
    """Sees to it that an array was not cast into a parameter that it has sized."""
    if _own_dtype(param) is not None:
        _note_dtype(name, param.dtype, saved, arrays)
    elif saved.dtype != param.dtype:
        # It has the dtype of chainer.config, which may be another one while loading.
        param.array = param.device.send(saved)


def _own_dtype(param: chainer.Parameter) -> Any:
    """Returns the dtype that a parameter's initializer asks for, if any."""
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
    """Returns the keys of what a hook registers on a link."""
    names = [hook.vector_name, "gamma"] if hook.use_gamma else [hook.vector_name]
    return [path + name for name in names]


def _params(model: Link) -> Iterator[tuple[str, chainer.Parameter]]:
    """Yields parameters by their keys, those that layers share once for each."""
    for path, link in model.namedlinks():
        for name in sorted(link._params):
            yield f"{path}/{name}".lstrip("/"), vars(link)[name]


def _prepare(link: Link, hook: SpectralNormalization, weight: np.ndarray) -> None:
    """Lets a hook register what it does at the first call of a link."""
    param = getattr(link, hook.weight_name)
    # What is drawn here is overwritten, and must not be missing elsewhere.
    with restored_random_state(link.device), chainer.using_device(link.device):
        if param.array is None:
            param.initialize(weight.shape)
        # Its largest singular value becomes gamma, which an initializer may not have.
        if param.shape == weight.shape:
            param.array[...] = link.device.send(weight)
        hook._prepare_parameters(link)


def _forget(link: Link, hook: SpectralNormalization) -> None:
    hook.deleted(link)
    hook._initialized = False


def _take_size_away(param: chainer.Parameter) -> None:
    """Lets the next call of a layer size and draw a parameter again."""
    param._data = [None]
    param.cleargrad()


def _bring_to_device(link: Link) -> None:
    """Brings persistent values there that had none before, and came as they are."""
    for name in link._persistent:
        value = vars(link)[name]
        if isinstance(value, np.ndarray) and value.ndim and link.xp is not np:
            vars(link)[name] = link.device.send(value)
