"""Pictures of training steps, as an extension of Chainer's trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chainer import training

from divisible.side_files import SideFiles


class TimelineReport(training.Extension):
    """Writes a timeline of all ranks' last training step, with its update.

    Add it to the trainers of all ranks. Rank 0 writes the file into ``trainer.out``, by
    default after each epoch. An evaluation in between does not count as a step. If the
    file cannot be written, rank 0 warns once, and the training goes on.

    Args:
        filename (str): Name of the file, a format string that gets the trainer. A name
            with the ending ``.json`` is for a trace in Chrome's format, which
            ``Timeline.load`` reads. Another ending, such as ``.png``, is for a picture,
            which needs matplotlib.

    Example:
        >>> extension = TimelineReport("step_{.updater.iteration}.png")
        >>> extension.trigger
        (1, 'epoch')
    """

    #: Whether all ranks must call it at the same minibatch, whatever its trigger.
    is_collective = True
    trigger = 1, "epoch"
    default_name = "TimelineReport"

    def __init__(self, filename: str = "timeline_{.updater.iteration}.json") -> None:
        self._filename = filename
        self._files = SideFiles("TimelineReport")

    def __call__(self, trainer: Any) -> None:
        """Measures the timeline on all ranks; rank 0 writes the file."""
        pipe = trainer.updater.pipeline
        timeline = pipe.timeline()
        if pipe.is_chief:
            path = Path(trainer.out) / self._filename.format(trainer)
            write = timeline.save if path.suffix == ".json" else timeline.plot
            with self._files.writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                write(path)
