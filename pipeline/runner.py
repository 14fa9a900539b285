"""Executes a schedule: its actions on stages, its messages over a transport."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from contextlib import nullcontext
from typing import Any, NamedTuple

import chainer
import numpy as np

from divisible.communication.signatures import Tensors
from divisible.communication.transport import Receiver, Sender, Transport
from divisible.schedules.actions import Action, Operation, Route, Transfer
from divisible.schedules.lowering import lower
from divisible.schedules.schedule import Schedule
from pipeline.messages.progress import Progress
from pipeline.stages.stage import Stage

# How many receives a channel has posted ahead of the one it waits for.
RECEIVES_AHEAD = 2

_WORDS = {
    "F": "forward",
    "B": "backward",
    "I": "input gradients",
    "W": "weights",
    "R": "recomputed forward",
}


class ActionError(RuntimeError):
    """An action failed; the message says where, the cause is what was raised."""


class Channel(NamedTuple):
    """What results travel over: from a stage to its neighbour, or along a skip."""

    stage: int
    is_forward: bool
    skip: str = ""


class Place(NamedTuple):
    """Where a result waits to be used: what ``stage`` left for another one.

    The first stage finds its input where a stage -1 would have left it.
    """

    stage: int
    is_forward: bool
    microbatch: int
    skip: str = ""

    @classmethod
    def of(cls, action: Action, skip: str = "") -> Place:
        """Returns where an action leaves its result, or what a skip takes of it."""
        return cls(action.stage, action.kind == "F", action.microbatch, skip)

    @classmethod
    def needed_by(cls, action: Action) -> Place:
        """Returns where an action finds what its neighbour left."""
        is_forward = action.kind == "F"
        neighbour = action.stage - 1 if is_forward else action.stage + 1
        return cls(neighbour, is_forward, action.microbatch)

    @property
    def channel(self) -> Channel:
        """What the result travels over, if its user is on another rank."""
        return Channel(self.stage, self.is_forward, self.skip)


class RankProgram(NamedTuple):
    """A schedule from one rank's point of view.

    Attributes:
        name: The schedule's name.
        n_stages: Number of stages on all ranks.
        n_microbatches: Number of microbatches.
        operations: What this rank does, in order.
        next_actions: For each operation the first action from there on, for which a
            receive waits.
        receives: For each channel the microbatches that come over it, in order.
        recomputed: Stages and microbatches whose forward is run again.
    """

    name: str
    n_stages: int
    n_microbatches: int
    operations: Sequence[Operation]
    next_actions: Sequence[Action | None]
    receives: Mapping[Channel, Sequence[int]]
    recomputed: Set[tuple[int, int]]

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        rank: int,
        rendezvous: bool,
        routes: Sequence[Route] = (),
    ) -> RankProgram:
        """Adds the messages to a schedule, and takes one rank's part.

        Args:
            schedule (Schedule): The computations.
            rank (int): The rank.
            rendezvous (bool): Whether sends may block until they are received.
            routes: The skip connections between stages.
        """
        operations = lower(schedule, rendezvous, routes)[rank]
        receives: dict[Channel, list[int]] = {}
        for operation in operations:
            if isinstance(operation, Transfer) and operation.direction == "receive":
                place = Place.of(operation.action, operation.skip)
                receives.setdefault(place.channel, []).append(place.microbatch)
        next_actions: list[Action | None] = []
        action = None
        for operation in reversed(operations):
            action = operation if isinstance(operation, Action) else action
            next_actions.append(action)
        return cls(
            schedule.name,
            schedule.n_stages,
            schedule.n_microbatches,
            operations,
            next_actions[::-1],
            receives,
            {
                (operation.stage, operation.microbatch)
                for operation in operations
                if isinstance(operation, Action) and operation.kind == "R"
            },
        )


class Record(NamedTuple):
    """What one rank did in one run of a program, and when.

    Attributes:
        program: What was run.
        times: The start and end of each operation in turn, in seconds of this host's
            clock.
    """

    program: RankProgram
    times: list[float]


class Runner:
    """One rank's part in the execution of schedules.

    Args:
        stages: The rank's stages by their position in the pipeline.
        stage_ranks: For each stage of the pipeline the rank that holds it.
        rank (int): This rank.
        transport (Transport): Carries the messages.
        routes: The skip connections between stages.

    Attributes:
        record (Record or None): The times of the last run.
        waits_for_device (bool): Whether each action waits until a GPU has done it, so
            that its times are not those of launches.
    """

    def __init__(
        self,
        stages: Mapping[int, Stage],
        stage_ranks: Sequence[int],
        rank: int,
        transport: Transport,
        routes: Sequence[Route] = (),
    ) -> None:
        self._stages = stages
        self._rank = rank
        self._transport = transport
        self._senders: dict[Channel, Sender] = {}
        self._receivers: dict[Channel, Receiver] = {}
        neighbours = [Route("", i, i + 1) for i in range(len(stage_ranks) - 1)]
        for number, (skip, start, end) in enumerate([*neighbours, *routes]):
            for is_forward, stage, other in ((True, start, end), (False, end, start)):
                channel = Channel(stage, is_forward, skip)
                source, target = stage_ranks[stage], stage_ranks[other]
                tag = 2 * number + is_forward
                if rank == source != target:
                    self._senders[channel] = transport.sender(tag, target)
                if rank == target != source:
                    self._receivers[channel] = transport.receiver(tag, source)
        # By stage, where it finds what skip connections bring, forward and back.
        self._found: dict[tuple[int, bool], list[tuple[str, int]]] = {}
        for name, start, end in routes:
            self._found.setdefault((end, True), []).append((name, start))
            self._found.setdefault((start, False), []).append((name, end))
        is_alone = not (self._senders or self._receivers)
        self._progress = nullcontext() if is_alone else Progress(transport.look)
        self.record: Record | None = None
        self.waits_for_device = False

    def run(self, program: RankProgram, inputs: Sequence[Any]) -> list[Any]:
        """Runs this rank's part of a schedule.

        Args:
            program (RankProgram): What to run.
            inputs: For each microbatch the first stage's input tensors; read on the
                first stage's rank only.

        Returns:
            For each microbatch the last stage's output tensors, on its rank; an
            empty list on the others.

        Raises:
            ActionError: If a layer fails.
            StallError: If another rank does not answer in time.
        """
        last = program.n_stages - 1
        results = {Place(-1, True, i): tensors for i, tensors in enumerate(inputs)}
        results.update(
            (Place(last + 1, False, i), ()) for i in range(program.n_microbatches)
        )
        outputs = {}
        posts = {channel: iter(order) for channel, order in program.receives.items()}
        for channel in posts:
            for _ in range(RECEIVES_AHEAD):
                self._post_next(channel, posts)

        clock = time.perf_counter
        times: list[float] = []
        self.record = Record(program, times)
        for operation, action in zip(program.operations, program.next_actions):
            times.append(clock())
            if isinstance(operation, Action):
                with self._progress:
                    result, skips = self._compute(
                        operation, results, program.recomputed
                    )
                if self.waits_for_device:
                    _synchronize(self._stages[operation.stage].layers.device)
                if operation.kind == "F" and operation.stage == last:
                    outputs[operation.microbatch] = result
                elif operation.kind in "FBI":
                    results[Place.of(operation)] = result
                for name, tensors in skips.items():
                    results[Place.of(operation, name)] = tensors
                del result, skips
            else:
                place = Place.of(operation.action, operation.skip)
                if operation.direction == "send":
                    sender = self._senders[place.channel]
                    sender.send(place.microbatch, results.pop(place))
                else:
                    receiver = self._receivers[place.channel]
                    results[place] = receiver.receive(place.microbatch, str(action))
                    self._post_next(place.channel, posts)
            times.append(clock())
        self._transport.flush()
        return [outputs[i] for i in sorted(outputs)]

    def close(self) -> None:
        """Frees what the messages need."""
        for receiver in self._receivers.values():
            receiver.close()

    def _post_next(self, channel: Channel, posts: Mapping) -> None:
        microbatch = next(posts[channel], None)
        if microbatch is not None:
            self._receivers[channel].post(microbatch)

    def _compute(
        self,
        action: Action,
        results: dict[Place, Tensors],
        recomputed: Set[tuple[int, int]],
    ) -> tuple[Tensors, Mapping[str, Tensors]]:
        stage, microbatch = self._stages[action.stage], action.microbatch
        try:
            if action.kind == "W":
                stage.backward_weight(microbatch)
                return (), {}
            if action.kind == "R":
                stage.recompute(microbatch)
                return (), {}
            is_forward = action.kind == "F"
            found = self._found.get((action.stage, is_forward), ())
            skips = {
                name: results.pop(Place(other, is_forward, microbatch, name))
                for name, other in found
            }
            tensors = results.pop(Place.needed_by(action))
            if is_forward:
                again = (action.stage, microbatch) in recomputed
                return stage.forward(microbatch, tensors, skips, again)
            return stage.backward(microbatch, tensors, skips, action.kind == "I")
        except Exception as error:
            raise ActionError(self._where(action, error)) from error

    def _where(self, action: Action, error: Exception) -> str:
        stage = self._stages[action.stage]
        layers, loss = stage.layers, stage.loss
        start, end = layers.layer_range
        position = getattr(error, "layer_position", None)
        layer = ""
        if position is not None:
            text = layers.model_layers[position].splitlines()[0]
            layer = f", in layer {position}, {text}"
        elif loss is not None and loss.is_wanted:
            layer = ", after the last layer, in lossfun or accfun"
        return (
            f"{action} failed on rank {self._rank} ({_WORDS[action.kind]} of microbatch"
            f" {action.microbatch}, stage {action.stage} with the layers {start} to"
            f" {end - 1}){layer}: {type(error).__name__}: {error}"
        )


def _synchronize(device: chainer.backend.Device) -> None:
    if device.xp is not np:
        device.device.synchronize()
