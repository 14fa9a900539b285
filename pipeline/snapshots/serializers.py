"""Chainer's serializers without objects to pickle; and without changes, in a dry run.

A dry run tells what does not fit before anything is changed. What is to be loaded reads
itself as it does later, but from arrays that say ``is_dry_run``: they are compared with
what is here, and nothing is copied. Attributes that are set meanwhile are set back.
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

# Stands for None: an array of no elements of no type. Chainer's own way, an array
# of objects, would have to be unpickled, which runs whatever code is in the file.
_NONE = np.empty(0, "V1")
# An updater writes its optimizers and their targets under such names. They are saved
# by layer instead.
_BY_LAYER = ("optimizer:", "model:")
NO_NAMES: Mapping[str, str] = {}
# Whose code is known: of this package and of Chainer.
_KNOWN = (
    "chainer",
    "data_parallel",
    "divisible",
    "mixed_precision",
    "model_compression",
    "pipeline",
)


class _Renaming:
    """Chainer's serializers with other names for parts, and without what is by layer.

    Args:
        arrays: A mapping that is written to, by default a new one, or read from.
        path: The beginning of all keys.
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
        array = self.target[full]
        if array is not value and isinstance(array, np.ndarray) and array.base is None:
            # The array was made here, and nobody will change it.
            array.flags.writeable = False
        return value


class NotSaved(KeyError):
    """A part looks for a key that was not saved."""


class StateReader(_Renaming, NpzDeserializer):
    """Chainer's deserializer, but exact: of other shapes or dtypes it reads nothing.

    Such arrays are noted in the ledger of the arrays. See :func:`read` for keys that
    were not saved.

    Attributes:
        is_noting (bool): Whether a key that was not saved is noted, and what is there
            stays; otherwise it is an error.
    """

    _left_out = NotRead
    npz: Arrays
    is_noting = False
    casting = "no"

    def noting(self) -> StateReader:
        """Returns the same that notes what was not saved."""
        reader = copy.copy(self)
        reader.is_noting = True
        return reader

    def __getitem__(self, key: str) -> Any:
        below = super().__getitem__(key)
        below.is_noting = self.is_noting
        return below

    def __call__(self, key: str, value: Any) -> Any:
        """Returns what was saved; into an array it is copied."""
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
        # A text is often what more is made of, and what is here may be none of its own.
        is_number = isinstance(value, (int, float, complex, np.generic))
        return value if is_dry_run and is_number else found


class FileReader(StateReader):
    """Reads the file of a serial script, of which what is missing is known before."""

    is_noting = True
    casting = "same_kind"


class RuleReader(StateReader):
    """Reads update rules, also those that had no state yet when they were saved."""

    def __call__(self, key: str, value: Any) -> Any:
        """Returns what was saved under a key; ``None`` for a state there was not."""
        has_state = self.npz.get(f"{self.path}has_state", True)
        if value is None and not has_state and self.path + key not in self.npz:
            return None
        return super().__call__(key, value)


def read(part: Callable[[StateReader], None], reader: StateReader) -> None:
    """Lets a part of a run read itself.

    Where it looks for a key that was not saved, and does not know what to do without,
    it reads what else there is, and all that it misses is noted in the ledger.

    Args:
        part: Reads; called again if it failed.
        reader: Where from.
    """
    try:
        part(reader)
    except NotSaved:
        try:
            part(reader.noting())
        except SnapshotError:
            raise
        except Exception:
            # With what was there instead, say an empty text for JSON, it cannot go on.
            # The keys that it misses have been recorded, and are an error or a warning.
            pass


def is_none(array: np.ndarray) -> bool:
    """Whether an array stands for None, in our way or in Chainer's."""
    is_object = array.dtype.hasobject and array.shape == ()
    return array.dtype == _NONE.dtype or (is_object and array[()] is None)


def difference(
    key: str, saved: np.ndarray, value: Any, casting: str = "no"
) -> str | None:
    """Returns a sentence if an array is not what is to be read: shapes and dtypes."""
    fits = saved.shape == value.shape
    if fits and np.can_cast(saved.dtype, value.dtype, casting):
        return None
    return (
        f"{key} was saved with shape {saved.shape} and dtype {saved.dtype}, but it is"
        f" {value.shape} and {value.dtype} here"
    )


class DryReader(StateReader):
    """Reads layers without changing them: what is not sized yet stays so."""

    def __call__(self, key: str, value: Any) -> Any:
        """Returns what is there, once what was saved has been looked at."""
        found = super().__call__(key, value)
        return None if value is None else found


@contextlib.contextmanager
def dry_run(arrays: Arrays, readers: Iterable[tuple[str, Any]]) -> Iterator[None]:
    """Lets a block read, and gives objects back the attributes that it sets.

    Args:
        arrays: The arrays that it reads, with ``is_dry_run``.
        readers: The objects whose attributes it may set, and what the keys of each
            begin with.
    """
    readers = list(readers)
    kept = [(vars_of, dict(vars_of)) for vars_of in map(_attributes, readers)]
    try:
        yield
    except SnapshotError:
        raise
    except Exception:
        # Somebody's code cannot do without what was saved. The load itself will tell.
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
    """Whether which keys something reads depends on nothing that was saved."""
    serialize = getattr(thing, "serialize", None)
    module = str(getattr(serialize, "__module__", None))
    return serialize is None or module.split(".")[0] in _KNOWN
