"""Chainer's serializers without pickled objects, and without changes in a dry run.

A dry run finds everything that does not fit before anything is changed. Objects read
themselves as they do later, but from arrays with ``is_dry_run``. These are compared
with the present arrays, and not copied. Attributes that an object sets meanwhile are
restored.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable

import chainer
import numpy as np
from chainer.serializers import DictionarySerializer, NpzDeserializer

from divisible.streaming.mapped import mapped_array
from pipeline.snapshots.arrays import Arrays
from pipeline.snapshots.errors import SnapshotError

# Stands for None: an empty array without a type. Chainer's own way, an array of
# objects, would have to be unpickled, which could run any code in the file.
_NONE = np.empty(0, "V1")
# An updater writes its optimizers and their targets under names that begin with these.
# They are saved by layer instead.
_BY_LAYER = ("optimizer:", "model:")
NO_NAMES: Mapping[str, str] = {}
# Packages whose objects read the same keys in a dry run.
_KNOWN = (
    "chainer",
    "data_parallel",
    "divisible",
    "mixed_precision",
    "model_compression",
    "pipeline",
    "torch_layers",
)


class _Renaming:
    """A serializer of Chainer with other names for parts, without parts saved by layer.

    Args:
        arrays: Mapping to write to, by default a new one, or to read from.
        path: Beginning of all keys.
        names: Names of parts in the keys, by their names in the objects.
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
    """Leaves all values as they are."""

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
        array = self.target[full]
        if array is not value and isinstance(array, np.ndarray) and array.base is None:
            # The array was made here, and nothing else refers to it.
            array.flags.writeable = False
        return value


class NotSaved(KeyError):
    """A part looks for a key that was not saved."""


class StateReader(_Renaming, NpzDeserializer):
    """Chainer's deserializer, which reads only arrays of the same shape and dtype.

    Other arrays are recorded in the ledger. See :func:`read` for keys that were not
    saved.

    Attributes:
        is_noting (bool): Whether a key that was not saved is recorded, and the present
            value stays; otherwise it is an error.
    """

    _left_out = NotRead
    npz: Arrays
    is_noting = False
    casting = "no"

    def noting(self) -> StateReader:
        """Returns a reader that records keys that were not saved."""
        reader = copy.copy(self)
        reader.is_noting = True
        return reader

    def __getitem__(self, key: str) -> Any:
        below = super().__getitem__(key)
        below.is_noting = self.is_noting
        return below

    def __call__(self, key: str, value: Any) -> Any:
        """Returns the saved value; an array is filled with it."""
        full = self.path + key.lstrip("/")
        if full not in self.npz:
            if not self.is_noting:
                raise NotSaved(full)
            self.npz.miss(full)
            return value
        is_dry_run = self.npz.is_dry_run
        is_array = isinstance(value, chainer.get_array_types())
        file = mapped_array(value)
        outlined = file is not None or (is_dry_run and (is_array or value is None))
        saved = self.npz.outline(full) if outlined else self.npz[full]
        if is_none(saved):
            self.npz.note_empty(full)
            return None
        if is_array:
            unlike = difference(full, saved, value, self.casting)
            if unlike is not None:
                self.npz.ledger.unlike.append(unlike)
            if unlike is not None or is_dry_run:
                return value
        with self.npz.blamed(full):
            if file is not None:
                self.npz.read_into(full, file)
                return value
            found = NpzDeserializer({full: saved}, self.path)(key, value)
        # In a dry run, texts must be returned: objects often make other objects from
        # them.
        is_number = isinstance(value, (int, float, complex, np.generic))
        return value if is_dry_run and is_number else found


class FileReader(StateReader):
    """Reads the file of a serial script, whose missing keys are known before."""

    is_noting = True
    casting = "same_kind"


class RuleReader(StateReader):
    """Reads update rules, also if they had no state when they were saved."""

    def __call__(self, key: str, value: Any) -> Any:
        """Returns the saved value; ``None`` for a state that did not exist."""
        has_state = self.npz.get(f"{self.path}has_state", True)
        if value is None and not has_state and self.path + key not in self.npz:
            return None
        return super().__call__(key, value)


def read(part: Callable[[StateReader], None], reader: StateReader) -> None:
    """Calls a function that reads a part of a run, again if keys are missing.

    The part may need a key that was not saved. Then the second call reads the other
    keys, and records all missing ones in the ledger.

    Args:
        part: Function that reads from a reader.
        reader: Reader of the snapshot.
    """
    try:
        part(reader)
    except NotSaved:
        try:
            part(reader.noting())
        except SnapshotError:
            raise
        except Exception:
            # A present value may not do instead, such as an empty text for JSON. The
            # missing keys have been recorded, and become an error or a warning.
            pass


def is_none(array: np.ndarray) -> bool:
    """Returns whether an array stands for None, in our way or in Chainer's."""
    is_object = array.dtype.hasobject and array.shape == ()
    return array.dtype == _NONE.dtype or (is_object and array[()] is None)


def difference(
    key: str, saved: np.ndarray, value: Any, casting: str = "no"
) -> str | None:
    """Returns a sentence if shapes or dtypes differ; ``None`` if they fit."""
    fits = saved.shape == value.shape
    if fits and np.can_cast(saved.dtype, value.dtype, casting):
        return None
    return (
        f"{key} was saved with shape {saved.shape} and dtype {saved.dtype}, but it is"
        f" {value.shape} and {value.dtype} here"
    )


class DryReader(StateReader):
    """Reads layers without changing them: layers without a size keep none."""

    def __call__(self, key: str, value: Any) -> Any:
        """Returns the present value, after the saved one has been compared."""
        found = super().__call__(key, value)
        return None if value is None else found


@contextlib.contextmanager
def dry_run(arrays: Arrays, readers: Iterable[tuple[str, Any]]) -> Iterator[None]:
    """Restores attributes of objects that a block reads.

    Args:
        arrays: Arrays that it reads, with ``is_dry_run``.
        readers: Pairs for objects whose attributes it may set: the beginning of their
            keys, and the object.
    """
    readers = list(readers)
    kept = [(vars_of, dict(vars_of)) for vars_of in map(_attributes, readers)]
    try:
        yield
    except SnapshotError:
        raise
    except Exception:
        # Some code needs the real values. If it fails later, the load itself raises an
        # error.
        arrays.leave_open("")
    finally:
        for attributes, before in kept:
            for name in attributes.keys() - before.keys():
                del attributes[name]
            attributes.update(before)
    for prefix, reader in readers:
        if not _is_known(reader):
            arrays.leave_open(prefix)


def _attributes(reader: tuple[str, Any]) -> dict[str, Any]:
    return getattr(reader[1], "__dict__", {})


def _is_known(thing: Any) -> bool:
    """Returns whether the keys that an object reads do not depend on saved values."""
    serialize = getattr(thing, "serialize", None)
    module = str(getattr(serialize, "__module__", None))
    return serialize is None or module.split(".")[0] in _KNOWN
