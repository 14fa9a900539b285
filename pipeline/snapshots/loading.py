"""Continues a training run from a snapshot, on as many ranks as there are."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Callable

from mixed_precision.hooks import Hooks
from pipeline.pipeline import Pipeline
from pipeline.snapshots import layer_state, manifest
from pipeline.snapshots.arrays import Arrays
from pipeline.snapshots.background import settle
from pipeline.snapshots.carried import load_shares
from pipeline.snapshots.differences import Differences, Ledger, compare
from pipeline.snapshots.errors import SnapshotError
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.kept_state import KeptState
from pipeline.snapshots.on_all_ranks import on_all_ranks
from pipeline.snapshots.optimizer_state import load_optimizer, load_replicas
from pipeline.snapshots.optimizers_of_stages import (
    OptimizersOfStages,
    positions_of_layers,
)
from pipeline.snapshots.random_states import load_random_states
from pipeline.snapshots.resumed_trainers import loaded_as_if_running
from pipeline.snapshots.series import clock_of

# Of all snapshots in a directory 'auto' takes the newest, whosever it is.
_OF_ANOTHER_RUN = "; if it is another run's, give this one a directory of its own"


def load_snapshot(
    path: str | os.PathLike,
    pipeline: Pipeline,
    optimizers: Any,
    state: Mapping[str, Any] | None = None,
    strict: bool = True,
) -> Snapshot:
    """Loads what :func:`save_snapshot` saved, on any number of stages and any cut.

    To be called on every rank, with the same model, the same kinds of optimizers with
    the same hooks, and the same ``state``: what the snapshot has and no rank reads, and
    what a rank looks for and the snapshot lacks, is an error that names it. Before
    anything is changed, the files that a rank reads are compared with their checksums,
    and keys, shapes, dtypes and hyperparameters with what is here, on all ranks.

    Layers of which :class:`~model_compression.Compress` has taken channels away get the
    sizes that they had: give the optimizers to one, with its pipeline, before loading.
    A layer that is sized at its first call, also under ``SpectralNormalization``, is
    loaded as it was saved, whether it has been called here or not. What other layers
    register at their first call must be there: call them before loading.

    Frozen are the parameters that were when it was saved: to fine-tune other ones, call
    ``disable_update`` and ``enable_update`` after loading.

    Where a trainer in ``state`` does not run yet, its extensions begin with the
    hyperparameters of the script when it starts, as they did without a snapshot; after
    that the loaded ones hold, or what the script has set since.

    With as many ranks and replicas as there were, each gets its own random states; with
    another number all get those of the rank that had the first stage. What error
    feedback keeps goes with the parameters; with another number of replicas each gets
    the mean of what they had. States that layers carry are those of the samples of
    replica 0, then of replica 1, and so on: each replica gets an equal share of them.

    Args:
        path: The snapshot's directory.
        pipeline (Pipeline): The pipeline.
        optimizers (chainer.Optimizer or list): Those of this rank's stages, set up.
        state: As in :func:`save_snapshot`.
        strict (bool): If false, what differs is not loaded: rank 0 warns of it, and
            ``differences`` of what is returned lists it. An optimizer of another class
            begins anew. Arrays of another shape or dtype remain an error.

    Returns:
        Snapshot: Among others the ``values``.

    Raises:
        SnapshotError: On every rank, if it failed on any: with the name of the file
            that is missing, truncated or changed, or with what does not fit. Then
            nothing was changed, as a rule. Where a file could not be read any more, or
            code of a layer failed, the error says that the run was changed in part:
            on every rank the pipeline refuses to use it, until a load succeeds.

    Example:
        See :func:`save_snapshot`.
    """
    settle(pipeline)
    state = dict(state or {})
    what = f"cannot load the snapshot {path}"
    attempt = functools.partial(on_all_ranks, pipeline, "load", what)
    snapshot, found = attempt(_open, path, pipeline, optimizers, state)
    checksums = pipeline.gather(snapshot.checksum, "load")
    for rank, checksum in enumerate(checksums):
        if checksum != checksums[0]:
            raise SnapshotError(f"{what}: ranks 0 and {rank} see different ones there")
    arguments = snapshot, pipeline, found, state, what, strict
    set_back = _fit(snapshot, pipeline, found, what)
    try:
        _check(*arguments)
    except SnapshotError:
        set_back()
        raise
    differences = _load(*arguments)
    clock_of(pipeline).note(snapshot.time)
    if differences and pipeline.ranks.is_chief:
        warnings.warn(f"{path} is loaded in part: {differences}", stacklevel=2)
    return replace(snapshot, differences=differences)


def _fit(
    snapshot: Snapshot, pipeline: Pipeline, optimizers: OptimizersOfStages, what: str
) -> Callable[[], None]:
    """Gives layers the sizes that they had when channels were taken away from them.

    Which layers, a hook of an optimizer knows that has a method ``fit``: it takes the
    saved shapes by path, and returns what sets the sizes back.

    Returns:
        What sets all of them back.
    """
    attempt = functools.partial(on_all_ranks, pipeline, "load", what)
    hooks = {
        id(hook): hook
        for optimizer in optimizers.of_stages
        for _, hook in Hooks.named(optimizer)
        if hasattr(hook, "fit")
    }
    shapes = attempt(lambda: _saved_shapes(snapshot, pipeline) if hooks else {})
    calls = pipeline.ranks.calls
    earlier_refusal, calls.refusal = calls.refusal, _refusal(snapshot)
    undoing = attempt(lambda: [hook.fit(shapes) for hook in hooks.values()])
    calls.refusal = earlier_refusal

    def set_back() -> None:
        for each in undoing:
            each()

    return set_back


def _saved_shapes(snapshot: Snapshot, pipeline: Pipeline) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of what was saved of this rank's layers, by path."""
    shapes = {}
    for stage in pipeline.stages.values():
        positions = positions_of_layers(stage)
        with snapshot.of_layers(positions, "model/", Ledger(), True) as arrays:
            shapes.update({f"/{key}": arrays.outline(key).shape for key in arrays})
    return shapes


def _check(
    snapshot: Snapshot,
    pipeline: Pipeline,
    found: OptimizersOfStages,
    state: Mapping[str, Any],
    what: str,
    strict: bool,
) -> None:
    """Looks whether everything fits, on all ranks, and changes nothing.

    Objects of ``state`` may be anybody's. They are loaded, and get back what they had.
    """
    attempt = functools.partial(on_all_ranks, pipeline, "load", what)
    ledger, calls = Ledger(), pipeline.ranks.calls
    attempt(_load_layers, snapshot, pipeline, found, ledger, True)
    kept = KeptState({**state, "pipeline": pipeline})
    earlier_refusal, calls.refusal = calls.refusal, _refusal(snapshot)
    try:
        attempt(_load_objects, snapshot, pipeline, state, ledger)
        # One rank may have what others lack, such as the iterator or a report.
        compare(pipeline.gather(ledger, "load"), what, strict, _OF_ANOTHER_RUN)
    except SnapshotError as error:
        try:
            on_all_ranks(pipeline, "load", calls.refusal, kept.put_back)
        except SnapshotError as failure:
            raise type(error)(f"{error}; {failure}") from error
        calls.refusal = earlier_refusal
        raise


def _load(
    snapshot: Snapshot,
    pipeline: Pipeline,
    found: OptimizersOfStages,
    state: Mapping[str, Any],
    what: str,
    strict: bool,
) -> Differences:
    """Loads everything; until that is done, nobody uses the model."""
    attempt = functools.partial(on_all_ranks, pipeline, "load", what)
    ledger, calls = Ledger(), pipeline.ranks.calls
    calls.refusal = _refusal(snapshot)
    try:
        with loaded_as_if_running(state, [*found.of_stages, *found.of_loss]):
            attempt(_load_layers, snapshot, pipeline, found, ledger)
            # After the layers and the optimizers, which some look at.
            attempt(_load_objects, snapshot, pipeline, state, ledger)
        differences = compare(
            pipeline.gather(ledger, "load"), what, strict, _OF_ANOTHER_RUN
        )
    except SnapshotError as error:
        raise type(error)(f"{error}; {calls.refusal}") from error
    calls.refusal = None
    return differences


def _refusal(snapshot: Snapshot) -> str:
    return (
        f"the run was changed in part when the snapshot {snapshot.path} could not be"
        f" loaded: load a whole snapshot before the model is used, or make the model,"
        f" its optimizers and the Pipeline anew"
    )


def _open(
    path: str | os.PathLike,
    pipeline: Pipeline,
    optimizers: Any,
    state: Mapping[str, Any],
) -> tuple[Snapshot, OptimizersOfStages]:
    """Returns the snapshot, having seen that it fits and its files are unchanged."""
    layer_state.check_objects(state)
    found = OptimizersOfStages(optimizers, pipeline)
    snapshot = replace(Snapshot.open(path), replica=pipeline.ranks.replica)
    n_layers = len(next(iter(pipeline.stages.values())).model_layers)
    if snapshot.n_layers != n_layers:
        raise SnapshotError(
            f"it is of a model of {snapshot.n_layers} layers, but this one has"
            f" {n_layers}{_OF_ANOTHER_RUN}"
        )
    positions = set().union(
        *map(positions_of_layers, pipeline.stages.values()),
        *map(found.positions, found.of_stages),
    )
    names = [manifest.COMMON, *snapshot.files_of(positions)]
    if pipeline.is_last and manifest.LOSS in snapshot.files:
        names.append(manifest.LOSS)
    # Where there were more replicas, or fewer, the files of all are read.
    is_another = snapshot.n_replicas != pipeline.ranks.n_replicas
    read_as = snapshot.of_replicas() if is_another else [snapshot]
    own = {file for each in read_as for file in each.own_files(names).values()}
    snapshot.verify([*names, *sorted(own)])
    return snapshot, found


def _load_layers(
    snapshot: Snapshot,
    pipeline: Pipeline,
    optimizers: OptimizersOfStages,
    ledger: Ledger,
    is_dry_run: bool = False,
) -> None:
    """Loads this rank's stages and loss, with their optimizers."""
    is_another = snapshot.n_replicas != pipeline.ranks.n_replicas

    @contextlib.contextmanager
    def of_replicas(positions: set[int], prefix: str) -> Iterator[list[Arrays]]:
        with contextlib.ExitStack() as stack:
            yield [
                stack.enter_context(each.of_layers(positions, prefix, ledger))
                for each in snapshot.of_replicas()
            ]

    for stage in pipeline.stages.values():
        positions = positions_of_layers(stage)
        with snapshot.of_layers(positions, "model/", ledger, is_dry_run) as arrays:
            layer_state.load_model(stage, arrays)
        if is_another and stage.carried_states:
            with of_replicas(positions, "model/") as replicas:
                load_shares(stage, replicas, pipeline.ranks, is_dry_run)
    for optimizer in optimizers.of_stages:
        positions, names = optimizers.positions(optimizer), optimizers.names(optimizer)
        with snapshot.of_layers(positions, "optimizer/", ledger, is_dry_run) as arrays:
            load_optimizer(optimizer, arrays, names)
        if is_another and not is_dry_run:
            with of_replicas(positions, "optimizer/") as replicas:
                load_replicas(optimizer, replicas, names)
    if pipeline.is_last:
        _load_loss(snapshot, optimizers, ledger, is_dry_run)


def _load_loss(
    snapshot: Snapshot,
    optimizers: OptimizersOfStages,
    ledger: Ledger,
    is_dry_run: bool,
) -> None:
    if manifest.LOSS not in snapshot.files:
        ledger.missing.update(f"model/{name}" for name in optimizers.loss_links)
        return
    with snapshot.arrays([manifest.LOSS], ledger, is_dry_run) as arrays:
        for name, link in optimizers.loss_links.items():
            layer_state.load_model(link, arrays.below(f"model/{name}/"))
        for optimizer in optimizers.of_loss:
            load_optimizer(optimizer, arrays.below("optimizer/"))


def _load_objects(
    snapshot: Snapshot, pipeline: Pipeline, state: Mapping[str, Any], ledger: Ledger
) -> None:
    ranks, n_ranks = pipeline.ranks, pipeline.schedule.n_ranks
    whose = str(ranks.replica * n_ranks + ranks.rank)
    were = snapshot.n_replicas, snapshot.n_ranks
    if (pipeline.is_first and ranks.replica == 0) or (
        ranks.n_replicas,
        n_ranks,
    ) != were:
        whose = "first"
    with snapshot.arrays([manifest.COMMON], ledger) as arrays:
        objects = {**state, "pipeline": pipeline}
        layer_state.load_objects(objects, arrays.below("state/"))
        load_random_states(arrays.below("random/"), whose, state)
