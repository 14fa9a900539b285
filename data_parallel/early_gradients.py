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
    """The gradients of the pipeline's step that goes on, or of the last one.

    The pipeline calls :meth:`begin_step`, and then, as it computes, :meth:`open` and
    :meth:`complete`, in any order, :meth:`look` and in the end :meth:`end_step`.

    Args:
        averaging (Averaging): Of the gradients.
        overlaps (bool): Whether they are exchanged during a step, not after it. In
            either case in the order in which a step completes them.

    Attributes:
        parameters: Whose gradients are exchanged, in this order.
        is_under_way: Whether an exchange has begun that no update has ended.
        report: When the exchange of the last step's gradients begins, and why then.
    """

    def __init__(self, averaging: Averaging, overlaps: bool) -> None:
        self._averaging, self._overlaps = averaging, overlaps
        self.parameters: Sequence[NamedParameter] = ()
        self.is_under_way = False
        self.report = "no step has been run yet"
        self._n_samples: int | None = None
        # Whether it is seen only in which order gradients become complete.
        self._waits = True
        # By the identity of parameters: the names of all, as of the begin of the step,
        # and the places in the exchange of those whose gradients come early.
        self._names: dict[int, str] = {}
        self._places: dict[int, int] = {}
        # Those not yet in the exchange.
        self._missing: set[int] = set()
        # Complete before the exchange may begin.
        self._waiting: list[tuple[int, Callable[[], Any]]] = []

    @property
    def spans(self) -> list[tuple[float, float]]:
        """When each bucket of the last exchange began and ended."""
        return [*self._averaging.exchange.spans.values()]

    def begin_step(self) -> Collection[chainer.Parameter]:
        """Returns the parameters that the step is to tell of. A call of all ranks."""
        self.drop()
        order = self._averaging.order
        everything = self._averaging.all_parameters()
        self._names = {id(param): name for name, param in everything}
        # The others may get their shape in this step.
        initialized = [each for each in everything if each.param.is_initialized]
        self.parameters = parameters = in_order(initialized, order)
        reason = self._reason_to_wait(len(everything))
        self._waits = bool(reason)
        if reason:
            self.report = f"after the step: {reason}"
            return () if order else [param for _, param in everything]
        names = {*order}
        # The others are put in the end: they need not come in the same order.
        places = {i for i, (name, _) in enumerate(parameters) if name in names}
        self._missing = {*range(len(parameters))}
        self._places = {id(parameters[i].param): i for i in places}
        return [parameters[i].param for i in places]

    def _reason_to_wait(self, n_parameters: int) -> str:
        """Returns why the next step leaves its gradients to the update, if it does."""
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
        """Begins the exchange, with what is complete.

        Args:
            n_samples: Of which the gradients here are means; ``None`` if all replicas
                have equally many.
        """
        if self._waits:
            return
        self._averaging.begin(self.parameters, n_samples)
        self.is_under_way, self._n_samples = True, n_samples
        for i, take in self._waiting:
            self._put(i, take())
        self._waiting = []

    def complete(self, param: chainer.Parameter, take: Callable[[], Any]) -> None:
        """Gives a gradient to the exchange, at once or when it begins.

        Args:
            param: Whose gradient is complete.
            take: Returns the gradient, which nobody else uses from then on.
        """
        if self._waits:
            return
        i = self._places[id(param)]
        if self.is_under_way:
            self._put(i, take())
        else:
            self._waiting.append((i, take))

    def look(self) -> None:
        """Moves the messages of the exchange on."""
        self._averaging.exchange.look()

    def end_step(self, order: Sequence[chainer.Parameter], refusal: str) -> None:
        """Notes that the step has computed all; nothing comes early any more.

        Args:
            order: In which gradients became complete.
            refusal: Why :meth:`open` has not been called, if so.
        """
        self._averaging.seen = [self._names[id(param)] for param in order]
        if self.is_under_way:
            n, n_others = len(self.parameters), len(self._missing)
            self.report = f"during the step: {n - n_others} of {n} gradients"
        elif not self._waits:
            self.report = f"after the step: {refusal}"
        self._waiting = []

    def put_others(self, n_samples: int | None) -> None:
        """Gives the gradients of all other parameters to the exchange, which ends.

        Args:
            n_samples: Of this replica, if the user has said so.

        Raises:
            ValueError: If the exchange has been told another number.
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
            n_samples: As of :meth:`put_others`.
        """
        self.put_others(n_samples)
        self._averaging.agreement.count()
        self._averaging.finish(self.parameters)

    def drop(self) -> None:
        """Ends an exchange whose means nobody wants; a call of all ranks."""
        if self.is_under_way:
            self.put_others(None)
            self._averaging.exchange.finish()

    def _put(self, i: int, gradient: Any) -> None:
        self._missing.discard(i)
        self._averaging.exchange.put(i, gradient)
