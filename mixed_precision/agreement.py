"""One decision on all ranks: step, or skip the step.

Every rank holds some of the model's parameters: those of its stages, and the same as
its replicas. One all-reduce takes the maximum, entry by entry, of

::

    [t, -t, scale, -scale, sum of squares of '/0/W', of '/0/b', of '/2/W', ...]

where a rank has 0 for parameters it does not hold, and infinity for gradients that are
not finite. So every rank knows which parameters overflowed, anywhere; a parameter of
which several ranks hold replicas counts once; and since nothing is added on the way,
the norm is the same bit for bit on every rank and for every cut of the model. Eight
bytes for each parameter of the model are small beside the parameter itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from divisible.communication.errors import DisagreementError

# A sum of squares from here on counts as not finite, so that all of them can be added
# up. Of float32 gradients none is as large; of float64 ones from 2**500 on.
_TOO_LARGE = 2.0**1000


class Agreement:
    """The ranks of a communicator, and the parameters they hold together.

    Args:
        comm: A ChainerMN communicator or an mpi4py one; ``None`` for one process
            alone.
        timeout (float): Seconds to wait for the other ranks.

    Attributes:
        paths (list): Of the parameters of all ranks; ``None`` before :meth:`gather`.

    Raises:
        TypeError: If ``comm`` is something else.
    """

    def __init__(self, comm: Any, timeout: float) -> None:
        self._ranks = None
        if comm is not None:
            # Here, because without a communicator no MPI is needed.
            from mixed_precision.ranks import Ranks

            self._ranks = Ranks(comm, timeout)
        self.paths: list[str] | None = None

    def gather(self, paths: Sequence[str]) -> None:
        """Learns which parameters there are; a call of all ranks.

        Args:
            paths: Of the parameters that this rank holds.

        Raises:
            StallError: If another rank does not come.
        """
        everywhere = [paths] if self._ranks is None else self._ranks.gather(paths)
        self.paths = sorted(set().union(*everywhere))
        self._positions = {path: i for i, path in enumerate(self.paths)}
        self._mine = np.zeros(4 + len(self.paths))

    def close(self) -> None:
        """Frees the communicator, and forgets the parameters; a call of all ranks."""
        if self._ranks is not None:
            self._ranks.close()
        self.paths = None

    def positions(self, paths: Sequence[str]) -> np.ndarray:
        """Returns where :meth:`reduce` is to put the sums of these parameters.

        Raises:
            ValueError: If one was not there in :meth:`gather`.
        """
        new = [path for path in paths if path not in self._positions]
        if new:
            raise ValueError(
                f"{', '.join(new)} came after the first update, in which the ranks"
                f" agree on the model's parameters: add parameters before it, or call"
                f" setup() again on every rank, which forgets masters and state"
            )
        return 4 + np.array([self._positions[path] for path in paths], dtype=np.int64)

    def reduce(
        self, positions: np.ndarray, sums: np.ndarray, t: int, scale: float
    ) -> tuple[float, list[str]]:
        """Returns what all ranks' gradients come to; the same on every rank.

        Args:
            positions: From :meth:`positions`.
            sums: Sums of squares of this rank's gradients, in the same order.
            t (int): Number of updates so far.
            scale (float): The loss scale.

        Returns:
            The sum of squares over all parameters of the model, and the paths of those
            whose gradients are not finite.

        Raises:
            DisagreementError: If their numbers of updates or scales differ.
            StallError: If another rank does not come.
        """
        mine = self._mine
        mine[4:] = 0
        # At the larger one, where this rank has two copies of a parameter.
        np.maximum.at(mine, positions, np.where(sums < _TOO_LARGE, sums, math.inf))
        mine[:4] = t, -t, scale, -scale
        largest = mine if self._ranks is None else self._ranks.largest(mine)
        self._compare(largest, t, scale)
        squares = largest[4:]
        overflown = np.flatnonzero(np.isinf(squares))
        # Rounded once, so that the order of the parameters is of no account.
        total = math.inf if overflown.size else math.fsum(squares)
        return total, [self.paths[i] for i in overflown]

    def _compare(self, reduced: np.ndarray, t: int, scale: float) -> None:
        most, least, largest, smallest = reduced[:4]
        if most != -least:
            raise DisagreementError(
                f"ranks are at different updates, between number {int(-least)} and"
                f" {int(most)}; rank {self._ranks.rank} has made {t}. Every rank must"
                f" call update() equally often, and load the same snapshot"
            )
        if largest != -smallest:
            raise DisagreementError(
                f"ranks have different loss scales, from {-smallest:g} to {largest:g};"
                f" rank {self._ranks.rank} has {scale:g}. Give every rank the same"
                f" loss_scale, and load the same snapshot"
            )
