"""Layers move by themselves, as an extension of Chainer's trainer."""

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
from pipeline.rebalancing.trials import ChangesOnTrial, Choice
from pipeline.start.plans import planned_network
from pipeline.trainer_lines import say

#: Below ``trainer.out``: a line of JSON for each check.
LOG_NAME = "rebalancing.jsonl"
# The first minibatches size layers, and compile kernels.
_WARM_UP = 3
# The minibatches of so many checks say how fast a host is, if they are like the newest.
_CHECKS_KEPT = 4
# What layers cost that have become others, no fewer minibatches say than this part of
# those between two checks, and than so many.
_SHARE_OF_OTHERS, _FEWEST_OF_OTHERS = 0.5, 2


class Rebalance(training.Extension):
    """Moves layers away from hosts that have become slow, and back.

    Extend the trainers of all ranks with it, alike. After every ``every`` minibatches
    it looks how long the stages have computed, and decides by
    :func:`~pipeline.rebalancing.decide_cuts`. At the check after a move it looks how
    long steps take now: if no less than before, layers go back, and each time it waits
    for twice as many checks before the next move, until steps become a quarter longer.
    Moves are those of :func:`~pipeline.rebalance`: they change no bit of the result.

    A profile says what each layer costs. Without one the first minibatches do, as far
    as they show it: a stage's time is divided among its layers as that of their
    forwards. Whether a stage takes long because of its host or of its layers, one layer
    shows: at the first check all ranks compute the same one for about a second. Where
    that fails, rank 0 says so, and no host is called slow. What layers hold is not
    known without a profile, but before a move every rank looks whether there is room.
    Where parameters get other sizes, as when channels are taken away, the minibatches
    after that show what layers cost now. If at a check these are fewer than half of
    ``every``, it waits until they are as many. So layers that become others again and
    again move as well, unless they do so more often than that.

    On a grid all replicas keep one cut, for the slowest rank of each place. Where the
    :class:`~data_parallel.ReplicaIterator` of a replica has ``shares='measured'``, its
    part of a minibatch follows its speed, on trial like a move; the gradient is that of
    the whole minibatch all the same.

    It is for stages in host memory: on a GPU the times of a step are of launches.

    Rank 0 prints a line for each move: which host became slow, or that the layers cost
    unequally, the cuts before and after, what was predicted, and at the next check what
    came. ``rebalancing.jsonl`` in ``trainer.out`` has a line for each check that had
    times of the layers that there are, which ``divisible stragglers`` reads.

    Args:
        build: Returns the undivided model, as of :func:`~pipeline.rebalance`.
        every (int): Minibatches between two checks.
        threshold (float): As of :func:`~pipeline.rebalancing.decide_cuts`, as are
            ``horizon``, ``minimum_gain``, ``network`` and ``memory``.
        horizon (int): In how many minibatches a move must pay for itself.
        log (bool): Whether rank 0 prints and writes.
        minimum_gain (float): The least share of a step's time to move for.
        profile (Profile): The layers' costs, at the size of microbatch in use.
        network (Network): The links between ranks; by default those that the pipeline's
            plan was made for, if it says so.
        memory: Bytes that each rank may use; needs a ``profile``.

    Attributes:
        moves (list of Moved): Those that there were.

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

    #: To be called on all ranks at the same minibatch.
    is_collective = True
    trigger = 1, "iteration"
    default_name = "Rebalance"
    # Right after the update, before evaluations, which are calls of other samples.
    priority = 1000

    def __init__(
        self,
        build: Callable[[], Divisible],
        every: int = 20,
        threshold: float = 0.8,
        horizon: int = 1000,
        log: bool = True,
        *,
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
        """Looks at a minibatch; after some of them it decides, and may move layers."""
        pipe = trainer.updater.pipeline
        self._n_seen += 1
        # Since the first minibatch also layers that are sized by it have sizes.
        if self._costs.look(pipe.stages.values()):
            # This minibatch may have been one of the layers before.
            self._times.clear()
        elif self._n_seen > _WARM_UP:
            n_samples = pipe.ranks.calls.agreed.n_samples[pipe.ranks.replica]
            self._times.note(pipe.record, n_samples)
        if self._n_seen == _WARM_UP and self._costs.are_open:
            self._costs.watch()
        if self._n_seen == self._next_check:
            self._next_check = self._round_after(self._n_seen)
            self._check(trainer, pipe)

    def _round_after(self, n_seen: int) -> int:
        """Returns the next minibatch at which there usually is a check."""
        return (n_seen // self._every + 1) * self._every

    def initialize(self, trainer: Any) -> None:
        """Tells an iterator that its shares are measured; called by the trainer.

        Raises:
            ValueError: If the stages are on a GPU.
        """
        for stage in trainer.updater.pipeline.stages.values():
            if stage.device.xp is not np:
                raise ValueError(
                    f"Rebalance is for stages in host memory: on {stage.device} the"
                    f" times of a step are of launches, behind which it works"
                )
        iterator = trainer.updater.get_iterator("main")
        if getattr(iterator, "are_measured", False):
            iterator.is_watched = True

    def finalize(self) -> None:
        """Stops to look; called by the trainer at its end."""
        self._costs.close()

    def _check(self, trainer: Any, pipe: Pipeline) -> None:
        mine = self._times.seen(), self._costs.said(), socket.gethostname()
        seen, said, hosts = zip(*pipe.gather(mine, "rebalance"))
        if self._measure_anew(trainer, pipe, said, seen):
            if self._is_too_early():
                return
            seen = pipe.gather(self._times.seen(), "rebalance")
        if None in seen:
            # A replica has had no sample yet.
            return
        # All wait for the rank that is slowest with the samples that it has.
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
        decision = pipe.ranks.choose(lambda: self._decide(pipe, times))
        if self._ranks.holds and not self._ranks.see(
            decision.speeds, pipe.cuts, stage_ranks
        ):
            self._tell_unknown(trainer, pipe)
            # The same cuts, with another reason.
            decision = pipe.ranks.choose(lambda: self._decide(pipe, times))
        self._speeds = decision.speeds
        seconds = max(theirs.step_seconds for theirs in seen)
        before = list(pipe.cuts)
        choice, moved = self._move(trainer, pipe, decision, seconds)
        if self._log and pipe.ranks.is_chief:
            # Of the hosts themselves, however many samples they have.
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
            # Otherwise the times are of other layers than those there are now.
            self._set_shares(trainer, pipe, seen, seconds)
        is_tried = moved is not None and not choice.goes_back
        self._predicted = decision.new_step_seconds if is_tried else None

    def _tell_unknown(self, trainer: Any, pipe: Pipeline) -> None:
        """Prints why it is not known which hosts are slow."""
        if self._log and pipe.ranks.is_chief:
            say(
                trainer,
                f"iteration {trainer.updater.iteration}: whether hosts are slow or"
                f" layers cost unequally is not known ({self._ranks.reason}): give"
                f" Rebalance a profile",
            )

    def _move(
        self, trainer: Any, pipe: Pipeline, decision: Decision, step_seconds: float
    ) -> tuple[Choice, Moved | None]:
        """Moves layers, if that is decided or a move before was in vain."""
        # One thing at a time: whose change a longer step is must be known.
        wanted = None if self._share_trial.is_open else decision.cuts
        choice = self._cut_trial.choose(wanted, list(pipe.cuts), step_seconds)
        if choice.target is None:
            return choice, None
        optimizers = list(trainer.updater.get_all_optimizers().values())
        moved = rebalance(pipe, optimizers, choice.target, self._build)
        self.moves.append(moved)
        # They may become others before the next minibatch has ended.
        self._costs.look(pipe.stages.values())
        return choice, moved

    def _measure_anew(
        self,
        trainer: Any,
        pipe: Pipeline,
        said: Sequence[SaidOfLayers],
        seen: Sequence[Seen | None],
    ) -> bool:
        """Forgets what is of layers that have become others; says whether some have.

        The times that stay are of minibatches since then, equally many on all ranks.
        """
        changed = self._costs.measure_anew(said, self._speeds)
        if not changed:
            return False
        self._times.keep_last(min(0 if s is None else s.n_minibatches for s in seen))
        self._predicted = None
        self._cut_trial.forget()
        self._share_trial.forget()
        if self._log and pipe.ranks.is_chief:
            iteration = trainer.updater.iteration
            say(trainer, f"iteration {iteration}: {change_in_words(changed)}")
        return True

    def _is_too_early(self) -> bool:
        """Puts the check off where too few minibatches are of the layers there are."""
        needed = max(_FEWEST_OF_OTHERS, int(_SHARE_OF_OTHERS * self._every))
        missing = needed - len(self._times)
        if missing > 0:
            self._next_check = min(self._next_check, self._n_seen + missing)
        return missing > 0

    def _set_shares(
        self, trainer: Any, pipe: Pipeline, seen: Sequence[Seen], step_seconds: float
    ) -> None:
        """Lets replicas have parts of minibatches by how fast they are, if asked to."""
        iterator = trainer.updater.get_iterator("main")
        mine = getattr(iterator, "shares", None)
        mine = mine if getattr(iterator, "are_measured", False) else None
        now = next((s for s in pipe.gather(mine, "rebalance") if s is not None), None)
        if pipe.ranks.grid is None or now is None:
            return
        replicas = [replica for replica, _ in _places(pipe)]
        sizes = dict(zip(replicas, (theirs.n_samples for theirs in seen)))
        samples = [sizes[replica] for replica in sorted(sizes)]
        per_sample = busy_replicas([theirs.of_stages for theirs in seen], replicas)
        busy = [n * each for n, each in zip(samples, per_sample)]
        wanted = pipe.ranks.choose(lambda: self._shares.wanted(samples, busy))
        choice = self._share_trial.choose(wanted, now, step_seconds)
        if choice.target is None:
            return
        if mine is not None:
            iterator.shares = choice.target
        # What was before says nothing of the step with these shares.
        self._times.clear()
        if self._log and pipe.ranks.is_chief:
            shown = ", ".join(f"{share:.3f}" for share in choice.target)
            why = "" if choice.reason is None else f"{choice.reason}: "
            say(
                trainer,
                f"iteration {trainer.updater.iteration}: {why}replicas get the shares"
                f" {shown} of a minibatch",
            )

    def _decide(self, pipe: Pipeline, times: np.ndarray) -> Decision:
        profile = self._costs.profile
        # As if minibatches had as many samples as the profile's.
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
        """Prints what has changed, and writes what was seen."""
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
    """Returns for each rank of all its replica, and its rank in that pipeline."""
    grid, size = pipe.ranks.grid, pipe.ranks.world.size
    return [(0, rank) if grid is None else grid.place(rank) for rank in range(size)]
