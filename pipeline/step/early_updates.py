"""Optimizers whose updates begin while a step still computes gradients.

The gradient of a streamed layer is as large as its weights, which do not fit into
memory. To write it to a file, and to read it again for the update, takes two passes
over the disk. If no code reads gradients between the step and the update, the last
backward of a minibatch avoids them: it updates each segment of the weights with its
gradient::

    after the step      B1: gW += ...  written    update: gW, W, m read; W, m written
    with the last B     B1: gW, W, m read; W, m written

All other parameters wait for ``optimizer.update()``. An early update cannot be undone.
So it needs the outcome of the comparison of the ranks' calls, and the number of samples
in the mean loss. Without them, the gradient is written to its file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import chainer

from divisible import Divisible
from divisible.number_lists import as_list
from divisible.optimizer_hooks import Hooks
from pipeline.calls.ranks import Ranks
from pipeline.calls.tie_exchange import TieExchange
from pipeline.hooks.optimizers import OptimizerOfRank, is_mixed
from pipeline.stages.stage import Stage


class EarlyUpdates:
    """The parameters of a rank that a step may update itself.

    Args:
        streamed: Streamed parameters of the rank, by id.
        layers: Stages of the rank.
        ties: Exchange of tied parameters, whose gradients are complete only after the
            step.
        ranks (Ranks): All ranks of the pipeline.
    """

    def __init__(
        self,
        streamed: dict[int, Any],
        layers: Sequence[Divisible],
        ties: TieExchange | None,
        ranks: Ranks,
    ) -> None:
        self._streamed, self._layers, self._ties = streamed, layers, ties
        self._ranks = ranks
        self._params: dict[int, Any] = {}

    @classmethod
    def of(
        cls, stages: Iterable[Stage], ties: TieExchange | None, ranks: Ranks
    ) -> EarlyUpdates | None:
        """Returns an object for a rank's stages; ``None`` if no layer is streamed."""
        streamed = {id(param): param for param in ranks.calls.streamed}
        layers = [stage.layers for stage in stages]
        return cls(streamed, layers, ties, ranks) if streamed else None

    def begin(self, optimizers: Any, loss_scale: float | None) -> None:
        """Begins a step.

        Args:
            optimizers (chainer.Optimizer or list): Optimizers whose ``update`` the
                script calls next; ``None`` if they are not known.
            loss_scale (float or None): Factor by which gradients are multiplied.
                Parameters get it after the step, and their rules divide by it.

        Raises:
            TypeError: If an object is not an optimizer.
            ValueError: If an optimizer is not set up.
            RuntimeError: If ``update`` was not called after the last step.
        """
        self._params = {}
        for param in self._streamed.values():
            if param.is_updated:
                raise RuntimeError(
                    f"the last step has updated {param.name} of a streamed layer, as it"
                    f" was given the optimizer, but optimizer.update(), which updates"
                    f" the other parameters, was not called: call it after each step"
                )
        if optimizers is None:
            return
        for optimizer in as_list(optimizers):
            found = OptimizerOfRank.of(optimizer, self._layers)
            if loss_scale is None and not _looks_at_gradients(optimizer, found):
                self._params.update(_known(found.target.params(), self._streamed))
        for param in self._ties.params() if self._ties is not None else ():
            self._params.pop(id(param), None)

    @property
    def decide(self) -> Callable[[chainer.Parameter], bool] | None:
        """Function that returns whether a parameter is updated early, or ``None``."""
        return self._decide if self._params else None

    def _decide(self, param: chainer.Parameter) -> bool:
        if id(param) not in self._params or not param.can_be_updated_early:
            return False
        calls = self._ranks.calls
        calls.check()
        # Without a count for every replica, the gradient is corrected at the end.
        return calls.is_compared and min(calls.agreed.n_counted) > 0

    def end(self) -> None:
        """Ends a step, when gradients are in ``param.grad``."""
        for param in self._params.values():
            if param.is_updated:
                param.grad = param.no_gradient()
        self._params = {}


def _known(
    params: Iterable[chainer.Parameter], streamed: dict[int, Any]
) -> Iterator[tuple[int, Any]]:
    """Yields the streamed parameters among ``params``, with their ids."""
    for param in params:
        if id(param) in streamed:
            yield id(param), param


def _looks_at_gradients(optimizer: Any, found: OptimizerOfRank) -> bool:
    """Returns whether an optimizer uses gradients for more than its update rules."""
    if is_mixed(optimizer) or found.optimizer is not optimizer:
        return True
    has_own_update = type(optimizer).update is not chainer.GradientMethod.update
    return bool(has_own_update or optimizer._loss_scale or Hooks.of(optimizer).before)
