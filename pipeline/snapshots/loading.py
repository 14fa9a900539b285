"""Loads a snapshot to continue a training run, on the present number of ranks."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Callable, NamedTuple

from divisible.optimizer_hooks import named_hooks
from pipeline.between_steps import BetweenSteps
from pipeline.snapshots.arrays import Arrays
from pipeline.snapshots.background import settle
from pipeline.snapshots.errors import (
    Differences,
    Ledger,
    SnapshotError,
    compare,
    on_all_ranks,
)
from pipeline.snapshots.files import Snapshot
from pipeline.snapshots.layers import load_model, load_shares
from pipeline.snapshots.names import COMMON, LOSS
from pipeline.snapshots.objects import (
    KeptState,
    check_objects,
    load_objects,
    load_random_states,
    loaded_as_if_running,
)
from pipeline.snapshots.optimizers import (
    OptimizersOfStages,
    load_optimizer,
    load_replicas,
    positions_of_layers,
)
from pipeline.snapshots.product_dtypes import warn_of_products
from pipeline.snapshots.roundings import warn_of_rounding

# With 'auto', the newest snapshot in a directory may be another run's.
_OF_ANOTHER_RUN = (
    "; if it is another run's, give this one a directory of its own, or resume=None"
)


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
    and the same ``state``. Keys of the snapshot that no rank reads, and keys that a
    rank needs but the snapshot lacks, are an error that lists them. Before anything is
    changed, all ranks compare the files that they read with their checksums, and keys,
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
    loading = _Loading(snapshot, pipeline, found, state, name)
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


def _is_of_exchange(key: str) -> bool:
    return key.startswith("optimizer/") and "/exchange/" in key


class _Loading(NamedTuple):
    """A snapshot that is being loaded; all ranks must call its methods.

    Attributes:
        snapshot: The snapshot, as this rank's replica reads it.
        pipeline: The pipeline to load it into.
        optimizers: Optimizers of this rank's stages.
        state: Other objects to load, by name.
        name: Name of the snapshot, for errors.
    """

    snapshot: Snapshot
    pipeline: BetweenSteps
    optimizers: OptimizersOfStages
    state: Mapping[str, Any]
    name: str

    def fit(self) -> Callable[[], None]:
        """Gives layers without some of their channels the sizes that they had.

        A hook of an optimizer with a method ``fit`` knows these layers. The method gets
        the saved shapes by path, and returns a function that restores the sizes.

        Returns:
            Function that restores all sizes.
        """
        hooks = {
            id(hook): hook
            for optimizer in self.optimizers.of_stages
            for _, hook in named_hooks(optimizer)
            if hasattr(hook, "fit")
        }
        shapes = self._attempt(lambda: self._saved_shapes() if hooks else {})
        calls = self.pipeline.internals.ranks.calls
        earlier_refusal, calls.refusal = calls.refusal, self._refusal
        undoing = self._attempt(lambda: [hook.fit(shapes) for hook in hooks.values()])
        calls.refusal = earlier_refusal

        def set_back() -> None:
            for each in undoing:
                each()

        return set_back

    def check(self, strict: bool) -> None:
        """Checks that everything fits; changes nothing.

        Objects of ``state`` may belong to the user. They are loaded, and then get their
        present state back.

        Raises:
            SnapshotError: On every rank, if something does not fit.
        """
        ledger, calls = Ledger(), self.pipeline.internals.ranks.calls
        self._attempt(self._load_layers, ledger, True)
        kept = KeptState(self._objects)
        earlier_refusal, calls.refusal = calls.refusal, self._refusal
        try:
            self._attempt(self._load_objects, ledger)
            # A rank may have objects that others lack, such as the iterator or a
            # report.
            self._compared(ledger, strict)
        except SnapshotError as error:
            try:
                on_all_ranks(self.pipeline, "load", calls.refusal, kept.put_back)
            except SnapshotError as failure:
                raise type(error)(f"{error}; {failure}") from error
            calls.refusal = earlier_refusal
            raise

    def load(self, strict: bool) -> Differences:
        """Loads everything; the model is refused until this is complete.

        Raises:
            SnapshotError: On every rank, if it failed on any.
        """
        ledger, calls = Ledger(), self.pipeline.internals.ranks.calls
        found = self.optimizers
        calls.refusal = self._refusal
        try:
            with loaded_as_if_running(self.state, [*found.of_stages, *found.of_loss]):
                self._attempt(self._load_layers, ledger)
                # After layers and optimizers, which some objects read.
                self._attempt(self._load_objects, ledger)
            differences = self._compared(ledger, strict)
        except SnapshotError as error:
            raise type(error)(f"{error}; {calls.refusal}") from error
        calls.use_again()
        return differences

    @property
    def _refusal(self) -> str:
        return (
            f"the run was changed in part when {self.name} could not be loaded: load a"
            f" complete snapshot before the model is used, or make a new model, new"
            f" optimizers and a new Pipeline"
        )

    @property
    def _what(self) -> str:
        return f"cannot load {self.name}"

    @property
    def _objects(self) -> dict[str, Any]:
        return {**self.state, "pipeline": self.pipeline}

    @property
    def _is_of_other_replicas(self) -> bool:
        """Whether the snapshot has another number of replicas than the run."""
        return self.snapshot.n_replicas != self.pipeline.n_replicas

    def _attempt(self, load: Callable[..., Any], *arguments: Any) -> Any:
        return on_all_ranks(self.pipeline, "load", self._what, load, *arguments)

    def _compared(self, ledger: Ledger, strict: bool) -> Differences:
        if self.pipeline.n_replicas == 1 < self.snapshot.n_replicas:
            # A single pipeline does not need the replicas' state of their exchange.
            ledger.read |= set(filter(_is_of_exchange, ledger.found))
        ledgers = self.pipeline.internals.gather(ledger, "load")
        return compare(ledgers, self._what, strict, _OF_ANOTHER_RUN)

    def _saved_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the saved shapes of this rank's layers, by path."""
        shapes = {}
        for stage in self.pipeline.stages.values():
            positions = positions_of_layers(stage)
            with self.snapshot.of_layers(
                positions, "model/", Ledger(), is_dry_run=True
            ) as arrays:
                shapes.update({f"/{key}": arrays.outline(key).shape for key in arrays})
        return shapes

    def _load_layers(self, ledger: Ledger, is_dry_run: bool = False) -> None:
        """Loads this rank's stages and loss, with their optimizers."""
        pipeline, optimizers = self.pipeline, self.optimizers
        for stage in pipeline.stages.values():
            positions = positions_of_layers(stage)
            with self.snapshot.of_layers(
                positions, "model/", ledger, is_dry_run
            ) as arrays:
                load_model(stage, arrays)
            if self._is_of_other_replicas and stage.carried_states:
                with self._of_replicas(positions, "model/", ledger) as replicas:
                    load_shares(stage, replicas, pipeline.internals.ranks, is_dry_run)
        for optimizer in optimizers.of_stages:
            positions = optimizers.positions(optimizer)
            names = optimizers.names(optimizer)
            with self.snapshot.of_layers(
                positions, "optimizer/", ledger, is_dry_run
            ) as arrays:
                load_optimizer(optimizer, arrays, names)
            if self._is_of_other_replicas and not is_dry_run:
                with self._of_replicas(positions, "optimizer/", ledger) as replicas:
                    load_replicas(optimizer, replicas, names)
        if pipeline.is_last:
            self._load_loss(ledger, is_dry_run)

    @contextlib.contextmanager
    def _of_replicas(
        self, positions: set[int], prefix: str, ledger: Ledger
    ) -> Iterator[list[Arrays]]:
        """Opens the arrays that each replica has saved for some layers.

        Replicas without files of their own share those of the first one, because there
        may be more replicas than files that a process may open.
        """
        names = self.snapshot.files_of(positions)
        opened: dict[tuple[str, ...], Arrays] = {}
        with contextlib.ExitStack() as stack:
            replicas = []
            for each in self.snapshot.of_replicas():
                own = tuple(each.own_files(names).values())
                if own not in opened:
                    arrays = each.of_layers(positions, prefix, ledger)
                    opened[own] = stack.enter_context(arrays)
                replicas.append(opened[own])
            yield replicas

    def _load_loss(self, ledger: Ledger, is_dry_run: bool) -> None:
        optimizers = self.optimizers
        if LOSS not in self.snapshot.files:
            ledger.missing.update(f"model/{name}" for name in optimizers.loss_links)
            return
        with self.snapshot.arrays([LOSS], ledger, is_dry_run) as arrays:
            for name, link in optimizers.loss_links.items():
                load_model(link, arrays.below(f"model/{name}/"))
            for optimizer in optimizers.of_loss:
                load_optimizer(optimizer, arrays.below("optimizer/"))

    def _load_objects(self, ledger: Ledger) -> None:
        pipeline, snapshot = self.pipeline, self.snapshot
        ranks, n_ranks = pipeline.internals.ranks, pipeline.schedule.n_ranks
        is_first = pipeline.is_first and ranks.replica == 0
        is_alike = (ranks.n_replicas, n_ranks) == (
            snapshot.n_replicas,
            snapshot.n_ranks,
        )
        # With other ranks than before, all get the random states of the first stage.
        whose = "first"
        if is_alike and not is_first:
            whose = str(ranks.replica * n_ranks + ranks.rank)
        with snapshot.arrays([COMMON], ledger) as arrays:
            load_objects(self._objects, arrays.below("state/"))
            load_random_states(arrays.below("random/"), whose, self.state)


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
            f" {n_layers}{_OF_ANOTHER_RUN}"
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
