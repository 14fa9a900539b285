"""The memory of stages: the one reckoning of it, from the schedule itself.

A stage holds its parameters, their gradients and the optimizer's state; for each
microbatch in flight its input, and while there is a graph of it what its layers hold;
what pending weight gradients need; the workspace of its greediest layer with a
message from either side; and the buffers for gradients that replicas exchange::

    bytes = fixed + workspace + input + output + buffers
            + max over moments (in_flight * input + graphs * graph + pending * pending)

How many microbatches that are, and when, `divisible.schedules.held` reads from the
actions of the schedule. A stage may hold most activations at one moment, and most
pending weight gradients at another; the worst counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from divisible.planning.disk import Disk
from divisible.planning.layer_sums import LayerSums, StageSums
from divisible.planning.machine import Network, PerRank, edges, spread_speeds
from divisible.planning.profile import Profile
from divisible.schedules.costs import Costs
from divisible.schedules.held import Moments, moments, peaks
from divisible.schedules.recomputation import recomputed_share
from divisible.schedules.schedule import Schedule


class MemoryTable(NamedTuple):
    """The memory of every possible stage, in sums that a search can subtract.

    At each moment stage ``s`` of the layers ``i`` to ``j - 1`` holds, besides its
    workspace, ``ends[s, j] - starts[s, i]`` bytes and, for ``inputs[s]`` microbatches,
    the skip connections that end in it.

    Attributes:
        ends: Shape (n_moments, n_stages, n_layers + 1).
        starts: The same shape.
        inputs: Shape (n_moments, n_stages).
        at_least: Of shape (n_stages, n_layers + 1), differences of which a stage needs
            whatever its ends are.
    """

    ends: np.ndarray
    starts: np.ndarray
    inputs: np.ndarray
    at_least: np.ndarray


@dataclass(frozen=True)
class StageCosts:
    """The costs of a schedule's stages, whatever layers they have.

    Attributes:
        layers: Of a profile at the size of microbatch in use.
        moments: When the stages hold most.
        recomputed: For each stage the share of the microbatches whose forward runs
            again.
        speeds: Of the ranks of the stages, relative to where the profile was measured.
        network: The links between neighbouring stages.
        buffers: Bytes that each stage has for the messages of replicas.
    """

    layers: LayerSums
    moments: Moments
    recomputed: np.ndarray
    speeds: np.ndarray
    network: Network
    buffers: float = 0.0

    @classmethod
    def of(
        cls,
        profile: Profile,
        schedule: Schedule,
        speeds: PerRank | None = None,
        network: Network | None = None,
        buffers: float = 0.0,
        on_disk: np.ndarray | None = None,
    ) -> StageCosts:
        """Reckons with a schedule.

        Args:
            profile: At the size of microbatch in use.
            schedule: A valid one, with the forwards that run again.
            speeds: Of the ranks of the stages; 1 by default.
            network: The links between neighbouring stages; infinitely fast by default.
            buffers: Bytes that each stage has for the messages of replicas.
            on_disk: For each stage whether its microbatches wait on disk.

        Returns:
            StageCosts: Of as many stages.

        Raises:
            ValueError: If an argument is out of range.
        """
        return cls(
            profile.sums,
            schedule.moments if on_disk is None else moments(schedule, on_disk),
            recomputed_share(schedule),
            spread_speeds(speeds, schedule.n_stages),
            Network() if network is None else network,
            buffers,
        )

    @property
    def n_stages(self) -> int:
        """The number of stages."""
        return len(self.speeds)

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return len(self.layers.workspace)

    def busy(self) -> np.ndarray:
        """Returns what each stage would compute of the layers before each position.

        Returns:
            Seconds for one microbatch, of shape (n_stages, n_layers + 1).
        """
        return self._compute(self.layers) / self.speeds[:, None]

    def seconds(self, cuts: Sequence[int]) -> np.ndarray:
        """Returns what the stages of given cuts compute for one microbatch."""
        return np.diagonal(self._compute(self.layers.stages(cuts))) / self.speeds

    def _compute(self, sums: LayerSums | StageSums) -> np.ndarray:
        backward = sums.backward_input + sums.backward_weight
        return (1 + self.recomputed[:, None]) * sums.forward + backward

    def link_seconds(self) -> np.ndarray:
        """Returns how long a message keeps each link busy, for each cut.

        With overlap that is the transfer alone: many messages can be on their way.

        Returns:
            Shape (n_stages + 1, n_layers + 1); edge ``s`` lies before stage ``s``, and
            the first and last are not there and cost nothing.
        """
        bandwidth, latency = self.network.edges(self.n_stages)
        seconds = np.zeros((self.n_stages + 1, self.n_layers + 1))
        seconds[1:-1] = self.layers.crossing / bandwidth[:, None]
        if not self.network.overlap:
            seconds[1:-1] += latency[:, None]
        return seconds

    def bytes(self, cuts: Sequence[int]) -> np.ndarray:
        """Returns what the stages of given cuts hold at their peak."""
        return _stage_bytes(self.layers.stages(cuts), self.moments) + self.buffers

    def bytes_alone(self) -> np.ndarray:
        """Returns what each layer would need as a stage of its own.

        Returns:
            Shape (n_stages, n_layers).
        """
        each = self.layers.stages(range(self.n_layers + 1))
        moments = Moments(*(m[..., None] for m in self.moments))
        return _stage_bytes(each, moments) + self.buffers

    def memory(self) -> MemoryTable:
        """Returns the memory of every possible stage."""
        layers = self.layers
        # Each stage has its own number of microbatches: columns against rows.
        in_flight, graphs, pending = (m[..., None] for m in self.moments)
        grows = layers.fixed + graphs * layers.activations + pending * layers.pending
        return MemoryTable(
            ends=grows + layers.own_output + graphs * layers.boundary + self.buffers,
            starts=grows - (in_flight + 1) * layers.own_input,
            inputs=self.moments.in_flight + 1.0,
            at_least=grows[0],
        )


def _stage_bytes(sums: StageSums, moments: Moments) -> np.ndarray:
    in_flight, graphs, pending = moments
    held = in_flight * sums.input_bytes + graphs * sums.graph_bytes
    held = held + pending * sums.pending_bytes
    return held.max(axis=0) + sums.fixed_bytes + _passing_bytes(sums)


def _passing_bytes(sums: StageSums) -> np.ndarray:
    """Returns what a stage holds while it is at work: workspace and messages."""
    return sums.workspace_bytes + sums.input_bytes + sums.own_output_bytes


def stage_costs(
    cuts: Sequence[int],
    schedule: Schedule,
    profiles: Sequence[Profile],
    network: Network,
    speeds: PerRank | None = None,
    disk: Disk | None = None,
    on_disk: np.ndarray | None = None,
) -> Costs:
    """Returns what the simulator needs to know of stages.

    Args:
        cuts: Where stages begin, and where the last one ends.
        schedule: Which stage is on which rank.
        profiles: Of the model, one for each microbatch, at its size.
        network: The links between the ranks.
        speeds: Of the ranks.
        disk: Of each rank.
        on_disk: For each stage whether its microbatches wait there.

    Returns:
        Costs: Stage costs of shape (n_stages, n_microbatches); bytes for the largest
        microbatch.
    """
    sizes = [profile.n_samples for profile in profiles]
    by_size = {
        size: profile.sums.stages(cuts)
        for size, profile in dict(zip(sizes, profiles)).items()
    }
    ranks = np.array(schedule.stage_ranks)
    speed = spread_speeds(speeds, schedule.n_ranks)[ranks]
    seconds = np.stack([by_size[size][:3] for size in sizes], axis=2)
    largest = by_size[max(sizes)]
    links = edges(network, schedule)
    write = read = 0.0
    if on_disk is not None:
        share = 1 - recomputed_share(schedule)
        held = on_disk * (largest.input_bytes + share * largest.graph_bytes)
        write, read = held / disk.write, held / disk.read
    return Costs(
        *(seconds / speed[:, None]),
        transfer=largest.output_bytes[:-1] / links.bandwidth,
        latency=links.latency,
        activation_bytes=largest.input_bytes + largest.graph_bytes,
        checkpoint_bytes=largest.input_bytes,
        pending_bytes=largest.pending_bytes,
        write=write,
        read=read,
    )


def rank_bytes(
    cuts: Sequence[int],
    schedule: Schedule,
    profile: Profile,
    buffers: float = 0.0,
    on_disk: np.ndarray | None = None,
) -> np.ndarray:
    """Returns what each rank holds at its peak, all its stages together.

    Args:
        cuts: Where stages begin, and where the last one ends.
        schedule: Which stage is on which rank.
        profile: At the size of the largest microbatch.
        buffers: Bytes that each rank has for the messages of replicas.
        on_disk: For each stage whether its microbatches wait on disk.

    Returns:
        Bytes of shape (n_ranks,).
    """
    sums = profile.sums.stages(cuts)
    ranks = np.array(schedule.stage_ranks)
    # One stage is at work at a time.
    memory = np.zeros(schedule.n_ranks)
    np.maximum.at(memory, ranks, _passing_bytes(sums))
    memory += buffers
    np.add.at(memory, ranks, sums.fixed_bytes)
    activation = sums.input_bytes + sums.graph_bytes
    held = peaks(schedule, activation, sums.pending_bytes, sums.input_bytes, on_disk)
    return memory.round().astype(np.int64) + np.array(held)
