"""The seconds of a step in closed form, for the schedules of the catalogue.

The formulas hold for stages of equal times, messages that take no time, and a single
minibatch. The simulator needs none of that, and its results are the same where they
hold. ``d`` is the number of ranks, ``v`` that of stages on a rank, and ``m`` that of
microbatches. F, I and W are the seconds of all layers of a rank, for one microbatch::

    step = m (F + I + W) + time that a rank waits

Sources: the papers of the schedules (docs/explanation/schedules.rst). The papers leave
some cases out, such as an I that takes longer than F and no longer than W. Their terms
follow from the simulator, with which the tests compare.
"""

from __future__ import annotations

from typing import Callable, NamedTuple


class Formula(NamedTuple):
    """The seconds of a step of one schedule.

    Attributes:
        text: The formula.
        holds: The condition under which it holds, in words; empty if it always does.
        wait: Function of ``d``, ``v``, ``m`` and the seconds F, I, W that returns the
            seconds that a rank waits, or ``None`` where the formula does not hold.
    """

    text: str
    holds: str
    wait: Callable[[int, int, int, float, float, float], float | None]

    def seconds(
        self, d: int, v: int, m: int, forward: float, inputs: float, weights: float
    ) -> float | None:
        """Returns the seconds of a step, or ``None`` where the formula does not hold.

        Args:
            d: Number of ranks.
            v: Number of stages on a rank.
            m: Number of microbatches.
            forward: Seconds of F of all layers of a rank.
            inputs: Seconds of I.
            weights: Seconds of W.

        Example:
            >>> FORMULAS["1f1b"].seconds(4, 1, 8, 1.0, 1.0, 1.0)
            33.0
        """
        wait = self.wait(d, v, m, forward, inputs, weights)
        return None if wait is None else m * (forward + inputs + weights) + wait


def _filled(d, v, m, f, i, w):
    return (d - 1) * (f + i + w)


def _halves(d, v, m, f, i, w):
    return (d - 1) * max(f, i, f + i - w) if m >= d else None


def _ahead(d, v, m, f, i, w):
    return (d - 1) * max(f, i - f, f + i - 2 * w) if m >= 2 * d - 1 else None


def _loop(d, v, m, f, i, w):
    return (d - 1) * (f + i + w) / v if m % d == 0 else None


def _loop_halves(d, v, m, f, i, w):
    return (d - 1) * max(f, i, f + i - w) / v if m % d == 0 else None


def _breadth_first(d, v, m, f, i, w):
    return (d - 1) * (f + i + w) / v if m >= d else None


def _v(d, v, m, f, i, w):
    return (d - 1) * f / 2 if m >= 2 * d and f == i == w else None


_TURNS = "m (F + I + W) + (d - 1) (F + I + W)"
_EQUAL = "m >= 2 d, and F = I = W"

#: The formula of each schedule that has one, by name.
FORMULAS = {
    "gpipe": Formula(_TURNS, "", _filled),
    "1f1b": Formula(_TURNS, "", _filled),
    "pipedream_2bw": Formula(_TURNS, "", _filled),
    "zb_h1": Formula("m (F + I + W) + (d - 1) max(F, I, F + I - W)", "m >= d", _halves),
    "zb_h2": Formula(
        "m (F + I + W) + (d - 1) max(F, I - F, F + I - 2 W)", "m >= 2 d - 1", _ahead
    ),
    "interleaved": Formula(
        "m (F + I + W) + (d - 1) (F + I + W) / v", "m is a multiple of d", _loop
    ),
    "looped_bfs": Formula(
        "m (F + I + W) + (d - 1) (F + I + W) / v", "m >= d", _breadth_first
    ),
    "interleaved_zb": Formula(
        "m (F + I + W) + (d - 1) max(F, I, F + I - W) / v",
        "m is a multiple of d",
        _loop_halves,
    ),
    "zb_v": Formula("m (F + I + W) + (d - 1) F / 2", _EQUAL, _v),
    "dualpipe_v": Formula("m (F + I + W) + (d - 1) F / 2", _EQUAL, _v),
}
