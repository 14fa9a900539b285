"""An update in mixed precision that does not wait for the other ranks.

It takes for granted what is true in most steps: the gradients of all ranks are finite,
and their norm is below all thresholds. The decision of all ranks comes later. If it is
another one, the update is taken back, and made by this decision.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from operator import attrgetter

import chainer

from divisible.communication.parameter_sums import Reduced
from divisible.optimizer_hooks import Hooks, is_clipping
from divisible.unconfirmed_update import Confirmation, UnconfirmedUpdate
from mixed_precision.agreement import Agreement
from mixed_precision.flat import FlatBuffers
from mixed_precision.loss_scale import LossScale
from mixed_precision.step import Step


def update_ahead(
    step: Step,
    optimizer: chainer.GradientMethod,
    buffers: FlatBuffers,
    scale: LossScale,
    agreement: Agreement,
    later: Confirmation,
    take: Callable[..., None],
) -> None:
    """Updates parameters, and begins to reduce what all ranks decide by.

    A rank with gradients that are not finite does not update: it knows the decision.

    Args:
        step (Step): Step of the present gradients.
        optimizer (chainer.GradientMethod): The optimizer in mixed precision.
        buffers (FlatBuffers): Buffers of its parameters.
        scale (LossScale): The loss scale of the gradients.
        agreement (Agreement): The ranks that decide.
        later (Confirmation): Takes over the update until the decision has come.
        take: Takes the decision. With ``is_made=True``, this update is the right one;
            else it has been taken back, and the step is taken or skipped again.
    """
    sums, place = step.sum_squares(), (optimizer.t, float(scale))
    reduction = agreement.begin(sums, *place)
    later.copies.take([optimizer], False, buffers.flat_masters(), [scale])
    are_finite = not agreement.overflown(sums).size
    if are_finite:
        step.take(0.0)
    scale.stepped()
    # Thresholds may change before the decision.
    clippings = [copy.copy(h) for h in Hooks.of(optimizer).before if is_clipping(h)]

    def is_right(reduced: Reduced) -> bool:
        decision = agreement.decision(reduced, *place)
        is_made = decision.changes_nothing(clippings)
        if is_made:
            take(decision, is_made=True)
        return is_made

    def again(reduced: Reduced) -> None:
        take(agreement.decision(reduced, *place))

    update = UnconfirmedUpdate(reduction, is_right, again, float(scale), not are_finite)
    later.begin(update)


def decided(path: str) -> property:
    """Returns a property that waits until the last update is decided.

    Args:
        path (str): The attribute that it reads and sets, with dots.
    """
    *owner, name = path.split(".")
    read = attrgetter(path)
    own = attrgetter(*owner) if owner else lambda self: self
    return property(
        lambda self: self._finish() or read(self),
        lambda self, value: setattr(own(self), name, value),
    )
