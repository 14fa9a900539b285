"""Decides from the times of stages whether other cuts are better. No messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from divisible.number_lists import amount
from divisible.planning.cost_model import CostModel
from divisible.planning.cuts import MemoryLimitError
from divisible.planning.network import Network
from divisible.planning.partition import partition
from divisible.planning.per_rank import PerRank, spread_memory
from divisible.planning.plan import Plan
from divisible.planning.profile import Profile
from divisible.planning.units import format_seconds
from divisible.schedules.catalogue import CATALOGUE, create
from divisible.schedules.schedule import Schedule
from heterogeneous import ability
from heterogeneous.estimates import ratio
from pipeline.rebalancing.stage_times import like_the_newest

# Number of standard errors of the speeds that a gain must exceed.
_ERRORS = 4
#: The cause of unequal times if it is not known which ranks are slow.
UNKNOWN = (
    "the ranks are busy unequally, by slow hosts or by costly layers, which a profile"
    " would tell apart"
)
# A rank with this share of the speed of the others is not slow.
_ALIKE = 0.9
# Ratio of the standard deviation to the median deviation, for a normal distribution.
_OF_NORMAL = 1.4826


class Decision(NamedTuple):
    """A decision on the cuts of the model.

    Attributes:
        cuts: The new cuts; ``None`` if the cuts stay.
        speeds: Speeds of the ranks, relative to the machine of the profile.
        step_seconds: Seconds of a minibatch with the present cuts, simulated at these
            speeds.
        new_step_seconds: Seconds with the best cuts found; equal if none were sought.
        reason: Text about the cause of the decision.
    """

    cuts: list[int] | None
    speeds: tuple[float, ...]
    step_seconds: float
    new_step_seconds: float
    reason: str


def decide_cuts(
    profile: Profile,
    cuts: Sequence[int],
    seconds: Sequence[float] | Sequence[Sequence[float]] | np.ndarray,
    *,
    n_microbatches: int | None = None,
    schedule: str | Schedule = "1f1b",
    network: Network | None = None,
    memory: PerRank | None = None,
    threshold: float = 0.8,
    horizon: int = 1000,
    move_seconds: float = 0.0,
    minimum_gain: float = 0.03,
    are_compared: bool = True,
) -> Decision:
    """Decides whether other cuts are worth a move, from the times of stages.

    ::

        seconds of stages --ability--> speeds of ranks --partition--> new cuts
              |                             |                           |
        alike within the threshold?     simulate the present cuts, and the new ones
              |                             |
            stay               stay unless the gain is large enough, and pays

    A rank's speed is its work, by the profile, divided by the time that it took: the
    line of least squares of :func:`heterogeneous.ability`, through the minibatches like
    the newest ones. If times scatter, a gain must also exceed four standard errors of
    their mean.

    Args:
        profile: Costs of the layers, at the size of microbatch in use.
        cuts: Present cuts of the model.
        seconds: Seconds that each stage was busy in the last minibatches, of the shape
            (n_stages,) or (n_minibatches, n_stages), the oldest first.
        n_microbatches (int): Number of microbatches in a minibatch; by default that of
            a ``Schedule``.
        schedule (str or Schedule): Schedule of the stages; see
            :func:`~divisible.partition`.
        network (Network): Links between ranks; infinitely fast by default.
        memory: Bytes that each rank may use: one number for all, or one for each.
            Several stages on a rank may use equal parts.
        threshold (float): Nothing moves if the least busy rank is busy for this share
            of the busiest rank's time, or longer.
        horizon (int): Number of minibatches in which a move must pay for itself.
        move_seconds (float): Seconds that a move takes.
        minimum_gain (float): Least gain of a move, as a share of a step's time.
        are_compared (bool): Whether the profile was measured on one machine. If each
            stage's layers were measured on its own rank, no rank is called slow.

    Returns:
        Decision: The new cuts, or the reason why there are none.

    Raises:
        ValueError: If the arguments do not fit together, or a time is not positive.

    Example:
        >>> from divisible.planning.layer_cost import LayerCost
        >>> profile = Profile([LayerCost(0.01, 0.01, 0.01)] * 12, n_samples=8)
        >>> now = [0, 3, 6, 9, 12]
        >>> alike = decide_cuts(profile, now, [0.72] * 4, n_microbatches=8)
        >>> alike.cuts is None, alike.reason
        (True, 'the ranks are busy alike: the least one for 1.00 of the longest time')
        >>> slow = decide_cuts(profile, now, [0.72, 0.72, 1.44, 0.72], n_microbatches=8)
        >>> slow.cuts, [round(speed, 3) for speed in slow.speeds]
        ([0, 4, 8, 9, 12], [1.0, 1.0, 0.5, 1.0])
    """
    cuts, times = list(cuts), np.atleast_2d(np.asarray(seconds, np.float64))
    n_stages = len(cuts) - 1
    _check(profile, cuts, times, threshold, horizon, minimum_gain)
    chosen = _schedule(schedule, n_stages, n_microbatches)
    base = partition(profile, n_stages, schedule=chosen, cuts=cuts)
    measured = _Measured.of(times, base, chosen)
    speeds, network = measured.speeds, Network() if network is None else network
    links = network.links(chosen.n_ranks)
    model = CostModel.of(chosen, [profile] * chosen.n_microbatches, speeds, links)

    def simulated(those: Sequence[int]) -> float:
        return model.simulate(those).makespan

    now = simulated(cuts)

    def stay(reason: str, new: float = now) -> Decision:
        return Decision(None, tuple(speeds.tolist()), now, new, reason)

    if measured.balance >= threshold:
        return stay(
            f"the ranks are busy alike: the least one for {measured.balance:.2f} of the"
            f" longest time"
        )
    ranks = np.array(chosen.stage_ranks)
    limits = spread_memory(memory, chosen.n_ranks) / np.bincount(ranks)

    def fitting(those: Sequence[int] | None) -> Plan:
        return partition(
            profile,
            n_stages,
            speeds=speeds[ranks],
            memory=limits[ranks],
            network=Network(*links.between_stages(chosen.stage_ranks)),
            schedule=chosen,
            cuts=those,
        )

    try:
        plan = fitting(None)
    except MemoryLimitError as error:
        return stay(f"no other cut fits: {error}")
    found, new = _improved(plan, simulated, fitting)
    gain = now - new
    # Gains by chance would be reversed at the next check.
    least = max(minimum_gain, _ERRORS * measured.error)
    if found == cuts or gain < least * now:
        return stay(
            f"the best cut, {found}, gains {max(0.0, gain) / now:.1%} of a step, less"
            f" than {least:.1%}",
            new,
        )
    if gain * horizon <= move_seconds:
        return stay(
            f"the cut {found} gains {format_seconds(gain * horizon)} in {horizon}"
            f" steps, but moving takes {format_seconds(move_seconds)}",
            new,
        )
    why = cause(speeds) if are_compared else UNKNOWN
    reason = f"{why}; the cut {found} gains {gain / now:.1%} of a step"
    return Decision(found, tuple(speeds.tolist()), now, new, reason)


class _Measured(NamedTuple):
    """The speeds of the ranks, and the balance of their times.

    Attributes:
        speeds: Speeds of the ranks, relative to the machine of the profile.
        balance: Time of the least busy rank, as a share of the busiest rank's time.
        error: Largest relative standard error of a rank's times.
    """

    speeds: np.ndarray
    balance: float
    error: float

    @classmethod
    def of(cls, times: np.ndarray, plan: Plan, schedule: Schedule) -> _Measured:
        """Compares the times of stages with their work.

        Args:
            times: Seconds of the shape (n_minibatches, n_stages), the oldest first.
            plan: The present stages, with their costs at speed 1.
            schedule: Schedule that runs them.
        """
        ranks = np.array(schedule.stage_ranks)
        work = np.bincount(ranks, [stage.seconds for stage in plan.stages])
        work *= schedule.n_microbatches
        busy = (times[:, ranks == i].sum(axis=1) for i in range(schedule.n_ranks))
        counted = list(map(like_the_newest, busy))
        speeds = np.array(
            [ability([w] * len(t), t, last=None) for w, t in zip(work, counted)]
        )
        balance = ratio((work / speeds).tolist())
        return cls(speeds, balance, max(map(_relative_error, counted)))


def cause(speeds: Sequence[float] | None, hosts: Sequence[str] | None = None) -> str:
    """Returns a text about the cause of the ranks' unequal times.

    Args:
        speeds: Speeds of the ranks, relative to the profile; ``None`` if they are not
            known.
        hosts: Hosts of the ranks.

    Example:
        >>> cause([1.0, 1.0, 0.5], hosts=["a", "b", "c"])
        'rank 2 on c has 0.50 of the speed of others'
        >>> cause([1.0, 0.96])
        'the ranks are about as fast as each other, but their layers cost unequally'
    """
    if speeds is None:
        return UNKNOWN
    relative = to_others(speeds)
    slowest = int(relative.argmin())
    if relative[slowest] >= _ALIKE:
        return (
            "the ranks are about as fast as each other, but their layers cost unequally"
        )
    where = (
        f"rank {slowest}" if hosts is None else f"rank {slowest} on {hosts[slowest]}"
    )
    return f"{where} has {relative[slowest]:.2f} of the speed of others"


def to_others(speeds: Sequence[float]) -> np.ndarray:
    """Returns the speed of each rank, relative to the median of the others.

    Example:
        >>> to_others([1.0, 0.5, 2.0]).round(3).tolist()
        [0.8, 0.333, 2.667]
        >>> to_others([3.0]).tolist()
        [1.0]
    """
    values = np.asarray(speeds, np.float64)
    if len(values) == 1:
        return np.ones(1)
    others = [np.median(np.delete(values, i)) for i in range(len(values))]
    return values / others


def _improved(
    plan: Plan,
    simulated: Callable[[Sequence[int]], float],
    fitting: Callable[[Sequence[int]], Plan],
) -> tuple[list[int], float]:
    """Moves single layers between stages while the simulated step shortens.

    Cuts with the same slowest stage differ in how the pipeline fills and empties, and a
    partition returns one of them by chance. The best cuts by simulation are the same at
    every check.

    Args:
        plan: Cuts to begin with.
        simulated: Returns the seconds of a step with some cuts.
        fitting: Returns a plan for some cuts; raises an error if they do not fit in
            memory.

    Returns:
        The cuts, and the seconds of a step with them.
    """
    seconds = simulated(plan.cuts)
    while True:
        around = []
        for cuts in _around(plan):
            with contextlib.suppress(MemoryLimitError):
                around.append((simulated(cuts), fitting(cuts)))
        best, there = min(around, key=itemgetter(0), default=(seconds, plan))
        if best >= seconds:
            return list(plan.cuts), seconds
        seconds, plan = best, there


def _around(plan: Plan) -> list[list[int]]:
    """Returns cuts where a layer goes to a neighbour, or from the slowest stage."""
    slowest = int(np.argmax([stage.seconds for stage in plan.stages]))
    stages = range(plan.n_stages)
    pairs = {(slowest, other) for other in stages if other != slowest}
    pairs |= {(a, b) for a in stages for b in (a - 1, a + 1) if b in stages}
    found = []
    for giver, taker in sorted(pairs):
        sizes = np.diff(plan.cuts)
        sizes[giver] -= 1
        sizes[taker] += 1
        if sizes[giver]:
            found.append([0, *np.cumsum(sizes).tolist()])
    return found


def _relative_error(seconds: np.ndarray) -> float:
    """Returns the standard error of the mean, relative to the mean.

    The error comes from the median of the differences from the median, which a few long
    minibatches do not increase.
    """
    median = np.median(seconds)
    deviation = _OF_NORMAL * np.median(np.abs(seconds - median))
    return float(deviation / median / np.sqrt(len(seconds)))


def _schedule(
    schedule: str | Schedule, n_stages: int, n_microbatches: int | None
) -> Schedule:
    if isinstance(schedule, Schedule):
        return schedule
    if n_microbatches is None:
        raise ValueError(
            f"n_microbatches is missing: the schedule {schedule!r} is a name, without a"
            f" number of them"
        )
    per_rank = CATALOGUE[schedule].stages_per_rank if schedule in CATALOGUE else 1
    return create(schedule, n_stages, n_microbatches, n_stages // per_rank)


def _check(
    profile: Profile,
    cuts: Sequence[int],
    times: np.ndarray,
    threshold: float,
    horizon: int,
    minimum_gain: float,
) -> None:
    if cuts[-1] != len(profile):
        raise ValueError(
            f"the cuts {cuts} are of {cuts[-1]} layers, but the profile is of"
            f" {len(profile)}"
        )
    if times.ndim != 2 or times.shape[1] != len(cuts) - 1 or not times.size:
        raise ValueError(
            f"seconds has {amount(times)}, but there are {len(cuts) - 1} stages: give"
            f" a list with a time of each, for one minibatch or more"
        )
    if not ((times > 0) & np.isfinite(times)).all():
        raise ValueError(f"seconds must be positive and finite, not {times.tolist()}")
    check_thresholds(threshold, horizon, minimum_gain)


def check_thresholds(threshold: float, horizon: int, minimum_gain: float) -> None:
    """Refuses bounds outside their range.

    Raises:
        ValueError: If a bound is outside its range.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be above 0 and at most 1, not {threshold}")
    if horizon < 1:
        raise ValueError(f"horizon must be 1 minibatch or more, not {horizon}")
    if not 0 <= minimum_gain < 1:
        raise ValueError(f"minimum_gain must be from 0 to below 1, not {minimum_gain}")
