"""The state of a run, restored from a snapshot that fits it.

::

    fit     layers get the sizes that they had
    check   everything is compared; nothing is changed
    load    layers, optimizers, then other objects
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Callable, NamedTuple

from divisible.optimizer_hooks import named_hooks
from pipeline.between_steps import BetweenSteps
from pipeline.snapshots.arrays import Arrays
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

#: End of errors. With 'auto', the newest snapshot in a directory may be another run's.
OF_ANOTHER_RUN = (
    "; if it is another run's, give this one a directory of its own, or resume=None"
)


def _is_of_exchange(key: str) -> bool:
    return key.startswith("optimizer/") and "/exchange/" in key


class Restoring(NamedTuple):
    """A snapshot that is being loaded into a run; all ranks must call its methods.

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
        # Gradients of a step before belong to another state.
        self.pipeline.internals.step.updates.forget_step()
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
        return compare(ledgers, self._what, strict, OF_ANOTHER_RUN)

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
