"""Chainer's reports, which do not end a training where they cannot write."""

from __future__ import annotations

import functools
from typing import Any

from chainer.training import Extension, Trainer, extensions

from divisible.side_files import SideFiles

_REPORTS = (
    extensions.LogReport,
    extensions.PlotReport,
    extensions.PrintReport,
    extensions.ProgressBar,
    extensions.VariableStatisticsPlot,
)


def let_last(extension: Extension) -> None:
    """Makes a report of Chainer's warn, and go on, where it cannot write.

    On a full disk the log of an epoch is not worth the training. The log itself is kept
    in memory, and is written whole at the next time.

    Args:
        extension (chainer.training.Extension): Any extension; others than reports stay
            as they are. It stays the same object, for those who ask the trainer for it.
    """
    if isinstance(extension, extensions.PrintReport):
        let_last(extension._log_report)
    if isinstance(extension, _REPORTS) and not isinstance(extension, _Lasting):
        extension.__class__ = _lasting(type(extension))


@functools.cache
def _lasting(kind: type) -> type:
    return type(kind.__name__, (_Lasting, kind), {"__module__": kind.__module__})


class _Lasting:
    """A class before that of a report."""

    @functools.cached_property
    def _files(self) -> SideFiles:
        return SideFiles(type(self).__name__)

    def __call__(self, trainer: Trainer) -> Any:
        with self._files.writing(trainer.out):
            return super().__call__(trainer)
        # The averages belong to the entry that could not be written.
        if hasattr(self, "_init_summary"):
            self._init_summary()
        return None

    def finalize(self) -> None:
        with self._files.writing("the standard output"):
            super().finalize()
