"""Losses of composed models, and what is computed of them by the undivided model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import chainer.functions as F
import numpy as np


class Measure(NamedTuple):
    """A loss and an accuracy.

    Attributes:
        lossfun: Function of the loss, for a pipeline.
        accfun: Function of the accuracy; ``None`` for none.
        n_counted: Returns how many samples the loss is a mean over.
        has_targets: Whether the loss reads targets.
        ignores: Whether some labels are left out.
    """

    lossfun: Callable[..., Any]
    accfun: Callable[..., Any] | None
    n_counted: Callable[[Any], int]
    has_targets: bool = True
    ignores: bool = False


def counted_loss(y: Any, t: Any) -> tuple[Any, int]:
    """The sum over positions of a sample, and the mean over samples with a label."""
    losses = F.softmax_cross_entropy(y, t, reduce="no", ignore_label=-1)
    n = _n_labelled(t)
    return F.sum(losses) / max(n, 1), n


def of_outputs(y: Any) -> Any:
    """A loss without targets. Its gradient is bounded, so that training converges."""
    return F.mean(F.sqrt(1 + F.square(y - 0.5)))


def of_two(y: Any, z: Any, t: Any) -> Any:
    """The loss of a model with two outputs."""
    return F.softmax_cross_entropy(y, t) + 0.1 * F.mean(F.square(z))


def accuracy_of_two(y: Any, z: Any, t: Any) -> Any:
    return F.accuracy(y, t)


def with_auxiliary(y: Any, a: Any, t: Any) -> Any:
    """The loss of a model whose inner layer gives another term."""
    return F.softmax_cross_entropy(y, t) + 0.5 * F.mean(a)


def with_two_auxiliaries(y: Any, a: Any, b: Any, t: Any) -> Any:
    return F.softmax_cross_entropy(y, t) + 0.5 * F.mean(a) + F.mean(F.square(b))


def accuracy_of_three(y: Any, a: Any, b: Any, t: Any) -> Any:
    return F.accuracy(y, t)


def _n_labelled(t: Any) -> int:
    rows = (np.asarray(t) != -1).reshape(len(t), -1)
    return int(rows.any(axis=1).sum())


def _n_labels(t: Any) -> int:
    return int((t != -1).sum())


LOSSES = {
    "cross entropy": Measure(F.softmax_cross_entropy, F.accuracy, lambda t: t.size),
    "ignored labels": Measure(
        F.softmax_cross_entropy, F.accuracy, _n_labels, ignores=True
    ),
    "counted": Measure(counted_loss, None, _n_labelled, ignores=True),
    "outputs alone": Measure(of_outputs, None, len, has_targets=False),
    "two outputs": Measure(of_two, accuracy_of_two, len),
    "auxiliary": Measure(with_auxiliary, accuracy_of_two, len),
    "two auxiliaries": Measure(with_two_auxiliaries, accuracy_of_three, len),
}
#: Losses that are drawn for models with one output of the last layer alone.
OF_ONE_OUTPUT = ("cross entropy", "ignored labels", "counted", "outputs alone")
#: Losses of models with as many auxiliary outputs.
OF_AUXILIARIES = ("cross entropy", "auxiliary", "two auxiliaries")
