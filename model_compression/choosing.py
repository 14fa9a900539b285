"""The choice of a trial for each layer, or of none, by mixed integer programming.

::

    layer      /0                  /2
    trial      l1 50%   int8       l1 50%   int8       at most one of each layer
    loss       0.01     0.00       0.30     0.02       added up: the plan's loss
    saved      50       75         200      300        added up: what the plan saves
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

# A sum of floats may exceed a limit by a rounding.
_ROUNDING = 1e-9


def most_saved(
    layers: Sequence[str], saved: np.ndarray, losses: np.ndarray, budget: float
) -> list[int]:
    """Returns the trials that save most, with a sum of losses within a budget.

    Args:
        layers: Layer of each trial.
        saved: Bytes that each trial saves, of shape (n_trials,).
        losses: Loss of each trial, 0 or more, of the same shape.
        budget: The largest sum of losses.

    Example:
        >>> layers, saved = ["/0", "/0", "/2"], np.array([50.0, 75.0, 200.0])
        >>> most_saved(layers, saved, np.array([0.01, 0.04, 0.02]), budget=0.03)
        [0, 2]
    """
    within = LinearConstraint(losses[None], 0, budget * (1 + _ROUNDING))
    found = _solve(layers, -saved / max(1, saved.max(initial=1)), [within])
    return [i for i in found or [] if saved[i] > 0]


def least_loss(
    layers: Sequence[str],
    saved: np.ndarray,
    losses: np.ndarray,
    wanted: Sequence[float],
) -> list[int] | None:
    """Returns the trials with the least sum of losses that save enough.

    Of equal sums, the least change is chosen.

    Args:
        layers: Layer of each trial.
        saved: Amounts that each trial saves, of shape (n_kinds, n_trials): bytes, for
            example, and seconds.
        losses: Loss of each trial, of shape (n_trials,).
        wanted: Least sum of each kind.

    Returns:
        Numbers of trials; ``None`` if no choice saves so much.

    Example:
        >>> layers, saved = ["/0", "/0", "/2"], np.array([[50.0, 75.0, 200.0]])
        >>> least_loss(layers, saved, np.array([0.01, 0.04, 0.02]), wanted=[60.0])
        [2]
    """
    most, least = saved.max(axis=1, initial=0), np.asarray(wanted, float)
    # The solver's tolerances are absolute, and bytes are many, seconds few.
    scale = np.where(most > 0, most, 1)
    saved, least = saved / scale[:, None], least / scale
    enough = LinearConstraint(saved, least - _ROUNDING * np.abs(least), np.inf)
    found, may_be = None, np.ones(len(layers), bool)
    while True:
        # Beside one large loss the others would be equal. Once some choice is known,
        # no trial that loses more than all of it is in a better one.
        losses = np.where(may_be, losses, 0)
        losses = losses / max(1e-300, losses.max(initial=0))
        better = _solve(layers, losses, [enough], may_be)
        if better is None:
            break
        found, before = better, may_be
        may_be = before & (losses <= losses[found].sum() * (1 + _ROUNDING))
        if (may_be == before).all():
            break
    if found is None:
        return None
    most_lost = losses[found].sum() * (1 + _ROUNDING)
    within = LinearConstraint(losses[None], 0, most_lost)
    # The second search may miss the first one's sum by a tolerance.
    again = _solve(layers, saved.sum(axis=0), [enough, within], may_be)
    return found if again is None else again


def _solve(
    layers: Sequence[str],
    cost: np.ndarray,
    constraints: list[LinearConstraint],
    may_be: np.ndarray | bool = True,
) -> list[int] | None:
    """Returns the trials with the least sum of costs, one of each layer at most.

    Args:
        layers: Layer of each trial.
        cost: Cost of each trial.
        constraints: Further constraints.
        may_be: Whether each trial may be chosen.
    """
    if not len(layers):
        return None
    once = np.array([[each == layer for each in layers] for layer in {*layers}])
    found = milp(
        cost,
        integrality=np.ones(len(layers)),
        bounds=Bounds(0, np.ones(len(layers)) * may_be),
        options={"mip_rel_gap": 0.0},
        constraints=[LinearConstraint(once.astype(float), 0, 1), *constraints],
    )
    return None if found.x is None else np.flatnonzero(found.x > 0.5).tolist()
