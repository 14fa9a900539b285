"""A loss by which a small model learns from targets and from what a large one says.

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
    """The loss of a classifier that has targets and a teacher.

    With the scores ``y`` of the model and ``s`` of the teacher, and the temperature
    ``T``, it is the mean over the labels of::

        (1 - weight) * cross_entropy(t, softmax(y))
            + weight * T**2 * KL(softmax(s / T) || softmax(y / T))

    A teacher says more of a sample than its label does, which helps most where a model
    has few weights or few samples. The teacher is usually the dense model that is made
    smaller, in ``chainer.using_config('train', False)``.

    Used as the ``lossfun`` of a :class:`~pipeline.Pipeline`, whose targets are then the
    labels and the teacher's scores, and :meth:`accuracy` as its ``accfun``; or in a
    serial script. Without a teacher's scores, as where an evaluator knows none, it is
    the cross entropy.

    Args:
        weight (float): How much the teacher counts, from 0 to 1.
        temperature (float): Above 1 the teacher's small probabilities count more.
        ignore_label (int): The label of what is to be left out.

    Raises:
        ValueError: If one of the first two is out of range.

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
        self, weight: float = 0.5, temperature: float = 1.0, ignore_label: int = -1
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
        """Returns the loss, and of how many labels it is a mean.

        Args:
            y (variable or array): The model's scores, floats of the shape (samples,
                classes, ...).
            t (array): Labels, integers of the shape (samples, ...).
            scores (array): The teacher's, of the shape of ``y``; ``None`` for none.

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
        # What is left out counts nothing, and so does a class that the teacher masks
        # by a score of minus infinity, whatever the model says of it.
        is_out = ~xp.expand_dims(counts, 1) | (said == -math.inf)
        shares = xp.where(is_out, 0, xp.exp(said))
        apart = xp.where(is_out, 0, said) - F.log_softmax(y / self.temperature)
        soft = F.sum(shares * apart) * (self.temperature**2 / max(n_labels, 1))
        return (1 - self.weight) * hard + self.weight * soft, n_labels

    def accuracy(
        self, y: Any, t: Any, scores: Any = None
    ) -> tuple[chainer.Variable, int]:
        """Returns the model's accuracy, and of how many labels it is.

        Args:
            y (variable or array): As of the loss.
            t (array): Likewise.
            scores (array): Not looked at.
        """
        found = F.accuracy(y, t, ignore_label=self.ignore_label)
        return found, int((chainer.as_array(t) != self.ignore_label).sum())
