"""The model that a script's trainer trains: evaluated, saved, and given weights."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chainer
from chainer.training import Trainer, extensions
from mpi4py import MPI

from divisible.communication.attempts import on_all_ranks
from divisible.files import written_aside
from pipeline.pipeline import Pipeline
from pipeline.snapshots.npz_files import export_npz, import_npz
from pipeline.snapshots.saving import save_snapshot


class TrainedModel:
    """The model of a trainer, whole or in the stages of a pipeline.

    All ranks call its methods.

    Args:
        trainer (chainer.training.Trainer): Trainer of the script, on this rank.

    Attributes:
        pipeline (Pipeline): Pipeline of the updater; ``None`` for a model in one
            process.
        optimizers (list): Optimizers of this rank.
        links (list): The model, or the stages of this rank.
        is_chief (bool): Whether this rank prints and writes for all.

    Raises:
        ValueError: If the trainer has no evaluator, if several processes train without
            a pipeline, or if the updater trains several models.
    """

    def __init__(self, trainer: Trainer) -> None:
        updater = trainer.updater
        found = getattr(updater, "pipeline", None)
        self.pipeline = found if isinstance(found, Pipeline) else None
        if self.pipeline is None and MPI.COMM_WORLD.size > 1:
            raise ValueError(
                f"{MPI.COMM_WORLD.size} processes train by a"
                f" {type(updater).__name__}, each with a model of its own: run the"
                f" script in one process, or give it a Pipeline, on a Grid for replicas"
            )
        self.optimizers = list(updater.get_all_optimizers().values())
        if self.pipeline is None:
            self.links = [each.target for each in self.optimizers]
            if len(self.links) > 1:
                raise ValueError(
                    f"the updater trains {len(self.links)} models, and it is not known"
                    f" which one is to become smaller: make the plan by hand, for"
                    f" model_compression.Compress"
                )
            self.is_chief = True
        else:
            self.links = list(self.pipeline.stages.values())
            self.is_chief = self.pipeline.is_chief
        self._evaluators = [
            entry.extension
            for entry in trainer._extensions.values()
            if isinstance(entry.extension, extensions.Evaluator)
        ]
        if not self._evaluators:
            raise ValueError(
                "the trainer has no evaluator, whose metric would say what a change"
                " costs: trainer.extend(PipelineEvaluator(iterator, pipe))"
            )
        self._trainer = trainer

    def gather(self, value: Any) -> list:
        """Returns the values of all ranks."""
        if self.pipeline is None:
            return [value]
        return self.pipeline.internals.gather(value, "compress")

    def evaluate(self) -> dict[str, float]:
        """Returns what the evaluators report, by full name."""
        found: dict[str, float] = {}
        for each in self._evaluators:
            found.update(each(self._trainer) or {})
        return {name: float(value) for name, value in found.items()}

    def save(self, path: Path) -> None:
        """Writes the parameters and persistent values of the undivided model.

        Args:
            path: File, as from Chainer's ``save_npz``.
        """
        if self.pipeline is None:
            (link,) = self.links
            self._chief(lambda: _save_npz(path, link))
            return
        folder = path.with_suffix(".snapshot")
        save_snapshot(folder, self.pipeline, self.optimizers)

        def write() -> None:
            export_npz(folder, path)
            shutil.rmtree(folder)

        self._chief(write)

    def load(self, path: Path, *, strict: bool = True) -> None:
        """Loads such a file, before the first update of the trainer.

        Args:
            path: File that :meth:`save` wrote.
            strict: Whether each value has to be in the model; otherwise those of rules
                of an earlier plan are left out.
        """

        def read() -> None:
            with warnings.catch_warnings():
                if not strict:
                    warnings.simplefilter("ignore", UserWarning)
                if self.pipeline is None:
                    (link,) = self.links
                    chainer.serializers.load_npz(os.fspath(path), link, strict=strict)
                else:
                    import_npz(path, self.links, strict=strict)

        on_all_ranks(self.gather, f"cannot read {path}", read)

    def _chief(self, write: Callable[[], None]) -> None:
        """Calls a function on one rank; all ranks raise if it fails."""
        on_all_ranks(self.gather, "", write if self.is_chief else _nothing)


def _nothing() -> None:
    """Stands for the work of another rank."""


def _save_npz(path: Path, link: chainer.Link) -> None:
    with written_aside(path) as aside, open(aside, "wb") as file:
        chainer.serializers.save_npz(file, link)
