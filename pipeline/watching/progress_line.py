"""The state of a run, as an extension of Chainer's trainer."""

from __future__ import annotations

import sys
from typing import Any

from chainer import training

from pipeline.watching.run_status import RunStatus


class ProgressLine(training.Extension):
    """Shows the progress of all ranks in one line, and writes it into files.

    Add it to the trainers of all ranks, in place of Chainer's ``ProgressBar``. Rank 0
    shows the line while its output goes to a terminal, also by way of ``mpiexec``::

        epoch 2.25, step 1,200, 1:15 left, loss 0.512, 1,234 samples/s, bubble 12%,
        memory 1.0 GiB

    Lines of ``PrintReport``, of ``print`` and of warnings appear above it. If a rank is
    slow, the line begins with its number and the cause. The folder ``ranks`` in
    ``trainer.out`` has the state of each rank, which :class:`~pipeline.RunStatus`
    describes. ``divisible watch`` shows it in another terminal, and ``divisible
    report`` makes a page of the run. A snapshot has nothing of it, so it can join a run
    that is resumed.

    Args:
        line (bool or None): Whether rank 0 shows the line. By default it does if its
            output, or that of its launcher, is a terminal. The files are written in any
            case.

    Example:
        >>> line = ProgressLine()
        >>> line.name, line.default_name
        (None, 'ProgressLine')
    """

    default_name = "ProgressLine"
    # After Rebalance, and before extensions that take longer.
    priority = 950

    def __init__(self, line: bool | None = None) -> None:
        self._wants_line = line
        self._status: RunStatus | None = None
        self._updater: Any = None
        self._handled: BaseException | None = None

    def trigger(self, trainer: Any) -> bool:
        """Returns ``True``: each minibatch counts, and snapshots keep no trigger."""
        return True

    def initialize(self, trainer: Any) -> None:
        """Begins to write; called by the trainer when it starts.

        Raises:
            TypeError: If the trainer's updater is not a ``PipelineUpdater``.
        """
        self._handled = sys.exc_info()[1]
        updater = self._updater = trainer.updater
        pipe = getattr(updater, "pipeline", None)
        if pipe is None:
            raise TypeError(
                f"ProgressLine needs a trainer with a PipelineUpdater, not a"
                f" {type(updater).__name__}"
            )
        self._status = RunStatus(pipe, trainer.out, line=self._wants_line)
        for entry in trainer._extensions.values():
            # PrintReport keeps its stream, and its first line erases nothing.
            if isinstance(entry.extension, training.extensions.PrintReport):
                entry.extension._out = self._status.above(entry.extension._out)

    def __call__(self, trainer: Any) -> None:
        """Notes a minibatch."""
        self._status.note(
            trainer.observation,
            epoch=trainer.updater.epoch_detail,
            share=_share(trainer),
        )

    def finalize(self) -> None:
        """Writes the end of the run; called by the trainer at its end."""
        if self._status is None:
            return
        error = sys.exc_info()[1]
        if error is not None and error is not self._handled:
            self._status.close(f"{type(error).__name__}: {error}")
        elif getattr(self._updater, "stop_code", 0):
            self._status.close("stopped before its end, on request")
        else:
            self._status.close()


def _share(trainer: Any) -> float | None:
    """Returns the share of a training that is done, if its length is known."""
    find = getattr(trainer.stop_trigger, "get_training_length", None)
    if find is None:
        return None
    length, unit = find()
    done = (
        trainer.updater.iteration
        if unit == "iteration"
        else trainer.updater.epoch_detail
    )
    return min(1.0, done / length) if length else None
