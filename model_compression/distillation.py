"""A loss by which a small model learns from targets and from a large model's scores.

::

    x --- model, which becomes smaller --- y ------ cross entropy --- t
                                           |
                                      divergence
                                           |
    x --- teacher, as it was trained --- scores
"""

from __future__ import annotations

import math
from typing import Any

import chainer
import chainer.functions as F


class Distillation:
    """The loss of a classifier with targets and a teacher.

    With the scores ``y`` of the model and ``s`` of the teacher, and the temperature
    ``T``, the loss is the mean over the labels of::

        (1 - weight) * cross_entropy(t, softmax(y))
            + weight * T**2 * KL(softmax(s / T) || softmax(y / T))

    A teacher's scores contain more about a sample than its label does, which helps most
    where a model has few weights or few samples. The teacher is usually the dense model
    that is made smaller, in ``chainer.using_config('train', False)``.

    Use it as the ``lossfun`` of a :class:`~pipeline.Pipeline`, whose targets are then
    the labels and the teacher's scores, and :meth:`accuracy` as its ``accfun``; or use
    it in a serial script. Without a teacher's scores, for instance in an evaluator that
    has none, the loss is the cross entropy.

    Args:
        weight (float): Weight of the teacher in the loss, from 0 to 1.
        temperature (float): Temperature ``T``; above 1 the teacher's small
            probabilities count more.
        ignore_label (int): Label of elements to leave out.

    Raises:
        ValueError: If ``weight`` or ``temperature`` is out of range.

    Example:
        >>> import numpy as np
        >>> from model_compression import Distillation
        >>> lossfun = Distillation(weight=0.5)
        >>> y = np.log(np.array([[0.5, 0.5], [0.9, 0.1]], np.float32))
        >>> t, scores = np.array([0, -1], np.int32), y[::-1].copy()
        >>> loss, n_labels = lossfun(y, t, scores)
        >>> round(float(loss.array), 3), n_labels
        (0.531, 1)

    See equation (1) and section 2 of Hinton, Vinyals and Dean, Distilling the Knowledge
    in a Neural Network (2015).
    """

    def __init__(
        self,
        *,
        weight: float = 0.5,
        temperature: float = 1.0,
        ignore_label: int = -1,
    ) -> None:
        if not 0 <= weight <= 1:
            raise ValueError(f"weight must be from 0 to 1, not {weight!r}")
        if not 0 < temperature < math.inf:
            raise ValueError(
                f"temperature must be a number above 0, not {temperature!r}"
            )
        self.weight, self.temperature = float(weight), float(temperature)
        self.ignore_label = ignore_label

    def __call__(
        self, y: Any, t: Any, scores: Any = None
    ) -> tuple[chainer.Variable, int]:
        """Returns the loss, and the number of labels of which it is the mean.

        Args:
            y (variable or array): Scores of the model, floats of the shape (samples,
                classes, ...).
            t (array): Labels, integers of the shape (samples, ...).
            scores (array): Scores of the teacher, of the shape of ``y``; ``None`` for
                none.

        Raises:
            ValueError: If the teacher's scores have another shape than the model's.
        """
        y, t = chainer.as_variable(y), chainer.as_array(t)
        hard = F.softmax_cross_entropy(y, t, ignore_label=self.ignore_label)
        counts = t != self.ignore_label
        n_labels = int(counts.sum())
        if scores is None:
            return hard, n_labels
        scores = chainer.as_array(scores)
        if scores.shape != y.shape:
            raise ValueError(
                f"the teacher's scores have the shape {scores.shape}, but those of the"
                f" model {y.shape}: the targets of a Distillation are (t, scores), of"
                f" the same samples"
            )
        with chainer.no_backprop_mode():
            said = F.log_softmax(scores.astype(y.dtype) / self.temperature).array
        xp = chainer.backend.get_array_module(said)
        # Ignored labels count nothing. A class without a share counts nothing either,
        # for any score of the model: the teacher and the model may both mask it by a
        # score of minus infinity.
        shares = xp.where(xp.expand_dims(counts, 1), xp.exp(said), 0)
        is_in = shares != 0
        apart = xp.where(is_in, said, 0) - F.log_softmax(y / self.temperature)
        apart = F.where(is_in, apart, xp.zeros_like(shares))
        soft = F.sum(shares * apart) * (self.temperature**2 / max(n_labels, 1))
        return (1 - self.weight) * hard + self.weight * soft, n_labels

    def accuracy(
        self, y: Any, t: Any, scores: Any = None
    ) -> tuple[chainer.Variable, int]:
        """Returns the model's accuracy, and the number of labels that it is taken over.

        Args:
            y (variable or array): Scores of the model, floats of the shape (samples,
                classes, ...).
            t (array): Labels, integers of the shape (samples, ...).
            scores (array): Not used; an argument so that targets can be the same as
                those of the loss.
        """
        found = F.accuracy(y, t, ignore_label=self.ignore_label)
        return found, int((chainer.as_array(t) != self.ignore_label).sum())
