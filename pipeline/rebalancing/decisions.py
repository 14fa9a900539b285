"""Whether a pipeline is to be cut anew, by the times of its stages. No messages."""

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

# So many standard errors of the speeds a gain must exceed.
_ERRORS = 4
#: The cause where it is not known which ranks are slow.
UNKNOWN = (
    "the ranks are busy unequally, by slow hosts or by costly layers, which a profile"
    " would tell apart"
)
# A rank is not slow that has so much of the speed of others.
_ALIKE = 0.9
# Of a normal distribution, the standard deviation over the median deviation.
_OF_NORMAL = 1.4826


class Decision(NamedTuple):
    """A decision on where to cut.

    Attributes:
        cuts: The new ones; ``None`` if the model is to stay as it is cut.
        speeds: Of the ranks, relative to where the profile was measured.
        step_seconds: Of a minibatch as it is cut now, simulated with these speeds.
        new_step_seconds: With the best cut there is; the same if it was not sought.
        reason: In words.
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
    """Decides whether another cut is worth the move, by how long stages have computed.

    ::

        seconds of stages --ability--> speeds of ranks --partition--> a cut
              |                             |                           |
        alike within the threshold?     simulate the cut there is, and this one
              |                             |
            stay               stay unless the gain is large enough, and pays

    A rank's speed is its work by the profile over the time that it took, by the line of
    least squares of :func:`heterogeneous.ability`, of the minibatches that took like
    the newest ones. Where times scatter, a gain must exceed four standard errors of
    their mean as well.

    Args:
        profile: The layers' costs, at the size of microbatch in use.
        cuts: Where the model is cut.
        seconds: That each stage was busy in the last minibatches: shape (n_stages,) or
            (n_minibatches, n_stages), the oldest first.
        n_microbatches (int): In a minibatch; that of a ``Schedule`` by default.
        schedule (str or Schedule): As of :func:`~divisible.partition`.
        network (Network): The links between ranks; infinitely fast by default.
        memory: Bytes that each rank may use; one number for all or one for each. Of a
            rank with several stages, each may use an equal part.
        threshold (float): Nothing moves while the least busy rank is busy for this
            share of the time of the busiest one, or longer.
        horizon (int): In how many minibatches a move must pay for itself.
        move_seconds (float): What a move takes.
        minimum_gain (float): The least share of a step's time to move for.
        are_compared (bool): Whether the profile has what layers cost on one machine. If
            not, as where each stage's layers were measured on its own rank, no rank is
            said to be slow.

    Returns:
        Decision: The new cuts, or why there are none.

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
    # A cut that looks better by no more than chance would be left again at the next.
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
    """The speeds of the ranks, and how evenly they are busy, by the times of stages.

    Attributes:
        speeds: Of the ranks, relative to where the profile was measured.
        balance: For which share of the time of the busiest rank the least one is busy.
        error: The largest relative standard error of a rank's times.
    """

    speeds: np.ndarray
    balance: float
    error: float

    @classmethod
    def of(cls, times: np.ndarray, plan: Plan, schedule: Schedule) -> _Measured:
        """Compares times with what the stages have to compute.

        Args:
            times: Of shape (n_minibatches, n_stages), the oldest first.
            plan: The stages as they are cut, with their costs at speed 1.
            schedule: That runs them.
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
    """Returns why ranks are busy for unequal times, in words.

    Args:
        speeds: Speeds of the ranks, relative to the profile; ``None`` where they are
            not known.
        hosts: The hosts of the ranks.

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

    Cuts with the same slowest stage differ in how the pipeline fills and empties, and
    by chance one or the other has it: what is best by simulation is so at every check.

    Args:
        plan: To begin with.
        simulated: Returns the seconds of a step.
        fitting: Returns a plan of cuts; refuses those for which there is no memory.

    Returns:
        The cuts, and the seconds.
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
    """Returns cuts where a stage gives a layer to the next, or the slowest to any."""
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
    """Returns the standard error of the mean, relative to it.

    By the median of the differences from the median, which a few long minibatches do
    not make larger.
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
        raise ValueError(f"n_microbatches is missing, for the schedule {schedule!r}")
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
    """Refuses bounds that are none.

    Raises:
        ValueError: With the one that is wrong.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be above 0 and at most 1, not {threshold}")
    if horizon < 1:
        raise ValueError(f"horizon must be 1 minibatch or more, not {horizon}")
    if not 0 <= minimum_gain < 1:
        raise ValueError(f"minimum_gain must be from 0 to below 1, not {minimum_gain}")
