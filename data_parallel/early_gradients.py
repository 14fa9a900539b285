"""Gradients that are exchanged while a pipeline computes others.

::

    step of the pipeline     F0 F1 B0 B1
    complete                          W3  W2  W1      in the order of the exchange
    exchange                          ====W3====W2====W1==== ...
    update                                             waits for the rest, and applies
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Callable

import chainer

from data_parallel.averaging import Averaging
from data_parallel.parameters import NamedParameter, in_order


class EarlyGradients:
    """The gradients of the pipeline's step that is running, or of the last one.

    The pipeline calls :meth:`begin_step`. While it computes, it calls :meth:`open`,
    :meth:`complete`, in any order, and :meth:`look`. At the end it calls
    :meth:`end_step`.

    Args:
        averaging (Averaging): Averages of the gradients.
        overlaps (bool): Whether gradients are exchanged during a step, not after it. In
            both cases they are exchanged in the order in which a step completes them.

    Attributes:
        parameters: Parameters whose gradients are exchanged, in this order.
        is_under_way: Whether an exchange has begun that no update has ended.
        report: When the exchange of the last step's gradients begins, and the reason.
    """

    def __init__(self, averaging: Averaging, overlaps: bool) -> None:
        self._averaging, self._overlaps = averaging, overlaps
        self.parameters: Sequence[NamedParameter] = ()
        self.is_under_way = False
        self.report = "no step has been run yet"
        self._n_samples: int | None = None
        # Whether the exchange waits for the update. The order is recorded all the same.
        self._waits = True
        # Keys are identities of parameters: the names of all at the beginning of the
        # step, and the places in the exchange of those whose gradients come early.
        self._names: dict[int, str] = {}
        self._places: dict[int, int] = {}
        # Positions of parameters that are not yet in the exchange.
        self._missing: set[int] = set()
        # Complete gradients that wait for the exchange to begin.
        self._waiting: list[tuple[int, Callable[[], Any]]] = []

    @property
    def spans(self) -> list[tuple[float, float]]:
        """The begin and end of each bucket of the last exchange."""
        return [*self._averaging.exchange.spans.values()]

    def begin_step(self) -> Collection[chainer.Parameter]:
        """Returns the parameters that the step must report. A call of all ranks."""
        self.drop()
        order = self._averaging.order
        everything = self._averaging.all_parameters()
        self._names = {id(param): name for name, param in everything}
        # Other parameters may get their shape in this step.
        initialized = [each for each in everything if each.param.is_initialized]
        self.parameters = parameters = in_order(initialized, order)
        reason = self._reason_to_wait(len(everything))
        self._waits = bool(reason)
        if reason:
            self.report = f"after the step: {reason}"
            return () if order else [param for _, param in everything]
        names = {*order}
        # Other parameters are put at the end: they need not come in the same order.
        places = {i for i, (name, _) in enumerate(parameters) if name in names}
        self._missing = {*range(len(parameters))}
        self._places = {id(parameters[i].param): i for i in places}
        return [parameters[i].param for i in places]

    def _reason_to_wait(self, n_parameters: int) -> str:
        """Returns the reason to exchange gradients in the update; may be empty."""
        if not self._overlaps:
            return "overlap=False"
        if self._averaging.is_due(self.parameters):
            return "its update compares the replicas first"
        if not self._averaging.order:
            return "it shows in which order gradients become complete"
        if len(self.parameters) < n_parameters:
            return "some parameters are not initialized"
        return ""

    def open(self, n_samples: int | None) -> None:
        """Begins the exchange, with the gradients that are complete.

        Args:
            n_samples: Number of samples of which the gradients are means; ``None`` if
                all replicas have the same number.
        """
        if self._waits:
            return
        self._averaging.begin(self.parameters, n_samples)
        self.is_under_way, self._n_samples = True, n_samples
        for i, take in self._waiting:
            self._put(i, take())
        self._waiting = []

    def complete(self, param: chainer.Parameter, take: Callable[[], Any]) -> None:
        """Adds a gradient to the exchange, at once or when it begins.

        Args:
            param: The parameter whose gradient is complete.
            take: Returns the gradient, which no other code uses from then on.
        """
        if self._waits:
            return
        i = self._places[id(param)]
        if self.is_under_way:
            self._put(i, take())
        else:
            self._waiting.append((i, take))

    def look(self) -> None:
        """Polls the messages of the exchange."""
        self._averaging.exchange.look()

    def end_step(self, order: Sequence[chainer.Parameter], refusal: str) -> None:
        """Records that the step has computed all gradients; none comes early any more.

        Args:
            order: Parameters in the order in which their gradients became complete.
            refusal: Reason why :meth:`open` was not called, if it was not.
        """
        self._averaging.seen = [self._names[id(param)] for param in order]
        if self.is_under_way:
            n, n_others = len(self.parameters), len(self._missing)
            self.report = f"during the step: {n - n_others} of {n} gradients"
        elif not self._waits:
            self.report = f"after the step: {refusal}"
        self._waiting = []

    def put_others(self, n_samples: int | None) -> None:
        """Adds the gradients of all other parameters to the exchange.

        Args:
            n_samples: Number of samples of this replica, if the user has set it.

        Raises:
            ValueError: If the exchange has begun with another number.
        """
        if n_samples not in (None, self._n_samples):
            raise ValueError(
                f"n_samples is {n_samples}, but the pipeline has begun to exchange"
                f" gradients that are means of {self._n_samples} samples: leave it"
                f" out, or give create_multi_node_optimizer overlap=False"
            )
        for i in sorted(self._missing):
            self._put(i, self.parameters[i].param.grad)
        self.is_under_way = False

    def average(self, n_samples: int | None) -> None:
        """Replaces the gradients of all parameters by their means.

        Args:
            n_samples: Number of samples; see :meth:`put_others`.
        """
        self.put_others(n_samples)
        self._averaging.agreement.count()
        self._averaging.finish(self.parameters)

    def drop(self) -> None:
        """Ends an exchange whose means are not needed; a call of all ranks."""
        if self.is_under_way:
            self.put_others(None)
            self._averaging.exchange.finish()

    def _put(self, i: int, gradient: Any) -> None:
        self._missing.discard(i)
        self._averaging.exchange.put(i, gradient)
