"""Loads a snapshot to continue a training run, on the present number of ranks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pipeline.between_steps import BetweenSteps
from pipeline.snapshots.background import settle
from pipeline.snapshots.errors import (
    SnapshotError,
    on_all_ranks,
)
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.names import COMMON, LOSS
from pipeline.snapshots.objects import (
    check_objects,
)
from pipeline.snapshots.optimizers import (
    OptimizersOfStages,
    positions_of_layers,
)
from pipeline.snapshots.product_dtypes import warn_of_products
from pipeline.snapshots.restoring import OF_ANOTHER_RUN, Restoring
from pipeline.snapshots.roundings import warn_of_rounding


def load_snapshot(
    path: str | os.PathLike,
    pipeline: BetweenSteps,
    optimizer: Any,
    *,
    state: Mapping[str, Any] | None = None,
    strict: bool = True,
) -> Snapshot:
    """Loads what :func:`save_snapshot` saved, for any number of stages and any cuts.

    All ranks must call it, with the same model, optimizers and hooks of the same types,
    and the same ``state``. A key that no rank reads is an error, and so is a key that
    the snapshot lacks. The error lists all of them. Before anything is changed, all
    ranks compare the files that they read with their checksums. They also compare keys,
    shapes, dtypes and hyperparameters with those of the run.

    If :class:`~model_compression.Compress` has removed channels, layers get the sizes
    that they had: give the optimizers to a ``Compress`` with its pipeline before
    loading. A layer that gets its size at its first call, also under
    ``SpectralNormalization``, is loaded as it was saved, whether it has been called
    here or not. Other layers that register values at their first call must be called
    before loading.

    Parameters are frozen as they were when saved. To fine-tune others, call
    ``disable_update`` and ``enable_update`` after loading.

    If a trainer in ``state`` has not started, its extensions begin with the
    hyperparameters of the script when it starts, as they would without a snapshot.
    After that, the loaded hyperparameters are used, or those that the script has set
    since.

    With the same numbers of ranks and replicas, each rank gets its own random states.
    With others, all ranks get those of the rank that had the first stage. Errors kept
    by error feedback belong to parameters; if the number of replicas differs, each
    replica gets their mean. States that layers carry belong to the samples of replica
    0, then of replica 1, and so on. Each replica gets an equal share of them.

    Args:
        path: Directory of the snapshot.
        pipeline (Pipeline): The pipeline.
        optimizer (chainer.Optimizer or list): Optimizers of this rank's stages, set
            up.
        state: Other objects to load, by name; see :func:`save_snapshot`.
        strict (bool): Whether differences are an error. If false, differing keys are
            not loaded, rank 0 warns, and ``differences`` of the returned snapshot lists
            them. An optimizer of another class starts without a state. Arrays of
            another shape or dtype are an error in any case.

    Returns:
        Snapshot: The snapshot, with its ``values``.

    Raises:
        SnapshotError: On every rank, if loading failed on any: with a file that is
            missing, truncated or changed, or with the differences. In most cases
            nothing was changed then. If a file became unreadable meanwhile, or code of
            a layer failed, the error reports a partial change: the pipeline refuses to
            use the run on every rank, until a load succeeds.

    Example:
        See :func:`save_snapshot`.
    """
    return load(path, pipeline, optimizer, state, strict)


def load(
    path: str | os.PathLike,
    pipeline: BetweenSteps,
    optimizer: Any,
    state: Mapping[str, Any] | None,
    strict: bool,
    is_part: bool = False,
) -> Snapshot:
    """Loads like :func:`load_snapshot`, from a directory of each rank's own if need be.

    With ``is_part``, the directory may lack files that this rank does not read.
    """
    settle(pipeline)
    state = dict(state or {})
    # The errors of all ranks are alike, also if their directories are not.
    name = "the copy in memory" if is_part else f"the snapshot {path}"
    what = f"cannot load {name}"
    snapshot, found = on_all_ranks(
        pipeline, "load", what, _open, path, pipeline, optimizer, state, is_part
    )
    checksums = pipeline.internals.gather(snapshot.checksum, "load")
    for rank, checksum in enumerate(checksums):
        if checksum != checksums[0]:
            raise SnapshotError(f"{what}: ranks 0 and {rank} see different ones there")
    loading = Restoring(snapshot, pipeline, found, state, name)
    set_back = loading.fit()
    try:
        loading.check(strict)
    except SnapshotError:
        set_back()
        raise
    differences = loading.load(strict)
    if differences and pipeline.is_chief:
        warnings.warn(f"{path} is loaded in part: {differences}", stacklevel=3)
    if pipeline.is_chief:
        warn_of_products(os.fspath(path), snapshot.versions)
        warn_of_rounding(snapshot, pipeline)
    return replace(snapshot, differences=differences)


def _open(
    path: str | os.PathLike,
    pipeline: BetweenSteps,
    optimizers: Any,
    state: Mapping[str, Any],
    is_part: bool,
) -> tuple[Snapshot, OptimizersOfStages]:
    """Returns the snapshot, once its model fits and its files are verified."""
    check_objects(state)
    found = OptimizersOfStages(optimizers, pipeline)
    snapshot = replace(Snapshot.open(path), replica=pipeline.replica)
    n_layers = len(next(iter(pipeline.stages.values())).model_layers)
    if snapshot.n_layers != n_layers:
        raise SnapshotError(
            f"it is of a model of {snapshot.n_layers} layers, but this one has"
            f" {n_layers}{OF_ANOTHER_RUN}"
        )
    if not is_part:
        snapshot.check_sizes()
    snapshot.check_sums(files_to_read(snapshot, pipeline, found))
    return snapshot, found


def files_to_read(
    snapshot: Snapshot, pipeline: BetweenSteps, found: OptimizersOfStages
) -> list[str]:
    """Returns the names of the files that this rank reads to load a snapshot."""
    positions = set().union(
        *map(positions_of_layers, pipeline.stages.values()),
        *map(found.positions, found.of_stages),
    )
    names = [COMMON, *snapshot.files_of(positions)]
    if pipeline.is_last and LOSS in snapshot.files:
        names.append(LOSS)
    # With another number of replicas, the files of all are read.
    is_another = snapshot.n_replicas != pipeline.n_replicas
    read_as = snapshot.of_replicas() if is_another else [snapshot]
    own = {file for each in read_as for file in each.own_files(names).values()}
    return [*names, *sorted(own)]
