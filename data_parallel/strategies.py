"""The strategies that code gradients, with their state between exchanges.

::

    strategy          needs      keeps                            codes by
    'two_roundings'              residuals, with error feedback   TwoRoundingsCode
    'oyama2017'       weights,   quantiles, for some exchanges    Oyama2017Code
                      for ratios

An exchange has one strategy during its life, which makes a new code for each mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Protocol

import numpy as np
from mpi4py import MPI

from data_parallel import oyama2017
from data_parallel.arrays import Spec
from data_parallel.coder import Code, Gradients, MakeCode
from data_parallel.oyama2017_code import Oyama2017Code
from data_parallel.quantiles import Draw, Quantiles
from data_parallel.residuals import NOT_LOADED, OpenResiduals, Residuals
from data_parallel.settings import Settings
from data_parallel.start import Options
from data_parallel.two_roundings import TwoRoundingsCode


class Strategy(Protocol):
    """A strategy, with its state.

    Attributes:
        residuals: Rounding errors; ``None`` without error feedback.
        quantiles: Quantiles in use; ``None`` if there are none.
        copying: The argument for which arrays are copied; empty if there is none.
        uses_weights: Whether the weights are read until the end of the exchange.
        changes_own: Whether the mean of one rank's arrays may differ from the arrays.
    """

    residuals: Residuals | None
    quantiles: Quantiles | None
    copying: str
    uses_weights: bool
    changes_own: bool

    @property
    def origin(self) -> tuple[int, int]:
        """The origin of this rank's residuals."""

    def begin(
        self,
        specs: Sequence[Spec],
        device: Any,
        weights: Sequence[np.ndarray] | None,
    ) -> MakeCode:
        """Begins an exchange.

        Args:
            specs: Descriptions of the arrays.
            device: Device on which they are coded.
            weights: The weights that a caller gives.

        Raises:
            ValueError: If the arrays cannot be coded.
        """

    def keep(self, is_finite: Callable[[], bool], are_there: Sequence[bool]) -> None:
        """Ends an exchange, and keeps its state for the next ones.

        Args:
            is_finite: Returns whether all numbers were finite.
            are_there: For each array whether any rank had it.
        """


def strategy_of(
    settings: Settings,
    options: Options,
    comm: MPI.Comm,
    nodes: Sequence[Sequence[int]],
) -> Strategy:
    """Returns the strategy of an exchange, which has no state yet.

    Args:
        settings: Settings of the exchange.
        options: Options of the exchange.
        comm: Communicator of the exchange.
        nodes: The ranks of each node.
    """
    if settings.is_oyama2017:
        return Oyama2017(settings, comm.rank, nodes, options.every)
    return TwoRoundings(settings, comm, options.timeout, options.error_feedback)


class TwoRoundings:
    """The strategy ``'two_roundings'``.

    Args:
        settings: Settings of the exchange.
        comm: Communicator of the exchange.
        timeout: Seconds that a wait for another rank may take.
        error_feedback: Whether rounding errors are kept.
    """

    quantiles, uses_weights = None, False

    def __init__(
        self, settings: Settings, comm: MPI.Comm, timeout: float, error_feedback: bool
    ) -> None:
        self._settings, self._comm, self._timeout = settings, comm, timeout
        self.residuals = Residuals() if error_feedback else None
        # The residuals of the last exchange.
        self._open: OpenResiduals | None = None
        self.copying = "error_feedback=True" if error_feedback else ""
        # Residuals of several ranks may have been loaded.
        self.changes_own = error_feedback

    @property
    def origin(self) -> tuple[int, int]:
        """The origin of this rank's residuals."""
        return NOT_LOADED if self.residuals is None else self.residuals.origin

    def begin(
        self,
        specs: Sequence[Spec],
        device: Any,
        weights: Sequence[np.ndarray] | None,
    ) -> MakeCode:
        """Begins an exchange, without using the weights."""
        residuals = self.residuals
        if residuals is not None:
            residuals.check_loaded(specs)

        def make(
            gradients: Gradients,
            n_samples: Sequence[int] | None,
            origins: Sequence[tuple[int, int]],
        ) -> Code:
            if residuals is not None:
                self._open = residuals.open(specs, device)
                names = self._open.names
                residuals.share_out(names, self._comm, origins, self._timeout)
            return TwoRoundingsCode(self._settings, gradients, self._open)

        return make

    def keep(self, is_finite: Callable[[], bool], are_there: Sequence[bool]) -> None:
        """Ends an exchange, and keeps its residuals unless a number is not finite."""
        if self._open is not None and is_finite():
            self._open.keep(are_there)


class Oyama2017:
    """The strategy ``'oyama2017'``.

    Args:
        settings: Settings of the exchange.
        rank: This rank.
        nodes: The ranks of each node.
        every: Number of exchanges after which there are new quantiles.
    """

    residuals, changes_own = None, True
    copying = "strategy='oyama2017'"
    origin = NOT_LOADED

    def __init__(
        self,
        settings: Settings,
        rank: int,
        nodes: Sequence[Sequence[int]],
        every: int,
    ) -> None:
        self._settings, self._rank, self._nodes = settings, rank, nodes
        self.quantiles = Quantiles(every)
        self.uses_weights = settings.ratio

    def begin(
        self,
        specs: Sequence[Spec],
        device: Any,
        weights: Sequence[np.ndarray] | None,
    ) -> MakeCode:
        """Begins an exchange of ratios to the weights, or of gradients."""
        flat: Sequence[np.ndarray | None] = [None] * len(specs)
        if self.uses_weights:
            flat = oyama2017.flat_weights(weights, [spec.shape for spec in specs])

        def make(
            gradients: Gradients,
            n_samples: Sequence[int] | None,
            origins: Sequence[tuple[int, int]],
        ) -> Code:
            q, renewal = self.quantiles.open(specs), self.quantiles.renewal
            draws = [Draw(self._rank, spec.name, renewal) for spec in specs]
            are_alike = n_samples is None
            return Oyama2017Code(
                self._settings, gradients, flat, q, draws, self._nodes, are_alike
            )

        return make

    def keep(self, is_finite: Callable[[], bool], are_there: Sequence[bool]) -> None:
        """Ends an exchange, and keeps its quantiles if all numbers are finite."""
        if not self.quantiles.are_new or is_finite():
            self.quantiles.keep()
