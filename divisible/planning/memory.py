"""What a stage costs: time, messages and memory, for any range of layers.

Partitioning asks for the costs of every possible stage, so they are kept in a form in
which each is a difference of two numbers::

    seconds of layers i to j-1 = times[j] - times[i]
    bytes of layers i to j-1   = grows[j] - grows[i] + starts[i] + ends[j] + workspace
                               + inputs * min(crossing[i], ended_skips[j] -
                               ended_skips[i])

`times` and `grows` are sums over the layers from the first one on; `starts` and `ends`
depend on where the stage is cut off. A skip connection comes into a stage if it begins
before and ends in it. Those are no more than all that are open where the stage begins,
and no more than all that end in it; the lesser of the two is reckoned.

Memory is reckoned at several moments of a schedule, of which the worst counts: a stage
may hold most activations at one time, and most pending weight gradients at another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from divisible.planning.machine import Network, PerRank, edges, spread, spread_speeds
from divisible.planning.plan import Plan
from divisible.planning.profile import Profile
from divisible.schedules.costs import Costs
from divisible.schedules.recomputation import check_checkpoint
from divisible.schedules.schedule import Schedule

#: How many microbatches a stage of a zero-bubble schedule runs ahead, and keeps W back,
#: for each stage behind and before it.
ZERO_BUBBLE_DEPTHS = {"zb_h1": 1, "zb_h2": 2}
#: The schedules of one stage on each rank, of which it is known what a stage holds.
ONE_STAGE = ("gpipe", "1f1b", *ZERO_BUBBLE_DEPTHS)


def microbatches_held(
    schedule: str,
    n_stages: int,
    n_microbatches: int | None,
    checkpoint: str = "never",
) -> tuple[np.ndarray, np.ndarray]:
    """Tells how many microbatches the stages of a schedule hold when it is most.

    ==============  =====================  ==================  ==================
    schedule        in flight              pending             together
    ==============  =====================  ==================  ==================
    ``'gpipe'``     m                      0                   m
    ``'1f1b'``      min(m, d - i)          0                   min(m, d - i)
    ``'zb_h1'``     min(m, d - i)          min(m, i + 1)       min(m, d)
    ``'zb_h2'``     min(m, 2 (d - i) - 1)  min(m, 2 i + 1)     min(m, 2 d - 1)
    ==============  =====================  ==================  ==================

    at most, for stage ``i`` of ``d`` and ``m`` microbatches (`divisible.schedules`).
    ZB-H1 and ZB-H2 have most in flight after an F, and most pending after an I; in
    between as many in flight as there are graphs at a time, if forwards are recomputed.

    Args:
        schedule: One of these, with one stage on each rank.
        n_stages: Number of stages.
        n_microbatches: Number of microbatches; ``None`` for any number, which
            ``'gpipe'`` has no bound for.
        checkpoint: One of `CHECKPOINTS`.

    Returns:
        The microbatches between F and B (or I), and those between I and W, each of
        shape (n_moments, n_stages).

    Raises:
        ValueError: If the schedule or the checkpoint is another one, or
            ``n_microbatches`` is missing.
    """
    check_checkpoint(checkpoint)
    m = np.inf if n_microbatches is None else n_microbatches
    stage = np.arange(n_stages)
    if schedule == "gpipe":
        if n_microbatches is None:
            raise ValueError(
                "gpipe holds all microbatches: n_microbatches is needed to know how"
                " much memory that is"
            )
        return np.full((1, n_stages), float(m)), np.zeros((1, n_stages))
    if schedule == "1f1b":
        return np.minimum(m, n_stages - stage)[None], np.zeros((1, n_stages))
    if schedule in ZERO_BUBBLE_DEPTHS:
        depth = ZERO_BUBBLE_DEPTHS[schedule]
        together = min(m, depth * (n_stages - 1) + 1)
        in_flight = np.minimum(m, depth * (n_stages - 1 - stage) + 1)[None]
        pending = np.minimum(m, depth * stage + 1)[None]
        graphs = np.clip(_most_graphs(checkpoint), together - pending, in_flight)
        moments = np.concatenate([in_flight, graphs, together - pending])
        return moments, together - moments
    raise ValueError(
        f"it is not known how many microbatches the stages of {schedule!r} hold;"
        f" choose one of {', '.join(ONE_STAGE)}, or pass in_flight"
    )


@dataclass(frozen=True)
class StageCosts:
    """The costs of every possible stage of a model.

    Attributes:
        times: Shape (n_stages, n_layers + 1): seconds of the layers before each
            position, on a rank of speed 1.
        cut_bytes: Shape (n_layers + 1,): what crosses a cut there in one direction.
        grows: Shape (n_moments, n_stages, n_layers + 1): bytes of the layers before.
        starts: The same shape: bytes on top for beginning there.
        ends: The same shape: bytes on top for ending there.
        crossing: Shape (n_layers + 1,): bytes of skip connections over each position.
        ended_skips: Shape (n_layers + 1,): bytes of those that end before it.
        inputs: Shape (n_moments, n_stages): for how many microbatches a stage holds
            what comes in.
        workspace: Shape (n_layers,): what a layer needs while it runs.
        speeds: Shape (n_stages,).
        bandwidth: Shape (n_stages - 1,), bytes per second.
        latency: Shape (n_stages - 1,), seconds.
        overlap: Whether messages travel while ranks compute.
    """

    times: np.ndarray
    cut_bytes: np.ndarray
    grows: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    crossing: np.ndarray
    ended_skips: np.ndarray
    inputs: np.ndarray
    workspace: np.ndarray
    speeds: np.ndarray
    bandwidth: np.ndarray
    latency: np.ndarray
    overlap: bool

    @classmethod
    def of(
        cls,
        profile: Profile,
        in_flight: np.ndarray,
        pending: np.ndarray,
        checkpoint: str = "never",
        recomputed: PerRank | None = None,
        speeds: PerRank | None = None,
        network: Network | None = None,
    ) -> StageCosts:
        """Adds up a profile.

        A stage holds its parameters, their gradients and the optimizer's state; for
        each microbatch in flight its input and what its layers hold, or with
        recomputation the input alone, and the layers' share for the microbatch at work
        and for one that is not recomputed; what pending weight gradients need; and the
        workspace of its greediest layer with a message from either side.

        Args:
            profile: At the size of microbatch in use.
            in_flight: The microbatches between F and B or I, of shape (n_moments,
                n_stages).
            pending: Those between I and W, of that shape.
            checkpoint: One of `CHECKPOINTS`.
            recomputed: For each stage the share of the microbatches whose forward runs
                again; all or none by default.
            speeds: Of the ranks, relative to where the profile was measured.
            network: The links; infinitely fast by default.

        Returns:
            StageCosts: Of as many stages.

        Raises:
            ValueError: If an argument is out of range.
        """
        n_stages = in_flight.shape[1]
        check_checkpoint(checkpoint)
        speeds = spread_speeds(speeds, n_stages)
        network = Network() if network is None else network
        bandwidth, latency = network.edges(n_stages)

        forward = profile.column("forward")
        seconds = forward + profile.column("backward_input")
        seconds += profile.column("backward_weight")
        if recomputed is None:
            recomputed = float(checkpoint != "never")
        again = spread("recomputed", recomputed, n_stages, "stages")
        if not np.all((again >= 0) & (again <= 1)):
            raise ValueError(f"recomputed must be between 0 and 1, not {recomputed}")
        seconds = seconds + again[:, None] * forward

        n = len(profile)
        cut_bytes = np.zeros(n + 1)
        cut_bytes[1:n] = profile.column("output_bytes")[:-1]
        # Skips go straight to where they are ended_skips, not through stages in
        # between.
        own_bytes = cut_bytes.copy()
        own_bytes[1:n] -= profile.column("passing_bytes")[:-1]
        input_bytes = own_bytes.copy()
        input_bytes[0] = profile.input_bytes
        loose = np.concatenate([[0.0], profile.column("boundary_output_bytes")])
        fixed = 2 * profile.column("parameter_bytes") + profile.column(
            "optimizer_bytes"
        )
        held, waiting = (
            profile.column("activation_bytes"),
            profile.column("pending_bytes"),
        )
        # Each stage has its own number of microbatches: columns against rows.
        in_flight, pending = in_flight[..., None], pending[..., None]
        graphs = np.minimum(in_flight, _most_graphs(checkpoint))
        return cls(
            times=_sums(seconds),
            cut_bytes=cut_bytes,
            grows=_sums(fixed + graphs * held + pending * waiting),
            starts=(in_flight + 1) * input_bytes,
            ends=own_bytes + graphs * loose,
            crossing=cut_bytes - own_bytes,
            ended_skips=_sums(profile.column("skip_bytes")),
            inputs=in_flight[..., 0] + 1,
            workspace=profile.column("workspace_bytes"),
            speeds=speeds,
            bandwidth=bandwidth,
            latency=latency,
            overlap=network.overlap,
        )

    @property
    def n_stages(self) -> int:
        """The number of stages."""
        return len(self.speeds)

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return len(self.workspace)

    def link_seconds(self) -> np.ndarray:
        """Returns how long a message keeps each link busy, for each cut.

        With overlap that is the transfer alone: many messages can be on their way.

        Returns:
            Shape (n_stages + 1, n_layers + 1); edge ``s`` lies before stage ``s``, and
            the first and last are not there and cost nothing.
        """
        seconds = np.zeros((self.n_stages + 1, self.n_layers + 1))
        seconds[1:-1] = self.cut_bytes / self.bandwidth[:, None]
        if not self.overlap:
            seconds[1:-1] += self.latency[:, None]
        return seconds

    def seconds(self, stage: int, start: int, end: int) -> float:
        """Returns what a stage computes for one microbatch, in seconds."""
        seconds = self.times[stage, end] - self.times[stage, start]
        return float(seconds / self.speeds[stage])

    def bytes(self, stage: int, start: int, end: int) -> float:
        """Returns what a stage holds at its peak."""
        skips = min(
            self.crossing[start], self.ended_skips[end] - self.ended_skips[start]
        )
        held = self.grows[:, stage, end] - self.grows[:, stage, start]
        held = held + self.starts[:, stage, start] + self.ends[:, stage, end]
        held = held + self.inputs[:, stage] * skips
        return float(held.max() + self.workspace[start:end].max())

    def bytes_alone(self) -> np.ndarray:
        """Returns what each layer would need as a stage of its own.

        Returns:
            Shape (n_stages, n_layers).
        """
        skips = np.minimum(self.crossing[:-1], np.diff(self.ended_skips))
        held = np.diff(self.grows) + self.starts[..., :-1] + self.ends[..., 1:]
        held = held + self.inputs[..., None] * skips
        return held.max(axis=0) + self.workspace


def recomputed_shares(
    schedule: str, checkpoint: str, n_stages: int, n_microbatches: int | None
) -> np.ndarray:
    """Returns for each stage the share of the microbatches whose forward runs twice.

    Where each backward follows its forward at once nothing is run again
    (`divisible.schedules.recomputation`): on the last stage of all but GPipe, and with
    a single microbatch.

    Args:
        schedule: One that :func:`microbatches_held` knows.
        checkpoint: One of `CHECKPOINTS`.
        n_stages: Number of stages.
        n_microbatches: Matters for ``'except_last'``: one of so many is spared.

    Example:
        >>> recomputed_shares('gpipe', 'always', 2, 4)
        array([1., 1.])
        >>> recomputed_shares('1f1b', 'except_last', 2, 4)
        array([0.75, 0.  ])
    """
    share = float(checkpoint != "never" and n_microbatches != 1)
    if checkpoint == "except_last" and n_microbatches is not None:
        share = 1 - 1 / n_microbatches
    shares = np.full(n_stages, share)
    if schedule != "gpipe":
        shares[-1] = 0.0
    return shares


def _most_graphs(checkpoint: str) -> float:
    """Returns for how many microbatches in flight there is a graph at the same time."""
    return {"never": np.inf, "except_last": 2, "always": 1}[checkpoint]


def _sums(values: np.ndarray) -> np.ndarray:
    """Returns sums of the values before each position, along the last axis."""
    zero = np.zeros((*values.shape[:-1], 1))
    return np.concatenate([zero, np.cumsum(values, axis=-1)], axis=-1)


def stage_sums(profile: Profile, cuts: Sequence[int]) -> dict[str, np.ndarray]:
    """Adds up a profile's columns for each stage.

    Returns:
        For each attribute of :class:`divisible.LayerCost` an array of shape
        (n_stages,): sums, for ``workspace_bytes`` the greatest; of ``output_bytes``
        and ``boundary_output_bytes`` those of the stage's last layer. Besides,
        ``own_output_bytes``, without skips that pass by, and ``input_bytes``, of the
        stage's first layer with the skips that come in.
    """
    starts, ends = np.array(cuts[:-1]), np.array(cuts[1:])
    sums = {
        name: np.add.reduceat(profile.column(name), starts)
        for name in (
            "forward",
            "backward_input",
            "backward_weight",
            "activation_bytes",
            "skip_bytes",
            "pending_bytes",
            "parameter_bytes",
            "optimizer_bytes",
        )
    }
    sums["workspace_bytes"] = np.maximum.reduceat(
        profile.column("workspace_bytes"), starts
    )
    for name in ("output_bytes", "boundary_output_bytes"):
        sums[name] = profile.column(name)[ends - 1]
    passing = profile.column("passing_bytes")[ends - 1]
    sums["own_output_bytes"] = sums["output_bytes"] - passing
    # As :class:`divisible.planning.memory.StageCosts` reckons them.
    skips = np.minimum(np.concatenate([[0], passing[:-1]]), sums.pop("skip_bytes"))
    sums["input_bytes"] = skips + np.concatenate(
        [[profile.input_bytes], sums["own_output_bytes"][:-1]]
    )
    return sums


def stage_costs(
    plan: Plan,
    schedule: Schedule,
    profiles: Sequence[Profile],
    network: Network,
    speeds: PerRank | None = None,
) -> Costs:
    """Returns what the simulator needs to know of a plan.

    Args:
        plan: Where to cut.
        schedule: Which stage is on which rank.
        profiles: Of the model, one for each microbatch, at its size.
        network: The links between the ranks.
        speeds: Of the ranks.

    Returns:
        Costs: Stage costs of shape (n_stages, n_microbatches); bytes for the largest
        microbatch.
    """
    sizes = [profile.n_samples for profile in profiles]
    by_size = {
        size: stage_sums(profile, plan.cuts)
        for size, profile in dict(zip(sizes, profiles)).items()
    }
    ranks = np.array(schedule.stage_ranks)
    speed = spread_speeds(speeds, schedule.n_ranks)

    def per_microbatch(name: str) -> np.ndarray:
        table = np.stack([by_size[size][name] for size in sizes], axis=1)
        return table / speed[ranks][:, None]

    forward, backward_input, backward_weight = map(
        per_microbatch, ("forward", "backward_input", "backward_weight")
    )
    largest = by_size[max(sizes)]
    held = largest["activation_bytes"] + largest["boundary_output_bytes"]
    links = edges(network, schedule)
    return Costs(
        forward,
        backward_input,
        backward_weight,
        transfer=largest["output_bytes"][:-1] / links.bandwidth,
        latency=links.latency,
        activation_bytes=largest["input_bytes"] + held,
        checkpoint_bytes=largest["input_bytes"],
        pending_bytes=largest["pending_bytes"],
    )


def fixed_memory(plan: Plan, schedule: Schedule, profile: Profile) -> np.ndarray:
    """Returns what each rank holds besides microbatches in flight.

    These are parameters, gradients and the optimizer's state of its stages; and for
    the one that needs most its workspace and a message from either side.

    Args:
        plan: Where to cut.
        schedule: Which stage is on which rank.
        profile: At the size of the largest microbatch.

    Returns:
        Bytes of shape (n_ranks,).
    """
    sums = stage_sums(profile, plan.cuts)
    ranks = np.array(schedule.stage_ranks)
    passing = sums["workspace_bytes"] + sums["input_bytes"] + sums["own_output_bytes"]
    memory = np.zeros(schedule.n_ranks)
    np.maximum.at(memory, ranks, passing)
    np.add.at(memory, ranks, 2 * sums["parameter_bytes"] + sums["optimizer_bytes"])
    return memory.round().astype(np.int64)
