"""The paper's model of a pipeline's step: equations (1) to (3).

With ``d`` stages of equal time and a minibatch in ``m`` microbatches, a pipeline takes
``m + d - 1`` turns, and messages are sent in ``m + d - 2`` of them::

    t_comm(bs) = t_0 + bs * dsize / bw                                  (1)
    t_pipe     = (m + d - 1) * t_comp / (m * d)                         (2)
    T_pipe     = t_pipe + (m + d - 2) * t_comm(bs / m)                  (3)

T_pipe is linear in the three times t_comp, t_0 and bs * dsize / bw. So three measured
steps determine them, as in Fig. 12, and more steps do so by least squares. The model
has no unequal stages and no messages that overlap with computation;
`divisible.simulate` has both.

Source: Takisawa, Yazaki and Ishihata, Evaluation of an Implementation Method for
Pipeline Parallelism Distributed Deep Learning (2022), section 6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

import numpy as np

from divisible.number_lists import amount, numbers
from divisible.records import shown

#: A number, or an array of them.
Number = Union[float, np.ndarray]


def t_comm(bs: Number, t_0: Number, dsize: Number, bw: Number) -> Number:
    """Returns the time of one message: equation (1).

    Args:
        bs: Number of samples in the message.
        t_0: Start-up time of a message, in seconds.
        dsize: Bytes of a sample.
        bw: Bandwidth in bytes per second.

    Returns:
        Seconds.

    Example:
        >>> t_comm(bs=1200, t_0=1e-3, dsize=20_000, bw=12.5e9)
        0.00292
    """
    return t_0 + bs * dsize / bw


def t_pipe(m: Number, d: Number, t_comp: Number) -> Number:
    """Returns the time in which a pipeline computes a minibatch: equation (2).

    Args:
        m: Number of microbatches.
        d: Number of stages.
        t_comp: Time of the minibatch without parallelism, in seconds.

    Returns:
        Seconds.

    Example:
        >>> t_pipe(m=5, d=4, t_comp=1.0)
        0.4
    """
    return (m + d - 1) / m * t_comp / d


def T_pipe(
    m: Number, d: Number, t_comp: Number, t_0: Number, transfer: Number
) -> Number:
    """Returns the time of a step: equation (3).

    Args:
        m: Number of microbatches.
        d: Number of stages.
        t_comp: Time of the minibatch without parallelism, in seconds.
        t_0: Start-up of a message, in seconds.
        transfer: ``bs * dsize / bw`` of the undivided minibatch, in seconds.

    Returns:
        Seconds.

    Example:
        >>> round(T_pipe(m=5, d=4, t_comp=1.0, t_0=0.001, transfer=0.05), 6)
        0.477
    """
    return t_pipe(m, d, t_comp) + (m + d - 2) * t_comm(1 / m, t_0, transfer, 1.0)


@dataclass(frozen=True)
class PerformanceModel:
    """Equation (3) with its constants.

    Attributes:
        d: Number of stages.
        t_comp: Time of the minibatch without parallelism, in seconds.
        t_0: Start-up of a message, in seconds.
        transfer: ``bs * dsize / bw`` of the undivided minibatch, in seconds.

    Example:
        >>> model = PerformanceModel(d=16, t_comp=2.0, t_0=0.005, transfer=0.1)
        >>> model.best_m()
        26
        >>> m = [3, 12, 40]                           # the points of Fig. 12
        >>> fit = PerformanceModel.fit(16, m, model(np.array(m)))
        >>> round(fit.t_comp, 6), round(fit.t_0, 6), round(fit.transfer, 6)
        (2.0, 0.005, 0.1)
    """

    d: int
    t_comp: float
    t_0: float
    transfer: float

    def __post_init__(self) -> None:
        if self.d < 1:
            raise ValueError(f"d must be at least 1, not {self.d}")
        for name in ("t_comp", "t_0", "transfer"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be finite and not negative, not {value}")

    def __call__(self, m: Number) -> Number:
        """Returns the predicted seconds of a step with ``m`` microbatches."""
        return T_pipe(m, self.d, self.t_comp, self.t_0, self.transfer)

    @classmethod
    def fit(
        cls, d: int, m: Sequence[int], seconds: Sequence[float]
    ) -> PerformanceModel:
        """Finds the constants from measured steps.

        The curve goes through three points exactly, as in Fig. 12, where they are m =
        3, 12 and 40. With more points it has the least squares of the relative errors.
        No constant is negative. If points could be met only with negative constants,
        the fit is the nearest one without.

        Args:
            d: Number of stages; 2 at least.
            m: Numbers of microbatches, three different ones at least.
            seconds: Measured seconds of a step with each number of microbatches.

        Returns:
            PerformanceModel: The fit.

        Raises:
            ValueError: If there are too few points, or one is not positive.
        """
        # SciPy is slow to load, and schedules do not need it.
        from scipy.optimize import nnls

        points, times = numbers("m", m), numbers("seconds", seconds)
        if d < 2:
            raise ValueError(
                f"with d = {d} there are no messages: d must be at least 2"
            )
        if points.ndim != 1 or points.shape != times.shape:
            raise ValueError(
                f"m and seconds must be lists of equal length, but m has"
                f" {amount(points)} and seconds {amount(times)}"
            )
        for name, values in (("m", points), ("seconds", times)):
            if not np.all(np.isfinite(values) & (values > 0)):
                raise ValueError(
                    f"{name} must be finite and positive, not {shown(values)}"
                )
        if len(set(points.tolist())) < 3:
            raise ValueError(
                f"three constants need steps at three different m at least, not at"
                f" {sorted(set(points.tolist()))}"
            )
        # The shares of the measured times that each constant contributes.
        unit = np.eye(3)
        share = np.stack([T_pipe(points, d, *one) / times for one in unit], axis=1)
        # The columns differ by orders of magnitude, which costs digits.
        scale = np.abs(share).max(axis=0)
        constants, _ = nnls(share / scale, np.ones(len(points)))
        return cls(d, *(constants / scale).tolist())

    def best_m(self, at_most: int | None = None) -> int:
        """Returns the best number of microbatches, in closed form.

        T_pipe is a constant plus ``m * t_0`` plus ``c / m``, where
        ``c = (d - 1) / d * t_comp + (d - 2) * transfer``. The least T_pipe is at
        ``sqrt(c / t_0)``, or at one of the two integers beside it.

        Args:
            at_most: The greatest number allowed, such as the samples of the minibatch.

        Returns:
            The number.

        Raises:
            ValueError: If messages cost nothing to start (``t_0`` = 0), so that more
                microbatches are always better, and ``at_most`` is not given. Also if
                ``at_most`` is less than 1.
        """
        if at_most is not None and at_most < 1:
            raise ValueError(f"at_most must be at least 1, not {at_most}")
        c = (self.d - 1) / self.d * self.t_comp + max(0, self.d - 2) * self.transfer
        if self.t_0 > 0 or c == 0:
            best = math.sqrt(c / self.t_0) if c > 0 else 1
        elif at_most is None:
            raise ValueError(
                "t_0 is 0: the more microbatches the better. Say how many there may be"
                " with at_most"
            )
        else:
            best = at_most
        beside = {max(1, math.floor(best)), max(1, math.ceil(best))}
        if at_most is not None:
            beside = {min(number, at_most) for number in beside}
        return min(sorted(beside), key=self)

    def errors(self, m: Sequence[int], seconds: Sequence[float]) -> np.ndarray:
        """Returns the relative errors against measured or simulated steps.

        Args:
            m: Numbers of microbatches.
            seconds: Seconds of a step with each number of microbatches.

        Returns:
            ``predicted / seconds - 1``, for each number of microbatches.
        """
        return self(np.asarray(m, float)) / np.asarray(seconds, float) - 1
