"""Copies of stages, which compute a few samples and leave no trace.

The copies share the weights with the stages, and nothing else. Layers that have hooks,
or name something that may change, are not copied (:mod:`divisible.effects`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import chainer

from divisible.communication.errors import DisagreementError, StallError
from divisible.communication.signatures import Tensors
from divisible.layer_texts import title
from pipeline.stages.loss import Loss
from pipeline.stages.stage import Stage
from pipeline.stages.stage_skips import StageSkips
from pipeline.start.agreement import Start

#: Numbers of samples of the microbatches that the copies compute.
SIZES = (2, 3, 5)


def few_samples(arrays: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Returns some samples of arrays, copied, in parts of `SIZES`."""
    parts, begin = [], 0
    for size in SIZES:
        places = range(begin, begin + size)
        parts.append(tuple(array[[i % len(array) for i in places]] for array in arrays))
        begin += size
    return parts


def stages_on_trial(
    start: Start, stages: Mapping[int, Stage]
) -> dict[int, StageOnTrial]:
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
        copies[number] = StageOnTrial(
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
        if (fusion := vars(each).get("_fusion")) is not None:
            memo[id(fusion)] = None


def _few_targets(loss: Loss) -> list[tuple[Any, ...]]:
    targets = loss.first_targets(sum(SIZES))
    return few_samples(targets) if targets else [()] * len(SIZES)


class StageOnTrial(Stage):
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
