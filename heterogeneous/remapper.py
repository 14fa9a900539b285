"""Training that measures the abilities of its ranks, and moves their parts: DRPM."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from divisible.communication.agreement import agree
from divisible.communication.collectives import all_gather, broadcast_object
from divisible.communication.errors import TIMEOUT
from divisible.records import plain_integer
from heterogeneous import arguments
from heterogeneous.checks import Check, Measurements, Outcome, outcome
from heterogeneous.estimates import check_thresholds
from heterogeneous.mlp import RectangularMLP
from heterogeneous.partition import checked

_CHECK = "to compare how fast the ranks are"


class Remapper:
    """Trains a network, and remaps it at intervals by the times of its ranks.

    Dynamic rectangular partitioning mapping, section 6 of Ozawa et al. (2005). After
    every ``every`` iterations::

        shortest t1 / longest t1     what moves

        first check, no abilities    everything, by t2          'whole'
        below ``whole``              everything, by t2          'whole'
        below ``line``               lines, columns stay, t1    'line'
        otherwise                    nothing                    None

    where t1 is the time of forward, messages within the column and backward, and t2
    that of the backward alone, since all messages change when everything moves. An
    ability is work over time, by the line of least squares through the origin. Rank 0
    decides, and sends the decision to all ranks.

    The method differs from the printed one in two points. Times exclude waits for ranks
    that are late. Only iterations that resemble the newest ones count: neither an
    iteration that took far longer, nor iterations from before a step of load.
    ``Remapper(..., filter=False, waits=True)`` is the method as printed.

    All methods are calls of all ranks.

    Args:
        mlp (RectangularMLP): The network.
        optimizer (chainer.Optimizer): Optimizer that is set up with the network. It
            must treat each element by itself, as SGD, momentum SGD and Adam do; its
            states move along with the units.
        abilities: Abilities of the ranks, if they are known: the network is mapped by
            them at once. ``None`` if they are unknown: begin with a partition for equal
            abilities, and the first check maps everything again.
        every (int): Iterations between two checks, the paper's R.
        last (int): Number of the newest iterations that count, the paper's L. ``None``
            for all iterations since the last check. Without the filter, ``None`` is the
            paper's 6, with which noise in the times causes more remappings.
        whole (float): Ratio of times below which everything moves.
        line (float): Ratio below which lines move.
        filter (bool): Whether only iterations count that resemble the newest ones. The
            paper counts all of the newest ``last``.
        waits (bool): Whether t1 includes waits for late ranks of the column. The paper
            does not subtract them.
        timeout (float): Seconds that a check may wait for another rank.

    Attributes:
        history (list of Check): Results of all checks, the same on all ranks.
        iteration (int): Number of iterations so far.

    Raises:
        TypeError, ValueError: If an argument is wrong.
        DisagreementError: If an argument is wrong on another rank, or the arguments
            differ between ranks.
        StallError: If another rank does not come.

    Example:
        >>> import chainer
        >>> import numpy as np
        >>> from mpi4py import MPI
        >>> from heterogeneous import rectangular_partition
        >>> partition = rectangular_partition([1.0], 3, 4, 2, 10)
        >>> mlp = RectangularMLP(3, 4, 2, MPI.COMM_SELF, partition)
        >>> optimizer = chainer.optimizers.SGD(1.0).setup(mlp)
        >>> remapper = Remapper(mlp, optimizer, every=5)
        >>> x, t = np.ones((10, 3), 'f'), np.zeros((10, 2), 'f')
        >>> losses = [remapper.step(x, t)['loss'] for _ in range(10)]
        >>> [(check.iteration, check.action) for check in remapper.history]
        [(5, None), (10, None)]
    """

    def __init__(
        self,
        mlp: RectangularMLP,
        optimizer: Any,
        *,
        abilities: Sequence[float] | None = None,
        every: int = 20,
        last: int | None = None,
        whole: float = 0.4,
        line: float = 0.8,
        filter: bool = True,
        waits: bool = False,
        timeout: float = TIMEOUT,
    ) -> None:
        refusal, given, own = None, {}, None
        try:
            arguments.check_optimizer(optimizer, mlp)
            own = _check_abilities(abilities, mlp)
            check_thresholds(whole, line)
            every = _at_least_1("every", every)
            last = None if last is None else _at_least_1("last", last)
            given = {
                "abilities": own,
                "every": every,
                "last": last,
                "whole": whole,
                "line": line,
                "filter": bool(filter),
                "waits": bool(waits),
            }
        except (TypeError, ValueError) as error:
            refusal = error
        agree(mlp.comm, given, refusal, timeout, "to make the Remapper")
        self._mlp, self._optimizer, self._timeout = mlp, optimizer, timeout
        self._has_initial = own is not None
        self._every, self._whole, self._line = every, whole, line
        self._measurements = Measurements(last, bool(filter))
        self._includes_waits = bool(waits)
        self._seconds = 0.0
        self.iteration = 0
        self.history: list[Check] = []
        if own is not None and own != mlp.partition.abilities:
            mlp.remap(mlp.partition.remade(own), optimizer=optimizer)

    def step(self, x: Any, t: Any) -> dict[str, float]:
        """Trains with all samples once, and checks the balance when a check is due.

        Args:
            x: All samples, the argument of :meth:`RectangularMLP.step`.
            t: All targets, the argument of :meth:`RectangularMLP.step`.

        Returns:
            The result of :meth:`RectangularMLP.step`.
        """
        start = time.perf_counter()
        result = self._mlp.step(x, t)
        self._optimizer.update()
        self._seconds += time.perf_counter() - start
        self.iteration += 1
        seconds = self._mlp.seconds
        rectangle = self._mlp.partition.rectangles[self._mlp.comm.rank]
        t1 = seconds.t1(self._includes_waits)
        self._measurements.add(rectangle.work, t1, seconds.backward)
        if self.iteration % self._every == 0:
            self._check()
        return result

    def _check(self) -> None:
        mlp, comm = self._mlp, self._mlp.comm
        said = all_gather(comm, self._measurements.summary(), self._timeout, _CHECK)
        decided: Outcome | None = None
        if comm.rank == 0:
            decided = outcome(
                mlp.partition,
                said,
                check=len(self.history) + 1,
                has_initial=self._has_initial,
                whole=self._whole,
                line=self._line,
            )
        told = decided and (
            Check(
                self.iteration,
                self._seconds,
                decided.ratio,
                decided.action,
                decided.abilities,
                decided.partition.per_column,
                decided.slowest,
            )
        )
        check = broadcast_object(comm, told, 0, self._timeout)
        self.history.append(check)
        if check.action == "whole":
            mlp.remap(mlp.partition.remade(check.abilities), optimizer=self._optimizer)
        elif check.action == "line":
            mlp.remap(mlp.partition.resized(check.abilities), optimizer=self._optimizer)
        self._seconds = 0.0


def _check_abilities(
    abilities: Sequence[float] | None, mlp: RectangularMLP
) -> tuple[float, ...] | None:
    if abilities is None:
        return None
    own = checked(abilities)
    if len(own) != mlp.comm.size:
        raise ValueError(
            f"there are {len(own)} abilities for {mlp.comm.size} ranks: give each one"
        )
    # Raises an error for abilities that cannot be mapped.
    mlp.partition.remade(own)
    return own


def _at_least_1(name: str, value: int) -> int:
    number = plain_integer(name, value)
    if number < 1:
        raise ValueError(f"{name} must be 1 or more, not {number}")
    return number
