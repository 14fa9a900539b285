"""One decision on all ranks: step, or skip the step.

In one message all ranks exchange the sums of squares of all parameters' gradients, and
so learn which gradients overflowed on any rank:
:mod:`divisible.communication.parameter_sums`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from divisible.communication.errors import DisagreementError
from divisible.communication.parameter_sums import ParameterSums, Reduced, Reduction
from divisible.optimizer_hooks import clipping_rate, is_clipping

# A sum of squares from here on counts as not finite, so that all of them can be added
# up. No sum of float32 gradients is as large; sums of float64 gradients are from 2**500
# on.
_TOO_LARGE = 2.0**1000


class Decision(NamedTuple):
    """The decision of all ranks about the gradients of a step.

    Attributes:
        squared_norm: Sum of squares of the gradients of all parameters of the model;
            infinite if one is not finite.
        overflown: Paths of the parameters whose gradients are not finite.
    """

    squared_norm: float
    overflown: list[str]

    def changes_nothing(self, hooks: Iterable[Any]) -> bool:
        """Returns whether the step is not skipped, and no hook clips its gradients."""
        return not self.overflown and all(
            clipping_rate(hook, self.squared_norm) == 1
            for hook in hooks
            if is_clipping(hook)
        )


class Agreement:
    """The ranks of a communicator, and the parameters they hold together.

    Args:
        comm: A ChainerMN communicator or an mpi4py one; ``None`` for one process
            alone.
        timeout (float): Seconds to wait for the other ranks.

    Attributes:
        is_new (bool): Whether :meth:`gather` is still to be called.

    Raises:
        TypeError: If ``comm`` is something else.
    """

    def __init__(self, comm: Any, timeout: float) -> None:
        self._sums = ParameterSums(comm, timeout)
        self._placed: list[str] | None = None
        self.is_new = True

    def gather(self, paths: Sequence[str]) -> None:
        """Gathers the paths of all ranks' parameters; a call of all ranks.

        Args:
            paths: Paths of the parameters that this rank holds.

        Raises:
            StallError: If another rank does not come.
        """
        self._sums.gather(paths)
        self.is_new, self._placed = False, None

    def close(self) -> None:
        """Frees the communicator, and forgets the parameters; a call of all ranks."""
        self._sums.close()
        self.is_new = True

    def place(self, paths: Sequence[str]) -> None:
        """Finds the positions at which :meth:`reduce` puts the sums of this rank.

        Args:
            paths: Paths of the parameters, in the order of their sums.

        Raises:
            ValueError: If a path was not there in :meth:`gather`.
        """
        if paths == self._placed:
            return
        try:
            self._positions = self._sums.positions(paths)
        except KeyError as error:
            raise ValueError(
                f"{', '.join(error.args)} came after the first update, in which the"
                f" ranks agree on the model's parameters: add parameters before it, or"
                f" call setup() again on every rank, which forgets masters and state"
            ) from None
        self._placed = [*paths]

    def reduce(self, sums: np.ndarray, t: int, scale: float) -> Decision:
        """Returns the decision of all ranks; the same on every rank.

        Args:
            sums: Sums of squares of this rank's gradients, in the order given to
                :meth:`place`.
            t (int): Number of updates so far.
            scale (float): The loss scale.

        Raises:
            DisagreementError: If the ranks' numbers of updates or scales differ.
            StallError: If another rank does not come.
        """
        reduced = self._sums.reduce(self._positions, sums, (t, scale))
        return self.decision(reduced, t, scale)

    def begin(self, sums: np.ndarray, t: int, scale: float) -> Reduction:
        """Begins to reduce what the ranks decide by; see :meth:`reduce`."""
        return self._sums.begin(self._positions, sums, (t, scale))

    def overflown(self, sums: np.ndarray) -> np.ndarray:
        """Returns the positions of the sums that are not finite."""
        return np.flatnonzero(~(sums < _TOO_LARGE))

    def decision(self, reduced: Reduced, t: int, scale: float) -> Decision:
        """Returns the decision from the outcome of :meth:`begin`.

        Raises:
            DisagreementError: If the ranks' numbers of updates or scales differ.
        """
        self._compare(reduced.least, reduced.most, t, scale)
        overflown = self.overflown(reduced.sums)
        # Rounded once, so that the order of the parameters is of no account.
        total = math.inf if overflown.size else math.fsum(reduced.sums)
        return Decision(total, [self._sums.paths[i] for i in overflown])

    def _compare(
        self, least: np.ndarray, most: np.ndarray, t: int, scale: float
    ) -> None:
        rank = self._sums.rank
        if least[0] != most[0]:
            raise DisagreementError(
                f"ranks are at different updates, between number {int(least[0])} and"
                f" {int(most[0])}; rank {rank} has made {t}. Every rank must call"
                f" update() equally often, and load the same snapshot"
            )
        if least[1] != most[1]:
            raise DisagreementError(
                f"ranks have different loss scales, from {least[1]:g} to {most[1]:g};"
                f" rank {rank} has {scale:g}. Give every rank the same loss_scale, and"
                f" load the same snapshot"
            )
