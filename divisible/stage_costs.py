"""What a stage costs: time, messages and memory, for any range of layers.

Partitioning asks for the costs of every possible stage, so they are kept in a form in
which each is a difference of two numbers::

    seconds of layers i to j-1 = times[j] - times[i]
    bytes of layers i to j-1   = grows[j] - grows[i] + starts[i] + ends[j] + workspace
                               + inputs * min(crossing[i], popped[j] - popped[i])

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
from typing import Union

import numpy as np

from divisible.layer_costs import Profile
from divisible.schedules.recomputation import check_checkpoint

#: How many microbatches a stage of a zero-bubble schedule runs ahead, and keeps W back,
#: for each stage behind and before it.
ZERO_BUBBLE_DEPTHS = {"zb_h1": 1, "zb_h2": 2}
#: The schedules of one stage on each rank, of which it is known what a stage holds.
ONE_STAGE = ("gpipe", "1f1b", *ZERO_BUBBLE_DEPTHS)

#: A number for all ranks or edges, or one for each.
PerRank = Union[float, Sequence[float]]


@dataclass(frozen=True)
class Network:
    """The links between the ranks of neighbouring stages.

    A message of ``n`` bytes takes ``latency + n / bandwidth`` seconds, which is
    equation (1) of Takisawa et al. (2022).

    Attributes:
        bandwidth: Bytes per second in either direction; one number for all links or
            one for each pair of ranks ``r`` and ``r + 1``.
        latency: Seconds; the same.
        overlap: Whether messages travel while ranks compute.

    Raises:
        TypeError: If something is no number.
        ValueError: If a bandwidth is not positive or a latency negative.

    Example:
        >>> Network(bandwidth=1e9, latency=50e-6).edges(3)
        (array([1.e+09, 1.e+09]), array([5.e-05, 5.e-05]))
    """

    bandwidth: PerRank = float("inf")
    latency: PerRank = 0.0
    overlap: bool = True

    def __post_init__(self) -> None:
        if not np.all(_numbers("bandwidth", self.bandwidth) > 0):
            raise ValueError(f"bandwidth must be positive, not {self.bandwidth}")
        latency = _numbers("latency", self.latency)
        if not np.all(np.isfinite(latency) & (latency >= 0)):
            raise ValueError(
                f"latency must be finite and not negative, not {self.latency}"
            )

    def edges(self, n_stages: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns bandwidth and latency of the first ``n_stages - 1`` links.

        Raises:
            ValueError: If there are fewer.
        """
        return (
            spread("bandwidth", self.bandwidth, n_stages - 1, "links between ranks"),
            spread("latency", self.latency, n_stages - 1, "links between ranks"),
        )


def spread(name: str, values: PerRank, n: int, what: str = "ranks") -> np.ndarray:
    """Returns one number for each of ``n``; those beyond are left out.

    Raises:
        TypeError: If something is no number.
        ValueError: If there are fewer.
    """
    array = _numbers(name, values)
    if array.ndim == 0:
        return np.full(n, float(array))
    if array.ndim != 1 or len(array) < n:
        raise ValueError(
            f"{name} has the shape {array.shape}, but there are {n} {what}: give one"
            f" number for all or one for each"
        )
    return array[:n]


def spread_speeds(speeds: PerRank | None, n: int) -> np.ndarray:
    """Returns the speed of each of ``n`` ranks, 1 if nothing is said.

    Raises:
        ValueError: If there are fewer, or one is not finite and positive.
    """
    speeds = spread("speeds", 1.0 if speeds is None else speeds, n)
    if not np.all(np.isfinite(speeds) & (speeds > 0)):
        raise ValueError(f"speeds must be finite and positive, not {speeds}")
    return speeds


def spread_memory(memory: PerRank | None, n: int) -> np.ndarray:
    """Returns the bytes that each of ``n`` ranks may use, no limit if nothing is said.

    Raises:
        ValueError: If there are fewer, or one is not positive.
    """
    limits = spread("memory", np.inf if memory is None else memory, n)
    if not np.all(limits > 0):
        raise ValueError(f"memory must be positive, not {memory}")
    return limits


def _numbers(name: str, values: PerRank) -> np.ndarray:
    try:
        return np.asarray(values, float)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be one number for all or one for each, not {values!r}"
        ) from None


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
        popped: Shape (n_layers + 1,): bytes of those that end before it.
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
    popped: np.ndarray
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
        # Skips go straight to where they are popped, not through stages in between.
        own_bytes = cut_bytes.copy()
        own_bytes[1:n] -= profile.column("passing_bytes")[:-1]
        input_bytes = own_bytes.copy()
        input_bytes[0] = profile.input_bytes
        loose = np.concatenate([[0.0], profile.column("loose_output_bytes")])
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
            popped=_sums(profile.column("skip_bytes")),
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
        skips = min(self.crossing[start], self.popped[end] - self.popped[start])
        held = self.grows[:, stage, end] - self.grows[:, stage, start]
        held = held + self.starts[:, stage, start] + self.ends[:, stage, end]
        held = held + self.inputs[:, stage] * skips
        return float(held.max() + self.workspace[start:end].max())

    def bytes_alone(self) -> np.ndarray:
        """Returns what each layer would need as a stage of its own.

        Returns:
            Shape (n_stages, n_layers).
        """
        skips = np.minimum(self.crossing[:-1], np.diff(self.popped))
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
