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


class DryReader(StateReader):
    """Reads layers without changing them: what is not sized yet stays so."""

    def __call__(self, key: str, value: Any) -> Any:
        """Returns what is there, once what was saved has been looked at."""
        found = super().__call__(key, value)
        return None if value is None else found


@contextlib.contextmanager
def dry_run(arrays: Arrays, objects: Iterable[Any]) -> Iterator[None]:
    """Lets a block read, and gives objects back the attributes that it sets.

    Args:
        arrays: What it reads, with ``is_dry_run``.
        objects: Whose attributes it may set.
    """
    kept = [(attributes, dict(attributes)) for attributes in map(_attributes, objects)]
    try:
        yield
    except SnapshotError:
        raise
    except Exception:
        # Somebody's code cannot do without what was saved. The load itself will tell.
        for key in arrays:
            arrays.take(key)
    finally:
        for attributes, before in kept:
            for name in attributes.keys() - before.keys():
                del attributes[name]
            attributes.update(before)


def _attributes(thing: Any) -> dict[str, Any]:
    return getattr(thing, "__dict__", {})
