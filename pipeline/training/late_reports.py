"""Chainer's reports, which read a minibatch's values one minibatch later.

A log adds up the values of every minibatch, but prints them only now and then. So it
need not wait for those of the last minibatch, while other ranks still compute them::

    minibatch     1      2      3 (the trigger fires)      4
    observed      l1     l2     l3                         l4
    added up             l1     l2, l3 -> mean             -

The order of the additions stays, and so do the bits of the means. A snapshot adds up
all values before it writes the sums.
"""

from __future__ import annotations

import functools
from typing import Any

import chainer
from chainer.reporter import DictSummary
from chainer.training import Extension, Trainer, extensions

from pipeline.step.late_dict import LateDict, LateValue
from pipeline.training.trigger_texts import is_by_time

_REPORTS = (extensions.LogReport, extensions.PlotReport)


def let_wait(extension: Extension) -> None:
    """Makes one of Chainer's reports read values late.

    Args:
        extension (chainer.training.Extension): Any extension. Only ``LogReport`` and
            ``PlotReport`` change, if the time alone decides when they print: other
            triggers, and classes derived from these, may read values themselves. The
            extension stays the same object.
    """
    if isinstance(extension, extensions.PrintReport):
        let_wait(extension._log_report)
    elif type(extension) in _REPORTS and is_by_time(extension._trigger):
        summary = LateSummary()
        summary._summaries = extension._summary._summaries
        extension.__class__ = _late(type(extension))
        extension._summary = summary


@functools.cache
def _late(kind: type) -> type:
    return type(kind.__name__, (_Late, kind), {"__module__": kind.__module__})


class _Late:
    """A base class before that of a report."""

    def __call__(self, trainer: Trainer) -> Any:
        observation = trainer.observation
        if not isinstance(observation, LateDict):
            return super().__call__(trainer)
        # The report passes on the values that it finds here to its summary.
        trainer.observation = observation.unread()
        try:
            return super().__call__(trainer)
        finally:
            trainer.observation = observation

    def _init_summary(self) -> None:
        self._summary = LateSummary()


class LateSummary(DictSummary):
    """Sums of values, each of which is read when the next ones come."""

    def __init__(self) -> None:
        super().__init__()
        self._unread: dict[str, Any] = {}

    def add(self, d: dict[str, Any]) -> None:
        """Adds values; :class:`.LateValue` stands for one that may be late."""
        self.catch_up()
        self._unread = dict(d)

    def catch_up(self) -> None:
        """Adds the values that have not been read yet."""
        unread, self._unread = self._unread, {}
        read = {
            name: value.value() if isinstance(value, LateValue) else value
            for name, value in unread.items()
        }
        super().add(read)

    def compute_mean(self) -> dict[str, Any]:
        """Returns the means by name."""
        self.catch_up()
        return super().compute_mean()

    def make_statistics(self) -> dict[str, Any]:
        """Returns the means and standard deviations by name."""
        self.catch_up()
        return super().make_statistics()

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Reads or writes the sums of all values so far."""
        if isinstance(serializer, chainer.Deserializer):
            self._unread = {}
        self.catch_up()
        super().serialize(serializer)
