"""Softmax, its logarithm, and its cross entropy."""

from __future__ import annotations

from typing import Any, NamedTuple

import chainer
import numpy as np
from chainer.functions.loss import softmax_cross_entropy

from chainer_kernels import threads
from chainer_kernels.half_precision import (
    are_singles_or_halves,
    in_float32,
    rounded,
)
from chainer_kernels.layouts import are_float32, around, empty_like, is_channels_last
from chainer_kernels.loops import normalization
from chainer_kernels.loops import softmax as loops

Arrays = tuple[np.ndarray, ...]


def softmax(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``Softmax.forward``."""
    dtype, inputs = inputs[0].dtype, in_float32(inputs)
    if not _are_covered(*inputs):
        return NotImplemented
    function.retain_outputs((0,))
    return (rounded(_Softmax.of(inputs[0], function.axis).y, dtype),)


def softmax_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``_SoftmaxGrad.forward``."""
    dtype, inputs = inputs[0].dtype, in_float32(inputs)
    if not _are_covered(*inputs):
        return NotImplemented
    function.retain_inputs((0, 1))
    y, gy = inputs
    gx = empty_like(y)
    views = around([y, gy, gx], [function.axis % y.ndim])
    before, n_classes, behind = views[0].shape
    if behind == 1:
        rows = [a.reshape(before, n_classes) for a in views]
        threads.run_slices(loops.softmax_grad_rows, rows)
    else:
        scratch = np.empty((before, behind), "f")
        threads.run_slices(loops.softmax_grad_slices, [*views, scratch])
    return (rounded(gx, dtype),)


def log_softmax(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``LogSoftmax.forward``."""
    dtype, inputs = inputs[0].dtype, in_float32(inputs)
    if not _are_covered(*inputs):
        return NotImplemented
    (x,) = inputs
    found = _Softmax.of(x, function.axis)
    np.subtract(found.x_view, found.log_sums()[:, None], out=found.y_view)
    function._x_xp, function._x_shape, function._x_dtype = np, x.shape, dtype
    function.retain_outputs((0,))
    return (rounded(found.y, dtype),)


def log_softmax_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``LogSoftmaxGrad.forward`` along the last axis in memory."""
    dtype, inputs = inputs[0].dtype, in_float32(inputs)
    if not _are_covered(*inputs):
        return NotImplemented
    y, gy = inputs
    gx = empty_like(y)
    views = around([y, gy, gx], [function.axis % y.ndim])
    before, n_classes, behind = views[0].shape
    if behind > 1:
        return NotImplemented
    function.retain_inputs((0, 1))
    rows = [a.reshape(before, n_classes) for a in views]
    threads.run_slices(loops.log_softmax_grad_rows, rows)
    return (rounded(gx, dtype),)


def cross_entropy(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``SoftmaxCrossEntropy.forward_cpu`` of labels."""
    x, t = inputs
    dtype = x.dtype
    (x,) = in_float32([x])
    if not (_are_covered(x) and _are_labels(t, function)):
        return NotImplemented
    function.retain_inputs((0, 1))
    if chainer.is_debug():
        softmax_cross_entropy._check_input_values(x, t, function.ignore_label)
    found = _Softmax.of(_by_label(x), 1)
    labels = _Labels.of(t, function, found.y_view)
    log_p = found.x_view[labels.index] - found.log_sums()
    if function.class_weight is not None:
        log_p *= function.class_weight[labels.classes]
    log_p *= labels.are_valid
    if function.cache_score:
        function.y = rounded(found.y, dtype)
    if function.reduce == "no":
        return (rounded(-log_p.reshape(t.shape), dtype),)
    count = labels.are_valid.sum() if function.normalize else len(x)
    function._coeff = 1.0 / max(count, 1)
    return (rounded(np.array(log_p.sum(dtype="d") * -function._coeff, "f"), dtype),)


def cross_entropy_grad(function: Any, inputs: Arrays) -> Arrays:
    """Stands for ``_SoftmaxCrossEntropyGrad_NoDoubleBackprop.forward_cpu``."""
    x, t, gloss = inputs
    dtype = x.dtype
    x, gloss = in_float32([x, gloss])
    if not (_are_covered(x, gloss) and _are_labels(t, function)):
        return NotImplemented
    if function.soft_target:
        return NotImplemented
    # A float16 near 1 has too few digits left after 1 is subtracted.
    is_precise = function.y is not None and function.y.dtype == x.dtype
    y = _by_label(function.y if is_precise else _Softmax.of(x, 1).y)
    gx = empty_like(y)
    y_view, gx_view = around([y, gx], [1])
    labels = _Labels.of(t, function, y_view)
    if function.coeff is None:
        scales = gloss.reshape(labels.classes.shape) * labels.are_valid
    else:
        scales = labels.are_valid * np.float32(gloss * function.coeff)
    if function.class_weight is not None:
        scales *= function.class_weight[labels.classes]
    _multiply(y_view, scales, gx_view)
    gx_view[labels.index] = (y_view[labels.index] - np.float32(1)) * scales
    return (rounded(gx, dtype),)


class _Softmax(NamedTuple):
    """The softmax of ``x``, and what it was computed from.

    Attributes:
        x_view: The input, viewed as (before, classes, behind).
        y: In the memory order and shape of ``x``.
        y_view: In the same view as ``x``.
        highest: The greatest numbers, (before, behind).
        totals: Sums of the exponentials of the numbers less ``highest``.
    """

    x_view: np.ndarray
    y: np.ndarray
    y_view: np.ndarray
    highest: np.ndarray
    totals: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, axis: int) -> _Softmax:
        """Computes the softmax along an axis."""
        y = empty_like(x)
        x_view, y_view = around([x, y], [axis % x.ndim])
        before, n_classes, behind = x_view.shape
        highest, totals = np.empty((2, before, behind), "f")
        if behind == 1:
            rows = [a.reshape(before, n_classes) for a in (x_view, y_view)]
            rows += highest[:, 0], totals[:, 0]
            threads.run_slices(loops.softmax_rows, rows)
        else:
            slices = [x_view, y_view, highest, totals]
            threads.run_slices(loops.softmax_slices, slices)
        return cls(x_view, y, y_view, highest, totals)

    def log_sums(self) -> np.ndarray:
        """Returns the logarithms of sums of exponentials, (before, behind)."""
        return self.highest + np.log(self.totals)


class _Labels(NamedTuple):
    """Labels of a view (before, classes, behind).

    Attributes:
        classes: Class 0 where a label is ignored, (before, behind).
        are_valid: Whether they are not ignored.
        index: Where the labels' elements of the view are.
    """

    classes: np.ndarray
    are_valid: np.ndarray
    index: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, t: np.ndarray, function: Any, view: np.ndarray) -> _Labels:
        before, _, behind = view.shape
        t = t.reshape(before, behind)
        are_valid = t != function.ignore_label
        classes = t * are_valid
        index = np.arange(before)[:, None], classes, np.arange(behind)
        return cls(classes, are_valid, index)


def _are_covered(*arrays: np.ndarray) -> bool:
    return are_float32(*arrays) and all(a.size for a in arrays)


def _are_labels(t: np.ndarray, function: Any) -> bool:
    weight = function.class_weight
    return (
        type(t) is np.ndarray
        and t.dtype.kind == "i"
        and (weight is None or are_singles_or_halves(weight))
    )


def _by_label(x: np.ndarray) -> np.ndarray:
    """Returns an array whose axes without the classes lie in memory as labels do."""
    return x if is_channels_last(x) else np.ascontiguousarray(x)


def _multiply(y: np.ndarray, scales: np.ndarray, out: np.ndarray) -> None:
    """Multiplies (before, classes, behind) by (before, behind)."""
    before, n_classes, behind = y.shape
    if behind > 1:
        np.multiply(y, scales[:, None], out=out)
        return
    rows = [a.reshape(before, n_classes) for a in (y, out)]
    scales = scales[:, 0]
    none = np.zeros_like(scales)
    threads.run_slices(normalization.scale_rows, [*rows, none, scales, none])
