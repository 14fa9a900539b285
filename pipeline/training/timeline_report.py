"""Pictures of training steps, as an extension of Chainer's trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chainer import training

from divisible.side_files import SideFiles


class TimelineReport(training.Extension):
    """Writes what every rank did in the last training step, and when.

    Extend the trainers of all ranks with it. The file is written by rank 0, in
    ``trainer.out``. By default that is after each epoch; an evaluation in between does
    not count as a step. Where it cannot be written, rank 0 warns once, and the training
    goes on.

    Args:
        filename (str): Its name, a format string that is given the trainer. With the
            ending ``.json`` it is a trace in Chrome's format, to be looked at and to be
            read back by ``Timeline.load``; with another one, such as ``.png``, a
            picture, which needs matplotlib.

    Example:
        >>> extension = TimelineReport("step_{.updater.iteration}.png")
        >>> extension.trigger
        (1, 'epoch')
    """

    #: To be called on all ranks at the same minibatch, whatever its trigger.
    is_collective = True
    trigger = 1, "epoch"
    default_name = "TimelineReport"

    def __init__(self, filename: str = "timeline_{.updater.iteration}.json") -> None:
        self._filename = filename
        self._files = SideFiles("TimelineReport")

    def __call__(self, trainer: Any) -> None:
        """Writes the file."""
        pipe = trainer.updater.pipeline
        timeline = pipe.timeline()
        if pipe.ranks.is_chief:
            path = Path(trainer.out) / self._filename.format(trainer)
            write = timeline.save if path.suffix == ".json" else timeline.plot
            with self._files.writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                write(path)
