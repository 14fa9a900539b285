"""Files of the undivided model: exported from snapshots, loaded into stages.

In files of serial scripts, a model and its optimizer have keys such as these::

    save_npz(model)                   0/W
    save_npz(classifier)              predictor/0/W
    a trainer's snapshot()            updater/model:main/predictor/0/W
                                      updater/optimizer:main/predictor/0/W/v
                                      updater/optimizer:main/t
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from divisible import Divisible
from divisible.chains.names import ChainNames
from divisible.files import written_aside
from divisible.number_lists import as_list
from divisible.streaming.mapped import mapped_array
from pipeline.snapshots.arrays import Arrays, opened, position, write_arrays
from pipeline.snapshots.errors import Differences, Ledger, MismatchError, compare
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.layers import as_saved, registered_keys, spectral_hooks
from pipeline.snapshots.serializers import (
    FileReader,
    RuleReader,
    StateWriter,
    difference,
    is_none,
)

# The part of a model's key before the position of a layer.
_MODEL = re.compile(
    r"((?:updater/model:[^/]+/)?(?:(?!updater/|extensions/)[A-Za-z_][^/]*/)*?)\d+/"
)
_OF_UPDATER = re.compile(r"updater/model:([^/]+)/(.*)")


def export_npz(
    snapshot: str | os.PathLike,
    path: str | os.PathLike,
    *,
    names: ChainNames | None = None,
) -> None:
    """Writes the parameters and persistent values of the undivided model.

    The file is like that of :func:`chainer.serializers.save_npz` for the undivided
    model. A script without a pipeline loads it by :func:`chainer.serializers.load_npz`.

    Args:
        snapshot: Directory of the snapshot.
        path: File to write; it appears only when it is complete.
        names (ChainNames): The ``chain_names`` of a model from
            :func:`~divisible.from_chain`. The file is then for the chain, with its own
            names.

    Raises:
        SnapshotError: If the snapshot is incomplete, truncated or changed.
        KeyError: If the snapshot has a layer without a name in the chain.

    Example:
        >>> import tempfile
        >>> import chainer
        >>> import chainer.links as L
        >>> from mpi4py import MPI
        >>> from pipeline import Pipeline, save_snapshot
        >>> model, serial = Divisible(L.Linear(2, 2)), Divisible(L.Linear(2, 2))
        >>> optimizer = chainer.optimizers.Adam().setup(model)
        >>> pipe = Pipeline(model, MPI.COMM_SELF, n_microbatches=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_snapshot(f'{folder}/1', pipe, optimizer)
        ...     export_npz(f'{folder}/1', f'{folder}/model.npz')
        ...     chainer.serializers.load_npz(f'{folder}/model.npz', serial)
        >>> bool((serial[0].W.array == model[0].W.array).all())
        True
    """
    source = Snapshot.open(snapshot)
    source.verify()
    with source.of_layers(range(source.n_layers), "model/") as arrays:
        model = {
            # Chainer writes None for an array without a value.
            key if names is None else names.in_chain(key): (
                np.asarray(None) if is_none(value) else value
            )
            for key, value in arrays.items()
        }
        with written_aside(path) as aside:
            write_arrays(Path(aside), model)


def import_npz(
    path: str | os.PathLike,
    stage: Divisible | Sequence[Divisible],
    *,
    strict: bool = True,
    prefix: str | None = None,
    optimizer: Any = None,
) -> Differences:
    """Loads stages from the file of an undivided model.

    Such files come from :func:`chainer.serializers.save_npz`, for the undivided
    ``Divisible`` alone or in a ``Classifier``, from Chainer's own snapshot of a
    trainer, and from :func:`export_npz`. Each rank calls this for its own stages.
    Unlike :func:`chainer.serializers.load_npz`, it changes nothing unless all keys
    exist, none is left over, and all shapes fit.

    Args:
        path: File to read.
        stage (Divisible or list of Divisible): A model, or some of its stages.
        strict (bool): Whether differences are an error. If false, parameters that are
            missing in the file stay as they are, keys that are left over are not read,
            and a warning lists both. Another shape is an error in any case.
        prefix (str or None): Beginning of the layers' keys, such as
            ``'updater/model:main/predictor/'``, if the file has several models.
        optimizer (chainer.Optimizer): Optimizer, set up with the stage, whose state to
            load from a trainer's snapshot.

    Returns:
        Differences: Missing and left-over keys, if ``strict`` is false.

    Raises:
        SnapshotError: If keys are missing or left over, or a shape differs. If the file
            is damaged, or has pickled objects, which could run any code. The error is a
            :class:`ValueError` as well.

    Example:
        >>> import tempfile
        >>> import chainer
        >>> import chainer.links as L
        >>> trained = Divisible(L.Linear(2, 3), L.Linear(3, 2))
        >>> stage = Divisible(L.Linear(2, 3), L.Linear(3, 2)).divide(1, 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     chainer.serializers.save_npz(f'{folder}/model.npz', trained)
        ...     differences = import_npz(f'{folder}/model.npz', stage)
        >>> bool((stage[0].W.array == trained[1].W.array).all()), bool(differences)
        (True, False)
    """
    stages = as_list(stage)
    with opened(path) as file:
        prefix = model_prefix(file, prefix, path)
        arrays = Arrays({os.fspath(path): file}).below(prefix)
        state = None
        if optimizer is not None:
            state = _state_of_optimizer(file, prefix, path)
        found = compare([_expected(stages, arrays)], os.fspath(path), strict)
        for stage in stages:
            with as_saved(stage, arrays):
                stage.serialize(FileReader(arrays))
        if state is not None:
            _load_optimizer(optimizer, state, path)
    if found:
        warnings.warn(f"{os.fspath(path)} is loaded in part: {found}", stacklevel=2)
    return found


def _expected(stages: Sequence[Divisible], arrays: Arrays) -> Ledger:
    """Returns the keys of stages, and the keys in a file for their layers.

    Keys of other stages' layers are left to the ranks that have them. Keys of no layer,
    or of one behind the last, count as left over.
    """
    ledger = Ledger()
    owned = [range(*stage.layer_range) for stage in stages]
    n_layers = max(len(stage.model_layers) for stage in stages)
    for key in arrays:
        layer = position(key)
        if layer is None or layer >= n_layers or any(layer in own for own in owned):
            ledger.found.add(f"model/{key}")
    for stage in stages:
        writer = StateWriter()
        stage.serialize(writer)
        expected = dict(writer.target)
        # These keys exist only if the layer had a size when it was saved.
        for above, _, hook in spectral_hooks(stage):
            weight = f"{above}{hook.weight_name}"
            is_sized = weight in arrays and not is_none(arrays[weight])
            for key in registered_keys(above, hook):
                if is_sized:
                    expected.setdefault(key, None)
                else:
                    expected.pop(key, None)
        for key, value in expected.items():
            if key not in arrays:
                ledger.missing.add(f"model/{key}")
                continue
            ledger.read.add(f"model/{key}")
            # Read even if it cannot be compared, because it may be damaged.
            on_disk = mapped_array(value) is not None
            saved = arrays.checked(key) if on_disk else arrays[key]
            if isinstance(value, np.ndarray) and not is_none(value):
                unlike = difference(key, saved, value, "same_kind")
                ledger.unlike += [unlike] * (unlike is not None)
    return ledger


def model_prefixes(keys: Iterable[str]) -> list[str]:
    """Returns the beginning of the keys of each list of layers in a file.

    Example:
        >>> model_prefixes(["updater/iteration", "updater/model:main/predictor/0/W"])
        ['updater/model:main/predictor/']
    """
    found = [match[1] for match in map(_MODEL.match, keys) if match]
    return sorted({*found})


def model_prefix(keys: Iterable[str], wanted: str | None, path: Any) -> str:
    """Returns the beginning of the keys of the model to read.

    Args:
        keys: Keys of the file.
        wanted: Beginning that the caller gives; ``None`` for the only one.
        path: Path of the file, for errors.

    Raises:
        MismatchError: If there are several models, or not the one wanted.
    """
    found = model_prefixes(keys)
    if wanted is not None:
        wanted = wanted and wanted.rstrip("/") + "/"
        if wanted not in found:
            raise MismatchError(
                f"{os.fspath(path)} has no layers below {wanted!r}; it has some below"
                f" {', '.join(map(repr, found)) or 'nothing'}"
            )
        return wanted
    if len(found) > 1:
        raise MismatchError(
            f"{os.fspath(path)} has several lists of layers, below"
            f" {', '.join(map(repr, found))}: say which by prefix="
        )
    return found[0] if found else ""


def _state_of_optimizer(
    arrays: Mapping[str, np.ndarray], prefix: str, path: Any
) -> _Renamed:
    """Returns the state of an optimizer in a trainer's snapshot.

    Args:
        arrays: Arrays of the file.
        prefix: Beginning of the model's keys; see :func:`model_prefix`.
        path: Path of the file, for errors.

    Raises:
        MismatchError: If the file has no optimizer of this model.
    """
    match = _OF_UPDATER.fullmatch(prefix)
    above = f"updater/optimizer:{match[1]}/" if match else None
    keys = [key for key in arrays if above is not None and key.startswith(above)]
    if not keys:
        raise MismatchError(
            f"{os.fspath(path)} has no optimizer of the model below {prefix!r}: only"
            f" the snapshots of trainers have one"
        )
    below = match[2]
    found = {}
    for key in keys:
        name = key[len(above) :]
        found[name[len(below) :] if name.startswith(below) else name] = key
    return _Renamed(arrays, found, above)


def _load_optimizer(optimizer: Any, state: _Renamed, path: Any) -> None:
    """Loads the state of an optimizer, set up with the layers whose state to read.

    Raises:
        MismatchError: If the state is of another optimizer, or in part.
    """
    mine = Arrays({os.fspath(path): state})
    optimizer.serialize(RuleReader(mine).noting())
    missing = sorted(mine.ledger.missing)
    if missing or mine.ledger.unlike:
        words = [f"{state.above}{key} is missing" for key in missing]
        raise MismatchError(
            f"{os.fspath(path)} has another optimizer's state:"
            f" {'; '.join([*words, *mine.ledger.unlike])}"
        )


class _Renamed(Mapping):
    """Arrays by other keys; each is read when it is needed.

    Attributes:
        above: Beginning of their keys in the file.
    """

    def __init__(
        self, arrays: Mapping[str, np.ndarray], keys: Mapping[str, str], above: str
    ) -> None:
        self._arrays, self._keys, self.above = arrays, keys, above

    def __getitem__(self, key: str) -> np.ndarray:
        return self._arrays[self._keys[key]]

    def __iter__(self) -> Any:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
