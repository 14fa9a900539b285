"""A dry run of a load, which tells what does not fit before anything is changed.

What is to be loaded reads itself as it does later, but from arrays that say
``is_dry_run``: they are compared with what is here, and nothing is copied. Attributes
that are set meanwhile are set back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.snapshots.arrays import Arrays
from pipeline.snapshots.errors import SnapshotError
from pipeline.snapshots.serializers import StateReader

# Whose code is known: of this package and of Chainer.
_KNOWN = (
    "chainer",
    "data_parallel",
    "divisible",
    "mixed_precision",
    "model_compression",
    "pipeline",
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
        arrays: What it reads, with ``is_dry_run``.
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
