"""Executes a schedule: its actions on stages, its messages over a transport."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.schedule import Action, Message, Operation, Schedule, lower
from pipeline.stage import Stage
from pipeline.transport import Receiver, Sender, Transport

# How many receives a channel has posted ahead of the one it waits for.
RECEIVES_AHEAD = 2

_WORDS = {"F": "forward", "B": "backward", "I": "input gradients", "W": "weights"}


class ActionError(RuntimeError):
    """An action failed; the message says where, the cause is what was raised."""


#: A stage and whether its results travel forward.
Channel = tuple


class Place(NamedTuple):
    """Where a result waits to be used: what ``stage`` left for its neighbour.

    The first stage finds its input where a stage -1 would have left it.
    """

    stage: int
    is_forward: bool
    microbatch: int

    @classmethod
    def of(cls, action: Action) -> Place:
        """Returns where an action leaves its result."""
        return cls(action.stage, action.kind == "F", action.microbatch)

    @classmethod
    def needed_by(cls, action: Action) -> Place:
        """Returns where an action finds what it works on."""
        is_forward = action.kind == "F"
        neighbour = action.stage - 1 if is_forward else action.stage + 1
        return cls(neighbour, is_forward, action.microbatch)

    @property
    def channel(self) -> Channel:
        """What the result travels over, if its user is on another rank."""
        return self.stage, self.is_forward


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
    """

    name: str
    n_stages: int
    n_microbatches: int
    operations: Sequence[Operation]
    next_actions: Sequence[Action | None]
    receives: Mapping[Channel, Sequence[int]]

    @classmethod
    def of(cls, schedule: Schedule, rank: int, rendezvous: bool) -> RankProgram:
        """Adds the messages to a schedule, and takes one rank's part.

        Args:
            schedule (Schedule): The computations.
            rank (int): The rank.
            rendezvous (bool): Whether sends may block until they are received.
        """
        operations = lower(schedule, rendezvous)[rank]
        receives: dict[Channel, list[int]] = {}
        for operation in operations:
            if isinstance(operation, Message) and operation.direction == "receive":
                place = Place.of(operation.action)
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

    Attributes:
        record (Record or None): The times of the last run.
    """

    def __init__(
        self,
        stages: Mapping[int, Stage],
        stage_ranks: Sequence[int],
        rank: int,
        transport: Transport,
    ) -> None:
        self._stages = stages
        self._rank = rank
        self._transport = transport
        self._senders: dict[Channel, Sender] = {}
        self._receivers: dict[Channel, Receiver] = {}
        for stage, source in enumerate(stage_ranks):
            for is_forward, neighbour in ((True, stage + 1), (False, stage - 1)):
                if not 0 <= neighbour < len(stage_ranks):
                    continue
                target = stage_ranks[neighbour]
                channel = 2 * stage + is_forward
                if rank == source != target:
                    self._senders[stage, is_forward] = transport.sender(channel, target)
                if rank == target != source:
                    self._receivers[stage, is_forward] = transport.receiver(
                        channel, source
                    )
        self.record: Record | None = None

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
                result = self._compute(operation, results)
                if operation.kind == "F" and operation.stage == last:
                    outputs[operation.microbatch] = result
                elif operation.kind != "W":
                    results[Place.of(operation)] = result
            else:
                place = Place.of(operation.action)
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

    def _compute(self, action: Action, results: dict[Place, Any]) -> Any:
        stage, microbatch = self._stages[action.stage], action.microbatch
        try:
            if action.kind == "W":
                return stage.backward_weight(microbatch)
            compute = {
                "F": stage.forward,
                "B": stage.backward,
                "I": stage.backward_input,
            }[action.kind]
            return compute(microbatch, results.pop(Place.needed_by(action)))
        except Exception as error:
            raise ActionError(self._where(action, error)) from error

    def _where(self, action: Action, error: Exception) -> str:
        layers = self._stages[action.stage].layers
        start, end = layers.layer_range
        position = getattr(error, "layer_position", None)
        layer = ""
        if position is not None:
            text = layers.model_layers[position].splitlines()[0]
            layer = f", in layer {position}, {text}"
        elif self._stages[action.stage].loss is not None:
            layer = ", after the last layer, in lossfun or accfun"
        return (
            f"{action} failed on rank {self._rank} ({_WORDS[action.kind]} of microbatch"
            f" {action.microbatch}, stage {action.stage} with the layers {start} to"
            f" {end - 1}){layer}: {type(error).__name__}: {error}"
        )
