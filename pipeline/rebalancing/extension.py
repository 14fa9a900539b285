"""Moves layers automatically, as an extension of Chainer's trainer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from chainer import training

from divisible import Divisible
from divisible.planning.network import Network
from divisible.planning.per_rank import PerRank
from divisible.planning.profile import Profile
from divisible.planning.units import format_seconds
from divisible.side_files import SideFiles
from pipeline.pipeline import Pipeline
from pipeline.rebalancing.decisions import Decision, check_thresholds, decide_cuts
from pipeline.rebalancing.layer_costs import (
    LayerCosts,
    SaidOfLayers,
    change_in_words,
)
from pipeline.rebalancing.log import LoggedCheck
from pipeline.rebalancing.moving import Moved, rebalance
from pipeline.rebalancing.rank_comparison import RankComparison
from pipeline.rebalancing.shares import MeasuredShares
from pipeline.rebalancing.stage_times import (
    Seen,
    StageTimes,
    busy_replicas,
    slowest_ranks,
    together,
    under_load,
)
from pipeline.rebalancing.trials import ChangeChoice, ChangesOnTrial
from pipeline.start.plans import planned_network
from pipeline.trainer_lines import say

#: Name of the log in ``trainer.out``, with a line of JSON for each check.
LOG_NAME = "rebalancing.jsonl"
# The first minibatches size layers, and compile kernels.
_WARM_UP = 3
# A host's speed comes from the minibatches of this many checks, if they are like the
# newest.
_CHECKS_KEPT = 4
# Costs of changed layers need at least this share of the minibatches between two
# checks, and at least this number.
_SHARE_OF_OTHERS, _FEWEST_OF_OTHERS = 0.5, 2


class Rebalance(training.Extension):
    """Moves layers away from hosts that become slow, and back.

    Add it to the trainers of all ranks, with the same arguments. After every ``every``
    minibatches, it reads how long the stages have computed, and decides by
    :func:`~pipeline.rebalancing.decide_cuts`. At the check after a move, it compares
    the time of a step with the time before. If steps are not shorter, the layers go
    back. After each such failure, the next move waits for twice as many checks, until
    steps become a quarter longer. Moves are those of :func:`~pipeline.rebalance`, and
    do not change a bit of the result.

    A profile has the cost of each layer. Without one, costs are measured in the first
    minibatches: a stage's time is divided among its layers in proportion to their
    forwards. This does not tell a slow host from costly layers. So at the first check,
    all ranks compute the same layer for about a second. If that fails, rank 0 prints
    why, and no host is called slow.

    Without a profile, the memory that layers need is not known, but before a move every
    rank checks whether it has room. If parameters get other sizes, as when channels are
    removed, the costs are measured in the minibatches after that. A check with fewer
    than half of ``every`` such minibatches waits until there are as many. So layers
    that change often move as well, unless they change more often than that.

    On a grid, all replicas keep the same cuts, which suit the slowest rank of each
    place. If the :class:`~data_parallel.ReplicaIterator` of a replica has
    ``shares='measured'``, its part of a minibatch follows its speed, on trial like a
    move. The gradient is that of the whole minibatch in any case.

    Stages must be in host memory: on a GPU the times of a step are those of launches.

    Rank 0 prints a line for each move: the host that became slow, or that the layers
    cost unequally; the cuts before and after; and the predicted time of a step. At the
    next check it prints the measured time. The file ``rebalancing.jsonl`` in
    ``trainer.out``, which ``divisible stragglers`` reads, has a line for each check
    with times of the present layers.

    Args:
        build: Returns the undivided model; see :func:`~pipeline.rebalance`.
        every (int): Number of minibatches between two checks.
        threshold (float): Balance of the ranks' times above which nothing moves; see
            :func:`~pipeline.rebalancing.decide_cuts`.
        horizon (int): Number of minibatches in which a move must pay for itself.
        log (bool): Whether rank 0 prints and writes to the log.
        minimum_gain (float): Least gain of a move, as a share of a step's time.
        profile (Profile): Costs of the layers, at the size of microbatch in use.
        network (Network): Links between ranks; by default the links that the pipeline's
            plan was made for, if it has them.
        memory: Bytes that each rank may use; needs a ``profile``.

    Attributes:
        moves (list of Moved): Moves so far.

    Raises:
        TypeError, ValueError: If an argument is wrong.

    Example:
        >>> import chainer.links as L
        >>> def build():
        ...     return Divisible(*[L.Linear(8, 8) for _ in range(8)])
        >>> Rebalance(build, every=50).trigger
        (1, 'iteration')

    See section 6 of Ozawa, Sugaya and Aso (2005), dynamic rectangular partitioning.
    """

    #: Whether all ranks must call it at the same minibatch.
    is_collective = True
    trigger = 1, "iteration"
    default_name = "Rebalance"
    # Right after the update, before evaluations, which are calls with other samples.
    priority = 1000

    def __init__(
        self,
        build: Callable[[], Divisible],
        *,
        every: int = 20,
        threshold: float = 0.8,
        horizon: int = 1000,
        log: bool = True,
        minimum_gain: float = 0.03,
        profile: Profile | None = None,
        network: Network | None = None,
        memory: PerRank | None = None,
    ) -> None:
        if not callable(build):
            raise TypeError(f"build must be a function, not {type(build).__name__}")
        if every < 2:
            raise ValueError(f"every must be 2 minibatches or more, not {every}")
        if memory is not None and profile is None:
            raise ValueError("memory needs a profile, which says what layers hold")
        check_thresholds(threshold, horizon, minimum_gain)
        self._build, self._every, self._log = build, every, log
        self._bounds = {
            "threshold": threshold,
            "horizon": horizon,
            "minimum_gain": minimum_gain,
            "network": network,
            "memory": memory,
        }
        self._costs, self._speeds = LayerCosts(profile), ()
        self._ranks = RankComparison(has_profile=profile is not None)
        self._times = StageTimes(_CHECKS_KEPT * every)
        self._n_seen, self._next_check = 0, self._round_after(_WARM_UP)
        self._shares = MeasuredShares()
        self._cut_trial, self._share_trial = ChangesOnTrial(), ChangesOnTrial()
        self._predicted: float | None = None
        self._files = SideFiles("The log of Rebalance")
        self.moves: list[Moved] = []

    def __call__(self, trainer: Any) -> None:
        """Records a minibatch; at a check, decides and may move layers."""
        pipe = trainer.updater.pipeline
        self._n_seen += 1
        # After the first minibatch, layers that it sized have sizes.
        if self._costs.look(pipe.stages.values()):
            # This minibatch may have had the former layers.
            self._times.clear()
        elif self._n_seen > _WARM_UP:
            n_samples = pipe.internals.ranks.calls.agreed.n_samples[pipe.replica]
            self._times.note(pipe.internals.record, n_samples)
        if self._n_seen == _WARM_UP and self._costs.are_open:
            self._costs.watch()
        if self._n_seen == self._next_check:
            self._next_check = self._round_after(self._n_seen)
            self._check(trainer, pipe)

    def _round_after(self, n_seen: int) -> int:
        """Returns the next minibatch with a regular check."""
        return (n_seen // self._every + 1) * self._every

    def initialize(self, trainer: Any) -> None:
        """Declares an iterator's shares as measured; called by the trainer.

        Raises:
            ValueError: If the stages are on a GPU, or the pipeline has
                ``overlap_minibatches=True``.
        """
        pipe = trainer.updater.pipeline
        pipe.internals.step.overlap.wait_for("Rebalance")
        for stage in pipe.stages.values():
            if stage.device.xp is not np:
                raise ValueError(
                    f"Rebalance is for stages in host memory: on {stage.device} the"
                    f" times of a step are of launches, behind which it works"
                )
        iterator = trainer.updater.get_iterator("main")
        if getattr(iterator, "are_measured", False):
            iterator.is_watched = True

    def finalize(self) -> None:
        """Stops timing forwards; called by the trainer at its end."""
        self._costs.close()

    def _check(self, trainer: Any, pipe: Pipeline) -> None:
        mine = self._times.seen(), self._costs.said(), socket.gethostname()
        seen, said, hosts = zip(*pipe.internals.gather(mine, "rebalance"))
        if self._measure_anew(trainer, pipe, said, seen):
            if self._is_too_early():
                return
            seen = pipe.internals.gather(self._times.seen(), "rebalance")
        if None in seen:
            # A replica has not had a sample yet.
            return
        # All ranks wait for the slowest one, with the samples that it has.
        most = max(theirs.n_samples for theirs in seen)
        loads = [theirs.n_samples / most for theirs in seen]
        loaded = under_load([theirs.of_stages for theirs in seen], loads)
        times = together(loaded, len(pipe.cuts) - 1)
        size = max(1, int(most) // pipe.schedule.n_microbatches)
        busy = np.median(times, axis=0)
        slowest = slowest_ranks(loaded, [place for _, place in _places(pipe)])
        stage_ranks, iteration = pipe.schedule.stage_ranks, trainer.updater.iteration
        if self._costs.profile is None:
            self._costs.compare(self._ranks.compare(pipe, self._build, said, slowest))
            if not self._ranks.holds:
                self._tell_unknown(trainer, pipe)
        self._costs.measured(said, busy, pipe.cuts, stage_ranks, size)
        decision = pipe.internals.ranks.choose(lambda: self._decide(pipe, times))
        if self._ranks.holds and not self._ranks.see(
            decision.speeds, pipe.cuts, stage_ranks
        ):
            self._tell_unknown(trainer, pipe)
            # The cuts stay the same; only the reason differs.
            decision = pipe.internals.ranks.choose(lambda: self._decide(pipe, times))
        self._speeds = decision.speeds
        seconds = max(theirs.step_seconds for theirs in seen)
        before = list(pipe.cuts)
        choice, moved = self._move(trainer, pipe, decision, seconds)
        if self._log and pipe.is_chief:
            # Speeds of the hosts themselves, however many samples they have.
            speeds = [speed * loads[r] for speed, r in zip(decision.speeds, slowest)]
            check = LoggedCheck(
                iteration=iteration,
                seconds=trainer.elapsed_time,
                hosts=[hosts[rank] for rank in slowest],
                speeds=speeds if self._ranks.holds else None,
                cuts=before,
                new_cuts=choice.target,
                step_seconds=decision.step_seconds,
                predicted_step_seconds=decision.new_step_seconds,
                reason=choice.reason or decision.reason,
                moved=moved and moved._replace(layers=list(moved.layers))._asdict(),
                went_back=choice.goes_back,
            )
            self._tell(check, trainer)
        if moved is None:
            # After a move, the times would belong to other layers.
            self._set_shares(trainer, pipe, seen, seconds)
        is_tried = moved is not None and not choice.goes_back
        self._predicted = decision.new_step_seconds if is_tried else None

    def _tell_unknown(self, trainer: Any, pipe: Pipeline) -> None:
        """Prints why it is not known which hosts are slow."""
        if self._log and pipe.is_chief:
            say(
                trainer,
                f"iteration {trainer.updater.iteration}: whether hosts are slow or"
                f" layers cost unequally is not known ({self._ranks.reason}): give"
                f" Rebalance a profile",
            )

    def _move(
        self, trainer: Any, pipe: Pipeline, decision: Decision, step_seconds: float
    ) -> tuple[ChangeChoice, Moved | None]:
        """Moves layers if that is decided, or back if the last move did not pay."""
        # One change at a time, so that a longer step has a known cause.
        wanted = None if self._share_trial.is_open else decision.cuts
        choice = self._cut_trial.choose(wanted, list(pipe.cuts), step_seconds)
        if choice.target is None:
            return choice, None
        optimizers = list(trainer.updater.get_all_optimizers().values())
        moved = rebalance(pipe, optimizers, choice.target, self._build)
        self.moves.append(moved)
        # Sizes may change before the next minibatch has ended.
        self._costs.look(pipe.stages.values())
        return choice, moved

    def _measure_anew(
        self,
        trainer: Any,
        pipe: Pipeline,
        said: Sequence[SaidOfLayers],
        seen: Sequence[Seen | None],
    ) -> bool:
        """Drops the times of changed layers; returns whether layers have changed.

        The remaining times belong to minibatches since then, as many on all ranks.
        """
        changed = self._costs.measure_anew(said, self._speeds)
        if not changed:
            return False
        self._times.keep_last(min(0 if s is None else s.n_minibatches for s in seen))
        self._predicted = None
        self._cut_trial.forget()
        self._share_trial.forget()
        if self._log and pipe.is_chief:
            iteration = trainer.updater.iteration
            say(trainer, f"iteration {iteration}: {change_in_words(changed)}")
        return True

    def _is_too_early(self) -> bool:
        """Postpones the check if too few minibatches have had the present layers."""
        needed = max(_FEWEST_OF_OTHERS, int(_SHARE_OF_OTHERS * self._every))
        missing = needed - len(self._times)
        if missing > 0:
            self._next_check = min(self._next_check, self._n_seen + missing)
        return missing > 0

    def _set_shares(
        self, trainer: Any, pipe: Pipeline, seen: Sequence[Seen], step_seconds: float
    ) -> None:
        """Sets the replicas' parts of a minibatch by their speed, if asked to."""
        iterator = trainer.updater.get_iterator("main")
        mine = getattr(iterator, "shares", None)
        mine = mine if getattr(iterator, "are_measured", False) else None
        now = next(
            (s for s in pipe.internals.gather(mine, "rebalance") if s is not None), None
        )
        if pipe.internals.ranks.grid is None or now is None:
            return
        replicas = [replica for replica, _ in _places(pipe)]
        sizes = dict(zip(replicas, (theirs.n_samples for theirs in seen)))
        samples = [sizes[replica] for replica in sorted(sizes)]
        per_sample = busy_replicas([theirs.of_stages for theirs in seen], replicas)
        busy = [n * each for n, each in zip(samples, per_sample)]
        wanted = pipe.internals.ranks.choose(lambda: self._shares.wanted(samples, busy))
        choice = self._share_trial.choose(wanted, now, step_seconds)
        if choice.target is None:
            return
        if mine is not None:
            iterator.shares = choice.target
        # Former times do not predict a step with these shares.
        self._times.clear()
        if self._log and pipe.is_chief:
            shown = ", ".join(f"{share:.3f}" for share in choice.target)
            why = "" if choice.reason is None else f"{choice.reason}: "
            say(
                trainer,
                f"iteration {trainer.updater.iteration}: {why}replicas get the shares"
                f" {shown} of a minibatch",
            )

    def _decide(self, pipe: Pipeline, times: np.ndarray) -> Decision:
        profile = self._costs.profile
        # Scaled to minibatches of as many samples as the profile's.
        seconds = times * profile.n_samples * pipe.schedule.n_microbatches
        bounds = dict(self._bounds)
        if bounds["network"] is None:
            bounds["network"] = planned_network(pipe.plan)
        return decide_cuts(
            profile,
            pipe.cuts,
            seconds,
            schedule=pipe.schedule,
            move_seconds=max((moved.seconds for moved in self.moves), default=0.0),
            are_compared=self._ranks.holds,
            **bounds,
        )

    def _tell(self, check: LoggedCheck, trainer: Any) -> None:
        """Prints changes, and writes the check to the log."""
        if self._predicted is not None:
            say(
                trainer,
                f"iteration {check.iteration}: a step was predicted to take"
                f" {format_seconds(self._predicted)}; by the stages' times it takes"
                f" {format_seconds(check.step_seconds)}",
            )
        if check.moved is not None:
            say(trainer, check.move_in_words)
        path = Path(trainer.out) / LOG_NAME
        with self._files.writing(path):
            check.append_to(path)


def _places(pipe: Pipeline) -> list[tuple[int, int]]:
    """Returns the replica, and the rank within its pipeline, of each rank of all."""
    grid, size = pipe.internals.ranks.grid, pipe.internals.ranks.world.size
    return [(0, rank) if grid is None else grid.place(rank) for rank in range(size)]
