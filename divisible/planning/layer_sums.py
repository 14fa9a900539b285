"""Sums over the layers of a profile, and over those of each stage.

The sum over a range of layers is a difference of two sums::

    sum over layers i to j-1  =  before[j] - before[i]

so every possible stage can be weighed, and all stages of given cuts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from divisible.schedules.held import Moments
from divisible.schedules.rank_program import RECEIVES_AHEAD
from divisible.schedules.schedule import Schedule


class StageSums(NamedTuple):
    """The costs of stages for one microbatch, each an array of shape (n_stages,).

    Attributes:
        forward: Seconds of F.
        backward_input: Seconds of I.
        backward_weight: Seconds of W.
        n_gradients: Elements that replicas exchange.
        fixed_bytes: Bytes of the parameters, their gradients and the optimizer's state.
        parameter_bytes: Bytes of the parameters alone.
        graph_bytes: Bytes held from F, or R, to B or I besides the input.
        pending_bytes: Bytes held between I and W.
        prepared_bytes: Bytes of weights in the order of the kernels.
        workspace_bytes: Bytes that the greediest layer allocates and frees again.
        excess_bytes: Bytes by which a stage exceeds ``graph_bytes`` while a layer runs,
            in a forward or in a backward that leaves no weight gradients pending.
        input_bytes: Bytes of the inputs: the output of the layer before, and the values
            of skip connections that end in the stage.
        output_bytes: Bytes of the outputs to the next stage and over skip connections.
        leaving_bytes: Bytes of the outputs that the stage itself sends: to the next
            stage, and over skip connections that begin in it. As many gradients come
            back.
        graph_saved: The part of ``graph_bytes`` that is saved where it waits in
            bfloat16.
        input_saved: The part of ``input_bytes`` that is saved in the same way, without
            skip connections.
    """

    forward: np.ndarray
    backward_input: np.ndarray
    backward_weight: np.ndarray
    n_gradients: np.ndarray
    fixed_bytes: np.ndarray
    parameter_bytes: np.ndarray
    graph_bytes: np.ndarray
    pending_bytes: np.ndarray
    prepared_bytes: np.ndarray
    workspace_bytes: np.ndarray
    excess_bytes: np.ndarray
    input_bytes: np.ndarray
    output_bytes: np.ndarray
    leaving_bytes: np.ndarray
    graph_saved: np.ndarray
    input_saved: np.ndarray


class LayerSums:
    """Sums over the layers before each position of a model.

    Args:
        column: Returns an attribute of all layers, as `Profile.column` does.
        input_bytes: Bytes of the first layer's input.

    Attributes:
        forward, backward_input, backward_weight: Seconds of the layers before each
            position. All attributes are of shape (n_layers + 1,), except ``workspace``
            and ``reach``.
        parameters, fixed, activations, pending, prepared: Bytes of the layers before
            each position.
        gradients: Elements that replicas exchange, of the layers before each position.
        ended_skips: Bytes of the skip connections that end before each position.
        crossing: Bytes that cross a cut at each position in one direction.
        passing: The part of ``crossing`` that skip connections carry. It is sent
            directly to the stage where they end, not through the stages in between.
        own_output: The other part of ``crossing``, from the layer before the cut.
        own_input: Equal to ``own_output``, except for the input of the model at the
            beginning.
        boundary: Additional bytes held if a stage ends at the position.
        activations_saved, own_input_saved, boundary_saved: The parts of
            ``activations``, ``own_input`` and ``boundary`` that are saved where they
            wait in bfloat16.
        workspace: Bytes that a layer needs while it runs, of shape (n_layers,).
        reach: These bytes, and the activations up to and with the layer, of that shape.
            The activations behind it are not there yet, or no more.
    """

    def __init__(self, column: Callable[[str], np.ndarray], input_bytes: int) -> None:
        self.forward = _before(column("forward"))
        self.backward_input = _before(column("backward_input"))
        self.backward_weight = _before(column("backward_weight"))
        self.parameters = _before(column("parameter_bytes"))
        self.fixed = 2 * self.parameters + _before(column("optimizer_bytes"))
        self.gradients = _before(column("n_gradients"))
        self.activations = _before(column("activation_bytes"))
        self.pending = _before(column("pending_bytes"))
        self.prepared = _before(column("prepared_bytes"))
        self.ended_skips = _before(column("skip_bytes"))
        self.crossing = _behind(column("output_bytes"))
        self.passing = _behind(column("passing_bytes"))
        # Nothing crosses the end of the model.
        self.passing[-1] = 0.0
        self.own_output = self.crossing - self.passing
        self.own_input = self.own_output.copy()
        self.own_input[0] = input_bytes
        self.boundary = _behind(column("boundary_output_bytes"))
        self.activations_saved = _before(column("activation_saved_bytes"))
        saved = _behind(column("output_saved_bytes"))
        there = self.crossing > 0
        share = np.divide(saved, self.crossing, np.zeros_like(saved), where=there)
        # The caller holds the inputs of the model.
        self.own_input_saved = share * self.own_output
        self.boundary_saved = share * self.boundary
        self.workspace = column("workspace_bytes")
        self.reach = self.activations[1:] + self.workspace

    def stages(self, cuts: Sequence[int]) -> StageSums:
        """Adds up the layers of each stage.

        A skip connection comes into a stage if it begins before and ends in it. Such
        connections have at most the bytes of all that are open where the stage begins,
        and at most those of all that end in it; the lesser of the two is taken. In the
        same way, one leaves the stage if it begins in it and ends behind.

        Args:
            cuts: Where the stages begin, and where the last one ends.

        Returns:
            The sums of every stage.
        """
        cuts = np.asarray(cuts)
        start, end = cuts[:-1], cuts[1:]
        ended = np.diff(self.ended_skips[cuts])
        skips = np.minimum(self.passing[start], ended)
        begun = self.passing[end] - self.passing[start] + ended
        return StageSums(
            forward=np.diff(self.forward[cuts]),
            backward_input=np.diff(self.backward_input[cuts]),
            backward_weight=np.diff(self.backward_weight[cuts]),
            n_gradients=np.diff(self.gradients[cuts]).round().astype(np.int64),
            fixed_bytes=np.diff(self.fixed[cuts]),
            parameter_bytes=np.diff(self.parameters[cuts]),
            graph_bytes=np.diff(self.activations[cuts]) + self.boundary[end],
            pending_bytes=np.diff(self.pending[cuts]),
            prepared_bytes=np.diff(self.prepared[cuts]),
            workspace_bytes=np.maximum.reduceat(self.workspace, start),
            excess_bytes=np.maximum.reduceat(self.reach, start) - self.activations[end],
            input_bytes=self.own_input[start] + skips,
            output_bytes=self.crossing[end],
            leaving_bytes=self.own_output[end]
            + np.minimum(self.passing[end], np.maximum(begun, 0.0)),
            graph_saved=np.diff(self.activations_saved[cuts])
            + self.boundary_saved[end],
            input_saved=self.own_input_saved[start],
        )


def _before(values: np.ndarray) -> np.ndarray:
    """Returns the sum of the values before each position."""
    return np.concatenate([[0.0], np.cumsum(values)])


def _behind(values: np.ndarray) -> np.ndarray:
    """Returns the value of the layer before each position."""
    return np.concatenate([[0.0], values])


class Posted(NamedTuple):
    """Numbers of messages that stages have room for before they come.

    Attributes:
        inputs: Inputs besides those of microbatches in flight, of shape (n_stages,).
        gradients: Gradients of outputs besides those in use, of the same shape.
    """

    inputs: np.ndarray
    gradients: np.ndarray

    @classmethod
    def of(cls, schedule: Schedule, moments: Moments) -> Posted:
        """Returns the room that a schedule makes.

        Args:
            schedule: The schedule. No messages come from a stage's own rank.
            moments: The moments at which its stages hold most.

        Example:
            >>> from divisible.schedules import one_f_one_b
            >>> schedule = one_f_one_b(3, 4)
            >>> posted = Posted.of(schedule, schedule.moments)
            >>> posted.inputs.tolist(), posted.gradients.tolist()
            ([0.0, 2.0, 2.0], [2.0, 2.0, 0.0])
        """
        n, ranks = schedule.n_microbatches, np.array(schedule.stage_ranks)
        # A microbatch in flight stays where it was received.
        in_flight = moments.in_flight.max(axis=0)
        inputs, gradients = np.zeros((2, schedule.n_stages))
        comes = ranks[1:] != ranks[:-1]
        inputs[1:] = comes * np.clip(n - in_flight[1:], 0, RECEIVES_AHEAD)
        gradients[:-1] = comes * min(n - 1, RECEIVES_AHEAD)
        return cls(inputs, gradients)

    def bytes(self, sums: StageSums) -> np.ndarray:
        """Returns the bytes of that room; of the shape of the sums."""
        return self.inputs * sums.input_bytes + self.gradients * sums.leaving_bytes


def held_bytes(sums: StageSums, moments: Moments, posted: Posted) -> np.ndarray:
    """Returns the bytes of stages at their peak, without buffers of the exchange.

    Args:
        sums: Sums over the layers of the stages.
        moments: The moments at which stages hold most; of shape (n_moments, n_stages),
            or with more axes.
        posted: The messages that stages have room for, of shape (n_stages,), or with
            more axes.
    """
    in_flight, graphs, pending, waiting, waiting_graphs = moments
    held = in_flight * sums.input_bytes + graphs * sums.graph_bytes
    held = held + pending * sums.pending_bytes
    held = held - waiting * sums.input_saved - waiting_graphs * sums.graph_saved
    held = held.max(axis=0) + sums.fixed_bytes + posted.bytes(sums)
    return held + passing_bytes(sums, moments.has_pending)


def passing_bytes(sums: StageSums, has_pending: np.ndarray) -> np.ndarray:
    """Returns the bytes that a stage needs above what it holds, while it computes.

    These are messages, and the workspace of a layer. A forward or a backward does not
    hold the activations of the layers behind that one. A pending W runs while other
    microbatches hold theirs.

    Args:
        sums: Sums over the layers of the stages.
        has_pending: Whether the stages have pending W.
    """
    workspace = np.where(has_pending, sums.workspace_bytes, sums.excess_bytes)
    return workspace + sums.input_bytes + sums.leaving_bytes
