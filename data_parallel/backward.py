"""The backward of an update that computes its gradients itself.

With ``overlap`` gradients are exchanged while backward computes others::

    backward     F3  F2  F1
    complete        W3  W2  W1       in the order of the exchange
    exchange        ====W3====W2====W1==== ...
    update                             waits for the rest, and applies
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import chainer
import numpy as np

from data_parallel.averaging import Averaging
from data_parallel.gradient_watch import GradientWatch
from data_parallel.parameters import NamedParameter


def clear_gradients(optimizer: Any) -> None:
    """Clears the gradients of an optimizer's model, as the optimizer itself does."""
    if getattr(optimizer, "_use_cleargrads", True):
        optimizer.target.cleargrads()
    else:
        optimizer.target.zerograds()


def run_backward(optimizer: Any, loss: chainer.Variable) -> None:
    """Runs backward from a loss, multiplied by an optimizer's loss scale."""
    backward = getattr(optimizer, "backward", None)
    if backward is not None:
        # Mixed precision has its own backward.
        backward(loss)
    else:
        loss.backward(loss_scale=optimizer._loss_scale)


class Looks(chainer.FunctionHook):
    """Polls the messages of an exchange between functions.

    Args:
        exchange: The exchange.
    """

    name = "MovesMessagesOfExchange"

    def __init__(self, exchange: Any) -> None:
        self._exchange = exchange

    def forward_postprocess(self, function: Any, in_data: Any) -> None:
        """Polls after a forward."""
        self._exchange.look()

    def backward_postprocess(self, function: Any, in_data: Any, out_grad: Any) -> None:
        """Polls after a backward."""
        self._exchange.look()


class Backward:
    """The forward and the backward of such updates.

    The exchange of the last update may go on meanwhile: its messages are polled.

    Args:
        optimizer (chainer.Optimizer): Optimizer with the model, and the loss scale.
        averaging (Averaging): Averages of the gradients.
        overlaps (bool): Whether gradients are exchanged during backward, once the order
            in which they become complete is known.

    Attributes:
        overlaps: Whether gradients are exchanged during backward.
    """

    def __init__(
        self, optimizer: chainer.Optimizer, averaging: Averaging, overlaps: bool
    ) -> None:
        self._optimizer, self._averaging = optimizer, averaging
        self.overlaps = overlaps

    def loss_of(self, lossfun: Callable, *args: Any, **kwds: Any) -> chainer.Variable:
        """Returns the loss, and clears the gradients of the last one."""
        with Looks(self._averaging.exchange):
            loss = lossfun(*args, **kwds)
        clear_gradients(self._optimizer)
        return loss

    def may_average(self, parameters: Sequence[NamedParameter]) -> bool:
        """Returns whether :meth:`average` may run the next backward.

        This needs a known order, and an update that does not compare the replicas
        first.

        Args:
            parameters: Parameters of the model.
        """
        averaging = self._averaging
        knows_order = self.overlaps and bool(averaging.order)
        return knows_order and not averaging.is_due(parameters)

    def run(self, loss: chainer.Variable, parameters: Sequence[NamedParameter]) -> None:
        """Runs backward, and records the order of gradients if it is needed.

        Args:
            loss: Loss from which backward starts.
            parameters: Parameters of the model.
        """
        if not self.overlaps or self._averaging.order:
            with Looks(self._averaging.exchange):
                run_backward(self._optimizer, loss)
            return
        seen: list[str] = []

        def complete(i: int, gradient: np.ndarray) -> None:
            seen.append(parameters[i].name)

        with self._watch(loss, parameters, complete):
            run_backward(self._optimizer, loss)
        self._averaging.seen = seen

    def average(
        self,
        loss: chainer.Variable,
        parameters: Sequence[NamedParameter],
        n_samples: int | None,
    ) -> None:
        """Runs backward, and replaces the gradients by their means.

        Args:
            loss: Loss from which backward starts.
            parameters: Parameters of the model, in the order of the exchange.
            n_samples: Number of samples of this rank's minibatch; ``None`` if all ranks
                have the same number.
        """
        averaging = self._averaging
        missing = set(range(len(parameters)))

        def complete(i: int, gradient: np.ndarray) -> None:
            missing.remove(i)
            # Chainer may use the same array as the gradient of another variable.
            averaging.exchange.put(i, gradient.copy())

        averaging.agreement.count()
        averaging.begin(parameters, n_samples)
        with self._watch(loss, parameters, complete):
            run_backward(self._optimizer, loss)
        for i in sorted(missing):
            averaging.exchange.put(i, parameters[i].param.grad)
        averaging.finish(parameters)

    def _watch(
        self,
        loss: chainer.Variable,
        parameters: Sequence[NamedParameter],
        complete: Callable[[int, np.ndarray], None],
    ) -> GradientWatch:
        look = self._averaging.exchange.look
        return GradientWatch(loss, parameters, complete, look)
