"""Optimizers that exchange gradients while a step still computes others.

The last microbatch completes gradients layer by layer, from the last layer of a stage
to its first. Most stages have time left then: the bubble at the end of a schedule, or
the weight gradients that are still to compute::

    stage 1   F0 F1 B0 B1                      B1 completes W7, W6, W5
    stage 0   F0 F1 .  B0 .  B1                       W3, W2
    exchange of stage 1   ==W7== ==W6== ==W5==
    exchange of stage 0               ==W3== ==W2==   mostly after the step

An exchanged gradient must not change any more. So exchanges begin only once the ranks
know how many samples the loss counts in each replica. If ``lossfun`` reveals this only
at the end of a step, they begin after the step.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Collection
from functools import partial
from typing import Any, Callable, Protocol

import chainer

from divisible.communication.transport import LOOK_SECONDS
from divisible.schedules.rank_program import Record, Span
from pipeline.calls.ranks import Ranks
from pipeline.calls.tie_exchange import TieExchange
from pipeline.stages.stage import Stage

_COUNTS_COME_LATE = (
    "how many samples lossfun counts turns out at the end, unlike with"
    " functions such as F.softmax_cross_entropy, also as a functools.partial"
)


class Taker(Protocol):
    """An optimizer that exchanges gradients as they become complete.

    Attributes:
        spans: Beginning and end of each part of its last exchange, by the clock
            ``time.perf_counter``.
    """

    spans: Collection[tuple[float, float]]

    def begin_step(self) -> Collection[chainer.Parameter]:
        """Begins a step; returns the parameters to pass to :meth:`complete`."""

    def complete(self, param: chainer.Parameter, take: Callable[[], Any]) -> None:
        """Receives a complete gradient; calls ``take`` once :meth:`open` was called."""

    def open(self, n_samples: int | None) -> None:
        """Allows exchanges to begin.

        Args:
            n_samples: Number of samples that the gradients are means of; ``None`` if
                it is equal in all replicas.
        """

    def look(self) -> None:
        """Polls for its messages; called often."""

    def end_step(self, order: list[chainer.Parameter], refusal: str) -> None:
        """Ends the early part of its exchange in this step.

        Args:
            order: Parameters in the order in which their gradients became complete.
            refusal: Reason why :meth:`open` was not called; empty if it was.
        """


class EarlyExchanges:
    """The optimizers of a rank that exchange gradients during steps.

    Args:
        ranks (Ranks): All ranks of the pipeline.

    Attributes:
        are_wanted (bool): Whether an optimizer was added.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.are_wanted = False
        # Weak references, so that an optimizer may be dropped by the script.
        self._added: list[weakref.ref[Taker]] = []
        self._takers: list[Taker] = []
        self._by_param: dict[int, Taker] = {}
        # Complete gradients, with their number of contributions, in this order.
        self._told: list[tuple[Stage, chainer.Parameter, int]] = []
        self._is_open = False
        self._next_look = 0.0

    def add(self, taker: Taker) -> None:
        """Adds an optimizer; it replaces earlier ones with the same parameters."""
        self._added = [ref for ref in self._added if ref() not in (None, taker)]
        self._added.append(weakref.ref(taker))
        self.are_wanted = True

    def begin(self, ties: TieExchange | None) -> None:
        """Begins a step.

        Args:
            ties: Exchange of tied parameters, whose gradients are complete only after
                the step.
        """
        self._told, self._is_open = [], False
        self._takers, self._by_param = [], {}
        for taker in filter(None, [ref() for ref in reversed(self._added)]):
            wanted = {id(param) for param in taker.begin_step()}
            if wanted and wanted.isdisjoint(self._by_param):
                self._takers.append(taker)
                self._by_param.update(dict.fromkeys(wanted, taker))
        for param in ties.params() if ties is not None else ():
            self._by_param.pop(id(param), None)
        if self._takers:
            self._ranks.look = self.look

    def listener(self, stage: Stage) -> Callable[[chainer.Parameter], None] | None:
        """Returns the function to call with complete gradients, or ``None``."""
        return partial(self._complete, stage) if self._takers else None

    @property
    def looks(self) -> Callable[[], None] | None:
        """The function to call often during the step, or None."""
        return self.look if self._takers else None

    def spans(self, record: Record) -> list[Span]:
        """Returns the parts of exchanges during a step, by the clock of its record.

        Args:
            record: Record of the last step, which excludes exchanges before it.
        """
        since = record.times[0]
        takers = filter(None, [ref() for ref in self._added])
        found = [span for taker in takers for span in taker.spans if span[0] >= since]
        return [Span(f"exchange of bucket {i}", *span) for i, span in enumerate(found)]

    def _complete(self, stage: Stage, param: chainer.Parameter) -> None:
        taker = self._by_param.get(id(param))
        if taker is not None:
            self._told.append((stage, param, stage.n_parts(param)))
            taker.complete(param, partial(stage.take, param))

    def look(self) -> None:
        """Polls for messages of exchanges; to be called often.

        Raises:
            DisagreementError: If the ranks' calls differ.
            StallError: If the script of a rank has ended, so that it will not take
                part.
        """
        now = time.perf_counter()
        if now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            self._go_on()

    def _go_on(self) -> None:
        calls = self._ranks.calls
        if not self._is_open:
            calls.check()
            if calls.is_compared and min(calls.agreed.n_counted) >= 0:
                self._is_open = True
                mine = calls.agreed.n_counted[self._ranks.replica]
                for taker in self._takers:
                    taker.open(mine if any(calls.agreed.n_counted) else None)
        for taker in self._takers:
            taker.look()

    def end(self) -> None:
        """Ends exchanges during a step, when the ranks' call is finished."""
        if not self._takers:
            return
        # Other ranks may have been slower than this one.
        self._go_on()
        self._ranks.look = None
        # A gradient with later contributions was not complete.
        order = [
            param
            for stage, param, n_parts in self._told
            if param.grad is None and stage.n_parts(param) == n_parts
        ]
        for taker in self._takers:
            mine = [param for param in order if self._by_param[id(param)] is taker]
            taker.end_step(mine, "" if self._is_open else _COUNTS_COME_LATE)
        self._takers, self._told, self._by_param = [], [], {}
