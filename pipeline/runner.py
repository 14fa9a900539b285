"""Executes a schedule: its actions on stages, its messages over a transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.schedule import Action, Message, Schedule, lower
from pipeline.stage import Stage
from pipeline.transport import Receiver, Sender, Transport

# How many receives a channel has posted ahead of the one it waits for.
RECEIVES_AHEAD = 2

_WORDS = {"F": "forward", "B": "backward", "I": "input gradients", "W": "weights"}


class ActionError(RuntimeError):
    """An action failed; the message says where, the cause is what was raised."""


class Runner:
    """One rank's part in the execution of schedules.

    Args:
        stages: The rank's stages by their position in the pipeline.
        stage_ranks: For each stage of the pipeline the rank that holds it.
        rank (int): This rank.
        transport (Transport): Carries the messages.

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

        """
        program = lower(schedule, rendezvous=False)[self._rank]
        last_stage = schedule.n_stages - 1
        # What each action left, by stage, direction and microbatch, until it is
        # used by the next action or sent.
        results = {(-1, True, i): message for i, message in enumerate(inputs)}
        results.update(
            ((last_stage + 1, False, i), ()) for i in range(schedule.n_microbatches)
        )
        posts = self._posts(program)
        for channel in posts:
            for _ in range(RECEIVES_AHEAD):
                self._post_next(channel, posts)

        outputs = []
        for position, operation in enumerate(program):
            if isinstance(operation, Action):
                result = self._compute(operation, results)
                if operation.kind == "F" and operation.stage == last_stage:
                    outputs.append(result)
            else:
                stage, kind, microbatch = operation.action
                channel = stage, kind == "F"
                if operation.direction == "send":
                    message = results.pop((*channel, microbatch))
                    self._senders[channel].send(microbatch, message)
                else:
                    results[(*channel, microbatch)] = self._receivers[channel].receive(
                        microbatch, _next_action(program, position)
                    )
                    self._post_next(channel, posts)
        self._transport.flush()
        return outputs

    def _posts(self, program: Sequence[Any]) -> dict[tuple[int, bool], list[int]]:
        """Lists, for each channel, the microbatches to come, in reverse."""
        posts: dict[tuple[int, bool], list[int]] = {}
        for operation in reversed(program):
            if isinstance(operation, Message) and operation.direction == "receive":
                stage, kind, microbatch = operation.action
                posts.setdefault((stage, kind == "F"), []).append(microbatch)
        return posts

    def _post_next(
        self, channel: tuple[int, bool], posts: Mapping[tuple[int, bool], list[int]]
    ) -> None:
        if posts[channel]:
            self._receivers[channel].post(posts[channel].pop())

    def _compute(self, action: Action, results: dict) -> Any:
        number, kind, microbatch = action
        stage = self._stages[number]
        try:
            if kind == "W":
                return stage.backward_weight(microbatch)
            if kind == "F":
                run, source = stage.forward, number - 1
            else:
                run, source = (
                    stage.backward if kind == "B" else stage.backward_input,
                    number + 1,
                )
            result = run(microbatch, results.pop((source, kind == "F", microbatch)))
        except Exception as error:
            raise ActionError(self._where(action, error)) from error
        results[number, kind == "F", microbatch] = result
        return result

    def _where(self, action: Action, error: Exception) -> str:
        layers = self._stages[action.stage].layers
        start, end = layers.layer_range
        position = getattr(error, "layer_position", None)
        layer = ""
        if position is not None:
            text = layers.model_layers[position].splitlines()[0]
            layer = f", in layer {position}, {text}"
        return (
            f"{action} failed on rank {self._rank} ({_WORDS[action.kind]} of microbatch"
            f" {action.microbatch}, stage {action.stage} with the layers {start} to"
            f" {end - 1}){layer}: {type(error).__name__}: {error}"
        )


def _next_action(program: Sequence[Any], position: int) -> str:
    """Names the first action after a position, for which a receive waits."""
    for operation in program[position:]:
        if isinstance(operation, Action):
            return str(operation)
    return "nothing more"
