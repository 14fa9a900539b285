"""Gradients of a single replica, which are their own means.

::

    several replicas    compare --- forward, backward --- exchange --- update
    one replica                     forward, backward      check       update

An exchange of one rank would read and write the same numbers. So nothing is compared,
copied or sent here, and parameters are listed before the first update only. The checks
of an exchange are made here as well. Updates are counted, for a snapshot that several
replicas load.

Strategies that change the gradients of a single replica are run by
:mod:`data_parallel.averaging` instead: ``'oyama2017'`` rounds, and error feedback adds
loaded residuals. With double buffering gradients wait for their update in copies.
"""

from __future__ import annotations

from typing import Any, Callable

from data_parallel.averaging import Averaging
from data_parallel.backward import clear_gradients, run_backward


class SingleReplica:
    """The way of gradients where there is one replica.

    Args:
        optimizer (chainer.Optimizer): Optimizer with the model, and the loss scale.
        averaging (Averaging): Parameters, and the state that snapshots hold.
    """

    def __init__(self, optimizer: Any, averaging: Averaging) -> None:
        self._optimizer, self._averaging = optimizer, averaging

    def backward(self, lossfun: Callable, *args: Any, **kwds: Any) -> None:
        """Computes a loss and its gradients, as Chainer's optimizers do.

        Args:
            lossfun: Function that returns the loss.
            *args: Arguments of ``lossfun``.
            **kwds: Keyword arguments of ``lossfun``.
        """
        loss = lossfun(*args, **kwds)
        clear_gradients(self._optimizer)
        run_backward(self._optimizer, loss)

    def check(self, n_samples: int | None, refusal: str) -> None:
        """Runs the checks of an exchange, and counts an update.

        Args:
            n_samples: Number of samples of the minibatch; ``None`` if it was not set.
            refusal: Reason why the parameters cannot be trained; empty if they can.

        Raises:
            DisagreementError: If there are no samples.
            RuntimeError: If the exchange is closed.
            TypeError, ValueError: If a parameter cannot be exchanged, or the number of
                samples is invalid.
        """
        averaging = self._averaging
        if not averaging.agreement.is_known:
            self._check_parameters(refusal)
        averaging.agreement.count()
        averaging.exchange.leave_out(n_samples)

    def _check_parameters(self, refusal: str) -> None:
        if refusal:
            raise ValueError(refusal)
        everything = self._averaging.all_parameters()
        initialized = [each for each in everything if each.param.is_initialized]
        self._averaging.specs_of(initialized)
        if len(initialized) == len(everything):
            self._averaging.agreement.accept(everything)
