"""The files of serial scripts: where in them a model is, and its optimizer.

::

    save_npz(model)                   0/W
    save_npz(classifier)              predictor/0/W
    a trainer's snapshot()            updater/model:main/predictor/0/W
                                      updater/optimizer:main/predictor/0/W/v
                                      updater/optimizer:main/t
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pipeline.snapshots.arrays import Arrays
from pipeline.snapshots.errors import SnapshotError
from pipeline.snapshots.serializers import RuleReader

# What is before the position of a layer, in the keys of a model.
_MODEL = re.compile(
    r"((?:updater/model:[^/]+/)?(?:(?!updater/|extensions/)[A-Za-z_][^/]*/)*?)\d+/"
)
_OF_UPDATER = re.compile(r"updater/model:([^/]+)/(.*)")


def model_prefixes(keys: Iterable[str]) -> list[str]:
    """Returns what the keys of each list of layers in a file begin with.

    Example:
        >>> model_prefixes(["updater/iteration", "updater/model:main/predictor/0/W"])
        ['updater/model:main/predictor/']
    """
    found = [match[1] for match in map(_MODEL.match, keys) if match]
    return sorted({*found})


def model_prefix(keys: Iterable[str], wanted: str | None, path: Any) -> str:
    """Returns what the keys of the model to read begin with.

    Args:
        keys: Of the file.
        wanted: As the caller says, or ``None``.
        path: Of the file, for errors.

    Raises:
        SnapshotError: If there are several models, or not the one that is wanted.
    """
    found = model_prefixes(keys)
    if wanted is not None:
        wanted = wanted and wanted.rstrip("/") + "/"
        if wanted not in found:
            raise SnapshotError(
                f"{os.fspath(path)} has no layers below {wanted!r}; it has some below"
                f" {', '.join(map(repr, found)) or 'nothing'}"
            )
        return wanted
    if len(found) > 1:
        raise SnapshotError(
            f"{os.fspath(path)} has several lists of layers, below"
            f" {', '.join(map(repr, found))}: say which by prefix="
        )
    return found[0] if found else ""


def load_optimizer_of_trainer(
    optimizer: Any, arrays: Mapping[str, np.ndarray], prefix: str, path: Any
) -> None:
    """Loads the state of an optimizer from a trainer's snapshot.

    Args:
        optimizer: Set up with the layers to read it for.
        arrays: Of the file.
        prefix: Of the model, as of :func:`model_prefix`.
        path: Of the file, for errors.

    Raises:
        SnapshotError: If the file has no state of that optimizer, or a part is missing.
    """
    match = _OF_UPDATER.fullmatch(prefix)
    above = f"updater/optimizer:{match[1]}/" if match else None
    keys = [key for key in arrays if above is not None and key.startswith(above)]
    if not keys:
        raise SnapshotError(
            f"{os.fspath(path)} has no optimizer of the model below {prefix!r}: only"
            f" the snapshots of trainers have one"
        )
    below = match[2]
    found = {}
    for key in keys:
        name = key[len(above) :]
        found[name[len(below) :] if name.startswith(below) else name] = key
    mine = Arrays({os.fspath(path): _Renamed(arrays, found)})
    optimizer.serialize(RuleReader(mine).noting())
    missing = sorted(mine.ledger.missing)
    if missing or mine.ledger.unlike:
        words = [f"{above}{key} is missing" for key in missing]
        raise SnapshotError(
            f"{os.fspath(path)} has another optimizer's state:"
            f" {'; '.join([*words, *mine.ledger.unlike])}"
        )


class _Renamed(Mapping):
    """Arrays by other keys, each read when it is asked for."""

    def __init__(
        self, arrays: Mapping[str, np.ndarray], keys: Mapping[str, str]
    ) -> None:
        self._arrays, self._keys = arrays, keys

    def __getitem__(self, key: str) -> np.ndarray:
        return self._arrays[self._keys[key]]

    def __iter__(self) -> Any:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
