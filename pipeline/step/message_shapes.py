"""Shapes of all messages between stages, found before the first minibatch.

Copies of the stages pass a few samples on to each other, forward and backward, as
microbatches of several sizes::

    samples    2, 3 and 5 of the first microbatch's
    stage 0    copy of its layers --> (2, 8), (3, 8), (5, 8) --> stage 1    (n, 8)
    stage 0    <-- gradients      <-- (2, 8), (3, 8), (5, 8) <-- stage 1    (n, 8)

Each end of a channel sees the same messages, and finds the same shapes for any number
of samples (:mod:`divisible.communication.static_shapes`). Messages of these samples
have signatures. Those of the first minibatch have none, nor have those of a smaller
last one. Where shapes depend on more than the number of samples, or a layer fails here,
signatures travel as they change.

The copies share the weights with the layers, and nothing else. So the pass leaves no
trace in running averages, random numbers, gradients and attributes of layers. There is
no pass where functions or hooks might change something else
(:mod:`divisible.effects`), or where microbatches of few large samples take less memory
than the pass. One-sided messages need the pass nevertheless.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from chainer_kernels.text_table import text_table
from divisible.communication.collectives import all_gather
from divisible.communication.signatures import Tensor, Tensors
from divisible.effects import effect_of
from divisible.random_streams import restored_random_state
from divisible.schedules.rank_program import RECEIVES_AHEAD, Channel
from divisible.schedules.schedule import Schedule
from pipeline.calls.ranks import Ranks
from pipeline.stages.stage import Stage
from pipeline.start.agreement import Start
from pipeline.step.runner import Runner
from pipeline.step.trial_stages import SIZES, few_samples, stages_on_trial

#: Bytes of a sample up to which a trial may have more samples than a microbatch.
_SMALL = 1 << 12


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
        n = n_samples // schedule.n_microbatches
        # One-sided messages need the shapes for their windows, whatever it takes.
        spares = start.arguments.transport != "rma" and ranks.rank == ranks.first
        effect = _excess(n, inputs) if spares else ""
        reason = _effect_of_any(start, ranks, stages, effect)
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


def _excess(n_samples: int, inputs: Sequence[Tensors]) -> str:
    """Returns why a trial would need more memory than microbatches; else an empty text.

    Args:
        n_samples: Number of samples of the smallest microbatch.
        inputs: Microbatches of the first minibatch.
    """
    n_bytes = sum(array[:1].nbytes for array, *_ in inputs[0])
    if n_samples >= max(SIZES) or n_bytes <= _SMALL:
        return ""
    return f"microbatches have fewer than the {max(SIZES)} samples of a trial"


def _effect_of_any(
    start: Start, ranks: Ranks, stages: Mapping[int, Stage], effect: str
) -> str:
    """Returns the effect that a trial would have on some rank, if there is one.

    Args:
        start: Arguments of all ranks.
        ranks: All ranks of the pipeline.
        stages: Stages of this rank.
        effect: An effect that this rank knows of; empty if there is none.
    """
    layers = [layer for stage in stages.values() for layer in stage.layers]
    mine = effect or effect_of([*layers, start.arguments.lossfun])
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
    copies = stages_on_trial(start, stages)
    samples = [()] * len(SIZES)
    if ranks.rank == ranks.first:
        samples = [
            tuple(Tensor(array) for array in part)
            for part in few_samples([array for array, *_ in inputs[0]])
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


def _one_by_one(stage_ranks: Sequence[int]) -> Schedule:
    """Returns a schedule in which a microbatch ends before the next one begins."""
    actions: list[list[str]] = [[] for _ in range(max(stage_ranks) + 1)]
    for microbatch in range(len(SIZES)):
        for stage, rank in enumerate(stage_ranks):
            actions[rank].append(f"{stage}F{microbatch}")
        for stage, rank in reversed([*enumerate(stage_ranks)]):
            actions[rank].append(f"{stage}B{microbatch}")
    return Schedule(actions, stage_ranks, len(SIZES), "shapes of messages")


def _title(channel: Channel) -> str:
    what = "activations" if channel.is_forward else "gradients"
    skip = f", skip connection {channel.skip!r}" if channel.skip else ""
    return f"{what} of stage {channel.stage}{skip}"
