"""Chainer's serializers without objects to pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import chainer
import numpy as np
from chainer.serializers import DictionarySerializer, NpzDeserializer

# What stands for None: an array of no elements of no type. Chainer's own way, an array
# of objects, would have to be unpickled, which runs whatever code is in the file.
_NONE = np.empty(0, "V1")
# An updater writes its optimizers and their targets under such names. They are saved
# by layer instead.
_BY_LAYER = ("optimizer:", "model:")
NO_NAMES: Mapping[str, str] = {}


class _Renaming:
    """Chainer's serializers with other names for parts, and without what is by layer.

    Args:
        arrays: What is written to, by default a new dictionary, or read from.
        path: What all keys begin with.
        names: By the name of a part another one that its keys have.
    """

    _left_out: type

    def __init__(
        self,
        arrays: Mapping[str, Any] | None = None,
        path: str = "",
        names: Mapping[str, str] = NO_NAMES,
    ) -> None:
        self._arrays = {} if arrays is None else arrays
        super().__init__(self._arrays, path)
        self._names = names

    def __getitem__(self, key: str) -> Any:
        if key.startswith(_BY_LAYER):
            return self._left_out()
        key = self._names.get(key, key)
        return type(self)(self._arrays, f"{self.path}{key.strip('/')}/")


class _Untouched:
    """Leaves everything as it is."""

    def __getitem__(self, key: str) -> Any:
        return self

    def __call__(self, key: str, value: Any) -> Any:
        return value


class NotWritten(_Untouched, chainer.Serializer):
    """Writes nothing."""


class NotRead(_Untouched, chainer.Deserializer):
    """Reads nothing."""


class StateWriter(_Renaming, DictionarySerializer):
    """Chainer's serializer into a dictionary, without objects to pickle."""

    _left_out = NotWritten

    def __call__(self, key: str, value: Any) -> Any:
        """Writes a value, and returns it."""
        full = self.path + key.lstrip("/")
        if value is None:
            self.target[full] = _NONE
            return value
        try:
            super().__call__(key, value)
            is_plain = not np.asarray(self.target[full]).dtype.hasobject
        except TypeError:
            is_plain = False
        if not is_plain:
            raise TypeError(
                f"{full} is of {type(value)}, which cannot be saved: only numbers,"
                f" texts and arrays can"
            )
        return value


class StateReader(_Renaming, NpzDeserializer):
    """Chainer's deserializer, but exact: of other shapes or dtypes it reads nothing."""

    _left_out = NotRead

    def __call__(self, key: str, value: Any) -> Any:
        """Returns what was saved; into an array it is copied."""
        full = self.path + key.lstrip("/")
        if full not in self.npz:
            raise KeyError(
                f"the snapshot has no {full}: it was saved with another model,"
                f" optimizer, iterator or other extensions"
            )
        saved = self.npz[full]
        if is_none(saved):
            return None
        if isinstance(value, chainer.get_array_types()):
            check_array(full, saved, value)
        return NpzDeserializer({full: saved}, self.path)(key, value)


class RuleReader(StateReader):
    """Reads update rules, also those that had no state yet when they were saved."""

    def __call__(self, key: str, value: Any) -> Any:
        """Returns what was saved under a key; ``None`` for a state there was not."""
        has_state = self.npz.get(f"{self.path}has_state", True)
        if value is None and not has_state and self.path + key not in self.npz:
            return None
        return super().__call__(key, value)


def is_none(array: np.ndarray) -> bool:
    """Whether an array stands for None."""
    return array.dtype == _NONE.dtype


def check_array(key: str, saved: np.ndarray, value: Any, casting: str = "no") -> None:
    """Refuses an array that is not what is to be read.

    Raises:
        ValueError: With both shapes and dtypes.
    """
    fits = saved.shape == value.shape
    if not fits or not np.can_cast(saved.dtype, value.dtype, casting):
        raise ValueError(
            f"{key} was saved with shape {saved.shape} and dtype {saved.dtype}, but it"
            f" is {value.shape} and {value.dtype} here: the model or the optimizer is"
            f" another one"
        )
