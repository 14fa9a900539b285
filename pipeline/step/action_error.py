"""The error of an action, with its place in the pipeline."""

from __future__ import annotations

from divisible.layer_texts import title
from divisible.schedules.actions import Action
from pipeline.stages.stage import Stage

# Marks errors that have no position, because no layer or loss raised them.
_NOWHERE = object()
_WORDS = {
    "F": "forward",
    "B": "backward",
    "I": "input gradients",
    "W": "weights",
    "R": "recomputed forward",
}


class ActionError(RuntimeError):
    """An action failed; the message has the place, ``__cause__`` the error."""

    @classmethod
    def of(
        cls, action: Action, stage: Stage, error: Exception, where: str
    ) -> ActionError:
        """Returns the error of an action.

        Args:
            action (Action): The action.
            stage (Stage): Its stage.
            error (Exception): The error of a layer, or of the rank.
            where (str): Name of the rank.
        """
        layers, loss = stage.layers, stage.loss
        start, end = layers.layer_range
        # Errors of disks and of other ranks have no position.
        position = getattr(error, "layer_position", _NOWHERE)
        layer = ""
        if position is None and loss is not None and loss.is_wanted:
            layer = ", after the last layer, in lossfun or accfun"
        elif position not in (None, _NOWHERE):
            layer = f", in layer {position}, {title(layers.model_layers[position])}"
        each = action.microbatches
        which = (
            f"microbatch {each[0]}"
            if len(each) == 1
            else f"microbatches {each[0]} to {each[-1]}"
        )
        return cls(
            f"{action} failed on {where} ({_WORDS[action.kind]} of {which},"
            f" stage {action.stage} with the layers {start} to"
            f" {end - 1}){layer}: {type(error).__name__}: {error}"
        )
