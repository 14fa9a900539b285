"""Executes a schedule: its actions on stages, its messages over a transport."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from contextlib import nullcontext
from typing import Any

import chainer
import numpy as np

from divisible.communication.signatures import Tensors
from divisible.communication.transport import Receiver, Sender, Transport
from divisible.schedules.actions import Action, Route
from divisible.schedules.schedule import Schedule
from pipeline.progress import Progress
from pipeline.rank_program import Channel, RankProgram, Record, Slot
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
        self._routes = routes
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

    def program(self, schedule: Schedule) -> RankProgram:
        """Returns this rank's part of a schedule, to be run."""
        rendezvous = self._transport.rendezvous
        return RankProgram.of(schedule, self._rank, rendezvous, self._routes)

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
        results = {Slot(-1, True, i): tensors for i, tensors in enumerate(inputs)}
        results.update(
            (Slot(last + 1, False, i), ()) for i in range(program.n_microbatches)
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
                    results[Slot.of(operation)] = result
                for name, tensors in skips.items():
                    results[Slot.of(operation, name)] = tensors
                del result, skips
            else:
                place = Slot.of(operation.action, operation.skip)
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
        results: dict[Slot, Tensors],
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
                name: results.pop(Slot(other, is_forward, microbatch, name))
                for name, other in found
            }
            tensors = results.pop(Slot.needed_by(action))
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
