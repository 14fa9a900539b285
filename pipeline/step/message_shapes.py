"""Shapes of all messages between stages, found before the first minibatch.

Copies of the stages pass a few samples on to each other, forward and backward, as
microbatches of several sizes::

    samples    2, 3 and 5 of the first microbatch's
    stage 0    copy of its layers --> (2, 8), (3, 8), (5, 8) --> stage 1    (n, 8)
    stage 0    <-- gradients      <-- (2, 8), (3, 8), (5, 8) <-- stage 1    (n, 8)

Each end of a channel sees the same messages, and finds the same shapes for any number
of samples (:mod:`divisible.communication.static_shapes`). So no signature travels in
the first step, nor for a smaller last minibatch. Where shapes depend on more than the
number of samples, or a layer fails here, signatures travel as they change.

The copies share the weights with the layers, and nothing else. So the pass leaves no
trace in running averages, random numbers, gradients and attributes of layers. There is
no pass where functions or hooks might change something else
(:mod:`divisible.effects`).
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import chainer

from chainer_kernels.text_table import text_table
from divisible.communication.collectives import all_gather
from divisible.communication.errors import DisagreementError, StallError
from divisible.communication.signatures import Tensor, Tensors
from divisible.effects import effect_of
from divisible.layer_texts import title
from divisible.random_streams import restored_random_state
from divisible.schedules.rank_program import Channel
from divisible.schedules.schedule import Schedule
from pipeline.calls.ranks import Ranks
from pipeline.stages.loss import Loss
from pipeline.stages.stage import Stage
from pipeline.stages.stage_skips import StageSkips
from pipeline.start.agreement import Start
from pipeline.step.runner import RECEIVES_AHEAD, Runner

#: Numbers of samples of the microbatches that are passed on.
SIZES = (2, 3, 5)


class ChannelShapes(NamedTuple):
    """The shapes of the messages of one channel.

    Attributes:
        title: The channel: ``'activations of stage 0'``.
        shapes: Shapes and dtypes for ``n`` samples: ``'(n, 8) float32'``; empty if they
            are not static.
        reason: The reason why shapes are not static; empty if they are.
    """

    title: str
    shapes: str
    reason: str = ""


class MessageShapes(tuple):
    """The shapes of the messages of all channels; ``str()`` returns a table.

    Example:
        >>> print(MessageShapes([ChannelShapes("activations of stage 0", "(n, 8) f4")]))
        messages                shapes
        activations of stage 0  (n, 8) f4
    """

    @property
    def varying(self) -> tuple[ChannelShapes, ...]:
        """The channels whose shapes are not static."""
        return tuple(each for each in self if each.reason)

    def __str__(self) -> str:
        rows = [
            [each.title, f"not static: {each.reason}" if each.reason else each.shapes]
            for each in self
        ]
        return text_table([["messages", "shapes"], *rows], left=(0, 1))


def find_message_shapes(
    start: Start,
    ranks: Ranks,
    runner: Runner,
    stages: Mapping[int, Stage],
    inputs: Sequence[Tensors],
    schedule: Schedule,
) -> MessageShapes:
    """Finds the shapes of messages, and makes ranks expect them; all ranks call it.

    The call of the step must have been compared.

    Args:
        start (Start): Arguments of all ranks.
        ranks (Ranks): All ranks of the pipeline.
        runner (Runner): Runner of this rank's stages.
        stages: The stages, by number.
        inputs: Microbatches of the first minibatch, on the rank of the first stage.
        schedule (Schedule): Schedule of the first minibatch.

    Raises:
        StallError: If another rank does not answer in time.
    """
    if ranks.size == 1:
        return MessageShapes()
    n_samples = ranks.calls.agreed.n_samples[ranks.replica]
    reason, failures = _obstacle(start, ranks, n_samples), {}
    if not reason:
        reason = _effect_of_any(start, ranks, stages)
    if not reason:
        failures = _pass_on(start, ranks, runner, stages, inputs)
    # Messages of an earlier evaluation are no messages of those sizes.
    mine = runner.find_shapes(() if reason else SIZES), failures
    said = all_gather(ranks.comm, mine, ranks.timeout, "to tell shapes of messages")
    found: dict[Channel, tuple[str, str]] = {}
    for channels, failed in said:
        found.update(channels)
        failures = {**failures, **failed}
    if failures:
        reason = failures[min(failures)]
    n_microbatches = schedule.n_microbatches
    runner.expect(n_microbatches, -(-n_samples // n_microbatches))
    if start.arguments.transport == "rma":
        held = max(schedule.validate().stage_in_flight) + RECEIVES_AHEAD
        runner.make_room(min(n_microbatches, held), ranks.world)
    return MessageShapes(
        ChannelShapes(_title(channel), shapes, why and (reason or why))
        for channel, (shapes, why) in sorted(found.items())
    )


def _obstacle(start: Start, ranks: Ranks, n_samples: int) -> str:
    """Returns the reason why no samples are passed on; empty if there is none."""
    obstacles = {
        "there are no samples": not n_samples,
        f"transport={start.arguments.transport!r} describes each message": (
            start.arguments.transport == "chainermn"
        ),
        "weights are on disk": bool(start.streamed),
        "layers carry states": bool(ranks.calls.carriers),
    }
    return next((text for text, is_there in obstacles.items() if is_there), "")


def _effect_of_any(start: Start, ranks: Ranks, stages: Mapping[int, Stage]) -> str:
    """Returns the effect that a trial call would have on some rank, if there is one."""
    layers = [layer for stage in stages.values() for layer in stage.layers]
    mine = effect_of([*layers, start.arguments.lossfun])
    what = "to tell effects of layers"
    found = all_gather(ranks.comm, mine, ranks.timeout, what)
    return next(filter(None, found), "")


def _pass_on(
    start: Start,
    ranks: Ranks,
    runner: Runner,
    stages: Mapping[int, Stage],
    inputs: Sequence[Tensors],
) -> dict[int, str]:
    """Runs copies of the stages on a few samples.

    Returns:
        The reasons why stages failed, by the number of the stage.
    """
    copies = _copies(start, stages)
    samples = [()] * len(SIZES)
    if ranks.rank == ranks.first:
        samples = [
            tuple(Tensor(array) for array in part)
            for part in _few([array for array, *_ in inputs[0]])
        ]
    for stage in copies.values():
        stage.begin(0, len(SIZES))
    program = runner.program(_one_by_one(start.stage_ranks))
    drawn = random.getstate()
    with restored_random_state(start.arguments.stages[0].device):
        runner.of_copies(copies).run(program, samples)
    random.setstate(drawn)
    failures = {number: it.failure for number, it in copies.items() if it.failure}
    for stage in copies.values():
        # Parts of a stage refer to each other, and would stay for a while. Kernels keep
        # prepared weights only if nothing else refers to the weights.
        vars(stage).clear()
    return failures


def _few(arrays: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Returns some samples of arrays, copied, in parts of `SIZES`."""
    parts, begin = [], 0
    for size in SIZES:
        places = range(begin, begin + size)
        parts.append(tuple(array[[i % len(array) for i in places]] for array in arrays))
        begin += size
    return parts


def _one_by_one(stage_ranks: Sequence[int]) -> Schedule:
    """Returns a schedule in which a microbatch ends before the next one begins."""
    actions: list[list[str]] = [[] for _ in range(max(stage_ranks) + 1)]
    for microbatch in range(len(SIZES)):
        for stage, rank in enumerate(stage_ranks):
            actions[rank].append(f"{stage}F{microbatch}")
        for stage, rank in reversed([*enumerate(stage_ranks)]):
            actions[rank].append(f"{stage}B{microbatch}")
    return Schedule(actions, stage_ranks, len(SIZES), "shapes of messages")


def _copies(start: Start, stages: Mapping[int, Stage]) -> dict[int, _StageOnTrial]:
    """Returns copies of this rank's stages, which share nothing but the weights."""
    last = len(start.stage_ranks) - 1
    given = start.arguments
    # Objects that copies share or lack, by the identity of the object.
    memo: dict[int, Any] = {}
    parts = {number: stage.layers for number, stage in stages.items()}
    for link in (*parts.values(), *start.loss.links.values()):
        _share_weights(link, memo)
    copies = {}
    for number, layers in parts.items():
        loss, failure = None, ""
        try:
            copied = copy.deepcopy(layers, memo)
            if number == last:
                loss = Loss(copy.deepcopy(given.lossfun, memo), None)
                loss.start(_few_targets(start.loss), layers.device)
        except Exception as error:
            copied, loss = layers, None
            failure = f"a copy of stage {number} failed with {_shown(error)}"
        skips, runs = StageSkips.on(number, start.named_routes), given.recomputed
        copies[number] = _StageOnTrial(
            copied, loss, given.seed, False, recomputed=runs, skips=skips
        )
        copies[number].failure = failure
    return copies


def _share_weights(link: chainer.Link, memo: dict[int, Any]) -> None:
    """Makes copies of a link share its weights, and be without states of optimizers."""
    for param in link.params():
        arrays = [param.initializer]
        if param.is_initialized:
            arrays += param.array, param.grad
        for array in arrays:
            if isinstance(array, chainer.get_array_types()):
                memo[id(array)] = array
        if param.update_rule is not None:
            memo[id(param.update_rule)] = None
    for each in link.links():
        for hook in (each._local_link_hooks or {}).values():
            memo[id(hook)] = hook
        if (fusion := vars(each).get("_fusion")) is not None:
            memo[id(fusion)] = None


def _few_targets(loss: Loss) -> list[tuple[Any, ...]]:
    targets = loss.first_targets(sum(SIZES))
    return _few(targets) if targets else [()] * len(SIZES)


class _StageOnTrial(Stage):
    """A copy of a stage, whose errors end no run.

    A microbatch whose forward fails goes on as one without samples.

    Attributes:
        failure (str): The reason why a pass failed; empty if none has.
    """

    failure = ""

    def begin(self, *args: Any, **others: Any) -> None:
        """Begins a minibatch, without a search for undeclared states."""
        super().begin(*args, **others)
        self._is_first = False

    def forward(
        self,
        microbatch: int,
        inputs: Tensors,
        skipped: Mapping[str, Tensors],
        is_recomputed: bool = False,
    ) -> tuple[Tensors, dict[str, Tensors]]:
        """Runs the layers on one microbatch (F)."""
        if not self.failure:
            try:
                return super().forward(microbatch, inputs, skipped, is_recomputed)
            except (DisagreementError, StallError):
                raise
            except Exception as error:
                self._fail(error)
        return (), dict.fromkeys(self._skips.leaving, ())

    def backward(
        self,
        microbatch: int,
        gradients: Tensors,
        skip_gradients: Mapping[str, Tensors],
        split: bool = False,
        n_microbatches: int = 1,
    ) -> tuple[Tensors, dict[str, Tensors]]:
        """Computes the gradients of the inputs of one microbatch (B).

        Gradients of weights are left out: messages do not depend on them.
        """
        if not self.failure:
            try:
                found = super().backward(microbatch, gradients, skip_gradients, True)
                # Weight gradients would need what the segments hold now.
                for segment in self._segments:
                    segment.begin()
                return found
            except (DisagreementError, StallError):
                raise
            except Exception as error:
                self._fail(error)
        return (), dict.fromkeys(self._skips.entering, ())

    def _fail(self, error: Exception) -> None:
        start, end = self.layers.layer_range
        position = getattr(error, "layer_position", None)
        where = "lossfun" if end == len(self.layers.model_layers) else "a stage"
        if position is not None and start <= position < end:
            name = title(self.layers.model_layers[position])
            where = f"layer {position}, {name},"
        self.failure = f"{where} failed on a few samples with {_shown(error)}"


def _shown(error: Exception) -> str:
    """Returns the type and the first line of an error."""
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _title(channel: Channel) -> str:
    what = "activations" if channel.is_forward else "gradients"
    skip = f", skip connection {channel.skip!r}" if channel.skip else ""
    return f"{what} of stage {channel.stage}{skip}"
