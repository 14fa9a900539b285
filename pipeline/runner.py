"""Executes a schedule: its actions on stages, its messages over a transport."""

from __future__ import annotations

import functools
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


class Slot(NamedTuple):
    """The place of a result: what ``stage`` left for its neighbour.

    The first stage finds its input where a stage -1 would have left it.
    """

    stage: int
    is_forward: bool
    microbatch: int

    @classmethod
    def of(cls, action: Action) -> Slot:
        """Returns where an action leaves its result."""
        return cls(action.stage, action.kind == "F", action.microbatch)

    @classmethod
    def needed_by(cls, action: Action) -> Slot:
        """Returns where an action finds what it works on."""
        is_forward = action.kind == "F"
        neighbour = action.stage - 1 if is_forward else action.stage + 1
        return cls(neighbour, is_forward, action.microbatch)


class Record(NamedTuple):
    """What one rank did in one run of a schedule, and when.

    Attributes:
        operations: The actions and messages, in order.
        times: The start and end of each in turn, in seconds of this host's clock.
    """

    operations: Sequence[Operation]
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
        self._senders: dict[tuple[int, bool], Sender] = {}
        self._receivers: dict[tuple[int, bool], Receiver] = {}
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
        self._program = functools.lru_cache(maxsize=8)(self._lower)
        self._failed = False
        self.record: Record | None = None

    def run(self, schedule: Schedule, inputs: Sequence[Any]) -> list[Any]:
        """Runs this rank's part of a schedule.

        Args:
            schedule (Schedule): What to run.
            inputs: For each microbatch the first stage's input message; read on the
                first stage's rank only.

        Returns:
            For each microbatch the last stage's output message, on its rank; an
            empty list on the others.

        Raises:
            ActionError: If a layer fails.
            StallError: If another rank does not answer in time.
            RuntimeError: If an earlier run failed.
        """
        if self._failed:
            raise RuntimeError(
                "an earlier minibatch failed on this rank, so the other ranks' messages"
                " are out of step: make a new Pipeline on all ranks"
            )
        # Cleared at the end.
        self._failed = True
        program = self._program(schedule)
        end = schedule.n_stages
        # Results wait here until the next action uses them or they are sent.
        results = {Slot(-1, True, i): message for i, message in enumerate(inputs)}
        results.update(
            (Slot(end, False, i), ()) for i in range(schedule.n_microbatches)
        )
        outputs = {}
        posts = {channel: iter(order) for channel, order in program.receives.items()}
        for channel in posts:
            for _ in range(RECEIVES_AHEAD):
                self._post_next(channel, posts)

        clock = time.perf_counter
        times: list[float] = []
        self.record = Record(program.operations, times)
        for operation, action in zip(program.operations, program.next_actions):
            times.append(clock())
            if isinstance(operation, Action):
                result = self._compute(operation, results)
                if operation.kind == "F" and operation.stage == end - 1:
                    outputs[operation.microbatch] = result
                elif operation.kind != "W":
                    results[Slot.of(operation)] = result
            else:
                slot = Slot.of(operation.action)
                if operation.direction == "send":
                    self._senders[slot[:2]].send(slot.microbatch, results.pop(slot))
                else:
                    receiver = self._receivers[slot[:2]]
                    results[slot] = receiver.receive(slot.microbatch, str(action))
                    self._post_next(slot[:2], posts)
            times.append(clock())
        self._transport.flush()
        self._failed = False
        return [outputs[i] for i in sorted(outputs)]

    def _lower(self, schedule: Schedule) -> _Program:
        operations = lower(schedule, self._transport.rendezvous)[self._rank]
        receives: dict[tuple[int, bool], list[int]] = {}
        next_actions: list[Action | None] = []
        for operation in operations:
            if isinstance(operation, Message) and operation.direction == "receive":
                slot = Slot.of(operation.action)
                receives.setdefault(slot[:2], []).append(slot.microbatch)
        action = None
        for operation in reversed(operations):
            action = operation if isinstance(operation, Action) else action
            next_actions.append(action)
        return _Program(operations, next_actions[::-1], receives)

    def _post_next(self, channel: tuple[int, bool], posts: Mapping) -> None:
        microbatch = next(posts[channel], None)
        if microbatch is not None:
            self._receivers[channel].post(microbatch)

    def _compute(self, action: Action, results: dict[Slot, Any]) -> Any:
        stage, microbatch = self._stages[action.stage], action.microbatch
        try:
            if action.kind == "W":
                return stage.backward_weight(microbatch)
            compute = {
                "F": stage.forward,
                "B": stage.backward,
                "I": stage.backward_input,
            }[action.kind]
            return compute(microbatch, results.pop(Slot.needed_by(action)))
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


class _Program(NamedTuple):
    """A schedule from one rank's point of view.

    Attributes:
        operations: What it does, in order.
        next_actions: For each operation the first action from there on, for which a
            receive waits.
        receives: For each channel the microbatches that come over it, in order.
    """

    operations: Sequence[Operation]
    next_actions: Sequence[Action | None]
    receives: Mapping[tuple[int, bool], Sequence[int]]
