"""Snapshots without training: cut anew, exported, imported."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from divisible import Divisible, Plan
from divisible.chains.names import ChainNames
from divisible.files import written_aside
from divisible.streaming.mapped import mapped_array
from pipeline.snapshots import first_calls, manifest
from pipeline.snapshots.arrays import Arrays, of_range, opened, position, write_arrays
from pipeline.snapshots.differences import Differences, Ledger, compare
from pipeline.snapshots.directories import Draft
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.serial_files import (
    load_optimizer_of_trainer,
    model_prefix,
)
from pipeline.snapshots.serializers import (
    FileReader,
    StateWriter,
    difference,
    is_none,
)


def repartition(
    snapshot: str | os.PathLike, plan: Plan | int, output: str | os.PathLike
) -> Path:
    """Writes a snapshot with the layers cut in another way.

    :func:`~pipeline.load_snapshot` loads a snapshot on any cut as it is. This spares
    the ranks the reading of files of which they need but a part. One stage is in memory
    at a time.

    Args:
        snapshot: The directory of the snapshot to read; it stays as it is.
        plan (Plan or int): The new cut, or the number of stages for one into equally
            many layers.
        output: The directory to write; a snapshot that is there is replaced.

    Returns:
        Path: ``output``.

    Raises:
        SnapshotError: If the snapshot is incomplete, truncated or changed, if stages
            are to be put together whose optimizers differ, if something else than a
            snapshot is at ``output``, or if a run saves in the same directory.
        ValueError: If the cut is not one of this model.

    Example:
        >>> import tempfile
        >>> import chainer
        >>> import chainer.links as L
        >>> from mpi4py import MPI
        >>> from pipeline import Pipeline, save_snapshot
        >>> model = Divisible(*(L.Linear(2, 2) for _ in range(5)))
        >>> optimizer = chainer.optimizers.Adam().setup(model)
        >>> pipe = Pipeline(model, MPI.COMM_SELF, 1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_snapshot(f'{folder}/1', pipe, optimizer)
        ...     path = repartition(f'{folder}/1', 2, f'{folder}/1_on_2_stages')
        ...     Snapshot.open(path).layer_ranges
        [(0, 3), (3, 5)]
    """
    source, output = Snapshot.open(snapshot), Path(output)
    if isinstance(plan, int):
        plan = Plan.uniform(source.n_layers, plan)
    _check_cut(source, plan, output)
    source.verify()
    draft = Draft(output)
    try:
        draft.begin()
        ranges = [plan.range(number) for number in range(plan.n_stages)]
        _write_cut(source, ranges, draft.folder)
        draft.finish()
    except BaseException:
        draft.discard()
        raise
    finally:
        draft.release()
    draft.warn()
    return output


def _check_cut(source: Snapshot, plan: Plan, output: Path) -> None:
    """Sees that a snapshot can be cut so, and written there."""
    if plan.n_layers != source.n_layers:
        raise ValueError(
            f"the cut {plan.cuts} is of {plan.n_layers} layers, but {source.path} is of"
            f" a model of {source.n_layers}"
        )
    there, here = output.resolve(), source.path.resolve()
    if there == here or here in there.parents:
        raise ValueError(
            f"{output} is the snapshot to read, or in it: give another output"
        )


def _write_cut(source: Snapshot, ranges: list[tuple[int, int]], folder: Path) -> None:
    """Writes all files of a snapshot, of other stages than those of the source."""
    written = {}
    for number, layer_range in enumerate(ranges):
        files = source.files_of(range(*layer_range))
        for each in source.of_replicas():
            name, names = manifest.stage_file(number), files
            if each.replica:
                # What it has otherwise.
                name = manifest.replica_file(each.replica, name)
                names = list(each.own_files(files).values())
            with source.arrays(names) as arrays:
                kept = _of_layers(arrays, layer_range)
                if kept or not each.replica:
                    written[name] = write_arrays(folder / name, kept)
    for name in {manifest.COMMON, manifest.LOSS} & set(source.files):
        with source.arrays([name]) as arrays:
            written[name] = write_arrays(folder / name, arrays)
    cut = replace(source, path=folder, layer_ranges=ranges, files=written, schedule={})
    cut.write_manifest()


def _of_layers(arrays: Arrays, layer_range: tuple[int, int]) -> dict[str, np.ndarray]:
    """Returns what belongs to some layers, or to none, by its full key."""
    return {
        kind + key: value
        for kind in ("model/", "optimizer/")
        for key, value in of_range(arrays.below(kind), layer_range).items()
    }


def export_npz(
    snapshot: str | os.PathLike,
    path: str | os.PathLike,
    names: ChainNames | None = None,
) -> None:
    """Writes the parameters and persistent values of the undivided model.

    The file is what :func:`chainer.serializers.save_npz` would have written for the
    undivided model: a script without a pipeline loads it by
    :func:`chainer.serializers.load_npz`.

    Args:
        snapshot: The directory of the snapshot.
        path: The file to write; it appears only when it is complete.
        names (ChainNames): The ``chain_names`` of a model that
            :func:`~divisible.from_chain` made: the file is for the chain then, by its
            own names.

    Raises:
        SnapshotError: If the snapshot is incomplete, truncated or changed.
        KeyError: If it has a layer that has no name in the chain.

    Example:
        >>> import tempfile
        >>> import chainer
        >>> import chainer.links as L
        >>> from mpi4py import MPI
        >>> from pipeline import Pipeline, save_snapshot
        >>> model, serial = Divisible(L.Linear(2, 2)), Divisible(L.Linear(2, 2))
        >>> optimizer = chainer.optimizers.Adam().setup(model)
        >>> pipe = Pipeline(model, MPI.COMM_SELF, 1)
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
            # As Chainer writes what has no value yet.
            key if names is None else names.in_chain(key): (
                np.asarray(None) if is_none(value) else value
            )
            for key, value in arrays.items()
        }
        with written_aside(path) as aside:
            write_arrays(Path(aside), model)


def import_npz(
    path: str | os.PathLike,
    stages: Divisible | Sequence[Divisible],
    strict: bool = True,
    *,
    prefix: str | None = None,
    optimizer: Any = None,
) -> Differences:
    """Loads stages from the file of an undivided model.

    Of :func:`chainer.serializers.save_npz` of the undivided ``Divisible``, alone or in
    a ``Classifier``; of Chainer's own snapshot of a trainer; or of :func:`export_npz`.
    To be called on each rank for its own stages. Unlike
    :func:`chainer.serializers.load_npz` it looks first whether everything is there,
    nothing is left over and all has the right shape, and changes nothing if not.

    Args:
        path: The file.
        stages (Divisible or list of Divisible): A model, or some of its stages.
        strict (bool): If false, parameters that are missing in the file stay as they
            are, what these layers leave over in it is not read, and a warning lists
            both. Another shape remains an error.
        prefix (str or None): What the keys of the layers begin with, such as
            ``'updater/model:main/predictor/'``, if the file has several models.
        optimizer (chainer.Optimizer): Set up with the stage, to be loaded as well, from
            a trainer's snapshot.

    Returns:
        Differences: What was missing and left over, if ``strict`` is false.

    Raises:
        SnapshotError: If a parameter is missing in the file, or has another shape
            there, or the file has one that these layers lack; or if it is damaged, or
            has pickled objects, which could run any code. It is a :class:`ValueError`
            as well.

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
    stages = [stages] if isinstance(stages, Divisible) else list(stages)
    with opened(path) as file:
        prefix = model_prefix(file, prefix, path)
        arrays = Arrays({os.fspath(path): file}).below(prefix)
        found = compare([_expected(stages, arrays)], os.fspath(path), strict)
        for stage in stages:
            with first_calls.as_saved(stage, arrays):
                stage.serialize(FileReader(arrays))
        if optimizer is not None:
            load_optimizer_of_trainer(optimizer, file, prefix, path)
    if found:
        warnings.warn(f"{os.fspath(path)} is loaded in part: {found}", stacklevel=2)
    return found


def _expected(stages: Sequence[Divisible], arrays: Arrays) -> Ledger:
    """Returns what stages have, and what there is in a file for their layers.

    What other stages read is theirs to miss; what belongs to no layer, or to one behind
    the last, is left over to all.
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
        # Whether they are there depends on whether the layer was sized.
        for above, _, hook in first_calls.spectral_hooks(stage):
            weight = f"{above}{hook.weight_name}"
            is_sized = weight in arrays and not is_none(arrays[weight])
            for key in first_calls.registered_keys(above, hook):
                if is_sized:
                    expected.setdefault(key, None)
                else:
                    expected.pop(key, None)
        for key, value in expected.items():
            if key not in arrays:
                ledger.missing.add(f"model/{key}")
                continue
            ledger.read.add(f"model/{key}")
            # Read, whether it can be compared or not: it may be damaged.
            on_disk = mapped_array(value) is not None
            saved = arrays.checked(key) if on_disk else arrays[key]
            if isinstance(value, np.ndarray) and not is_none(value):
                unlike = difference(key, saved, value, "same_kind")
                ledger.unlike += [unlike] * (unlike is not None)
    return ledger
