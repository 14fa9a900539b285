"""Chainer's reports, which do not end a training if they cannot write."""

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
    """Makes one of Chainer's reports warn, and go on, if it cannot write.

    A full disk should not end a training for the log of an epoch. The log stays in
    memory and is written whole at the next occasion.

    Args:
        extension (chainer.training.Extension): Any extension; only reports change. It
            stays the same object, which the trainer may return.
    """
    if isinstance(extension, extensions.PrintReport):
        let_last(extension._log_report)
    if isinstance(extension, _REPORTS) and not isinstance(extension, _Lasting):
        extension.__class__ = _lasting(type(extension))


@functools.cache
def _lasting(kind: type) -> type:
    return type(kind.__name__, (_Lasting, kind), {"__module__": kind.__module__})


class _Lasting:
    """A base class before that of a report."""

    @functools.cached_property
    def _files(self) -> SideFiles:
        return SideFiles(type(self).__name__)

    def __call__(self, trainer: Trainer) -> Any:
        with self._files.writing(trainer.out):
            return super().__call__(trainer)
        # The averages belong to the entry that could not be written, so they end here.
        if hasattr(self, "_init_summary"):
            self._init_summary()
        return None

    def finalize(self) -> None:
        with self._files.writing("the standard output"):
            super().finalize()
