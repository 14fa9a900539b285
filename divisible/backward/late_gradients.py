"""Weight gradients that are used one minibatch late."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import chainer

from divisible.backward.weight_gradients import WeightGradients


class LateGradients(WeightGradients):
    """The gradients of one stage's parameters over two minibatches that overlap.

    The backward of a minibatch ends within the call for the next one. So there are two
    sets of arrays: complete gradients, which wait for the optimizer, and sums that
    grow::

        minibatch      0             1                 2
        begin()        |             |                 |
        add(W, g)      0 0 0         0  1 1 1          1  2 2 2
        turn()                        |                 |
        finish()            |              |                 |
        param.grad          None           of minibatch 0    of minibatch 1

    Args:
        parameters: See :class:`WeightGradients`.

    Attributes:
        has_turned (bool): Whether no sum has begun since the last :meth:`turn`.

    Example:
        >>> import chainer, numpy as np
        >>> link = chainer.links.Linear(1, 1, nobias=True, initialW=1)
        >>> gradients, late = LateGradients(link.params), []
        >>> for number in (1, 2, 3):
        ...     gradients.begin()
        ...     if not gradients.has_turned:
        ...         gradients.turn()
        ...     gradients.add(link.W, np.array([[number]], 'f'))
        ...     gradients.finish()
        ...     late.append(link.W.grad if link.W.grad is None else link.W.grad.item())
        >>> late
        [None, 1.0, 2.0]
    """

    def __init__(
        self, parameters: Callable[[], Iterable[chainer.Parameter]] = tuple
    ) -> None:
        super().__init__(parameters)
        # The arrays of the minibatch before.
        self._spare: dict[int, Any] = {}
        self._complete: list[tuple[chainer.Parameter, Any]] = []
        self.has_turned = True

    def begin(self) -> None:
        """Clears ``param.grad``; sums that have begun stay."""
        self._look_up()

    def turn(self) -> None:
        """Completes the gradients of a minibatch, and begins those of the next one."""
        complete = []
        for parameter in self._all():
            gradient = self._total(parameter)
            parameter.cleargrad()
            if gradient is not None:
                complete.append((parameter, gradient))
        self._complete = complete
        self._gradients, self._spare = self._spare, self._gradients
        self._empty()
        self.has_turned = True

    def finish(self, factor: float = 1.0, loss_scale: float | None = None) -> None:
        """Stores the complete gradients in ``param.grad``, and ends the minibatch.

        Args:
            factor (float): Must be 1, because sums of two minibatches may be there.
            loss_scale (float or None): Scale of all gradients.

        Raises:
            ValueError: If ``factor`` is another number.
        """
        if factor != 1.0:
            raise ValueError(
                f"gradients that come one minibatch late are corrected by {factor}:"
                f" lossfun counts other samples than it was asked for. Take a schedule"
                f" with one weight version"
            )
        self.hand_out(loss_scale)
        self.has_turned = False

    def hand_out(self, loss_scale: float | None = None) -> None:
        """Stores the complete gradients in ``param.grad``; they are given once.

        Args:
            loss_scale (float or None): Scale of all gradients.
        """
        for parameter in self._all():
            # Some functions write there by themselves.
            if parameter.grad is not None:
                self.add(parameter, parameter.grad)
                parameter.cleargrad()
        for parameter, gradient in self._complete:
            parameter.grad = gradient
            parameter._loss_scale = loss_scale
        self._complete = []

    def drop(self) -> None:
        """Drops sums and complete gradients."""
        self._complete = []
        self._empty()
        self.has_turned = True

    def _all(self) -> list[chainer.Parameter]:
        return [*self._given.values(), *self.others]
