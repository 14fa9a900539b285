"""Measures the costs of a model's layers.

Each layer runs by itself, backward by the code that the pipeline runs::

    for each layer       a copy of it alone; the model keeps its parameters
      F, I, W once       parameters made at the first call; what is held after F and I
      F, I, W repeatedly the median of their seconds
      F, I, W once more  under a memory tracer: what they allocate in passing

so memory never holds more than the model as it is given, and one layer with its
activations.
"""

from __future__ import annotations

import os
import platform
from typing import Any, Callable

import chainer
import chainer.functions as F
import numpy as np

from divisible.communication.signatures import Tensor
from divisible.dtypes import as_trainable, floating_dtypes
from divisible.minibatch import as_arrays
from divisible.model import Divisible
from divisible.planning.coding import measure_coding
from divisible.planning.layer_meter import LayerMeter
from divisible.planning.optimizer_state import check_optimizer
from divisible.planning.profile import Profile
from divisible.random_streams import restored_random_state
from divisible.user_warnings import warn_user

# Ratio of the layers' mean seconds to their medians that causes a warning, and the
# least difference in seconds: that of an interrupt or two.
_DISTURBED, _NOISE = 1.3, 3e-3
# Number of timings needed to estimate their scatter.
_SEVERAL = 3


def profile(
    model: Divisible,
    x: Any,
    t: Any = None,
    lossfun: Callable | None = None,
    *,
    optimizer: chainer.GradientMethod | None = None,
    repeat: int = 5,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Measures the costs of each layer of a model.

    Give a microbatch of the size in use. The model is not changed: neither parameters,
    gradients and running averages, nor the random state of NumPy. Its layers are copied
    one by one, and parameters that are made at the first call are made in the copy. So
    a model whose parameters are not made yet takes no more memory than its largest
    layer.

    A :class:`RuntimeWarning` is given if the machine was disturbed, or stopped the
    process at times because its CPU time has a quota: medians then show its speed in
    between. The profile's ``scatter`` is how far timings lie from their medians. Both
    need at least three repeats.

    For layers that were appended with ``recompute=True``, the second forward counts as
    a part of I. The arrays held during it, of all neighbouring such layers, count as
    workspace.

    Args:
        model (Divisible): The undivided model.
        x (array or tuple of arrays): Input of the model, samples along the first axis,
            in the form for :class:`~pipeline.Pipeline`.
        t (array or tuple of arrays): Targets; without them, and without ``lossfun``,
            there is no loss.
        lossfun: Loss function ``lossfun(*outputs, *targets)``, which returns a scalar
            variable; softmax cross entropy by default.
        optimizer (chainer.GradientMethod): The optimizer in use, whose state counts as
            memory; without it there is none. A :class:`~mixed_precision.MixedPrecision`
            counts with its master weights, and with unscaled gradients if its update
            rule or hooks need them.
        repeat (int): Number of measurements of each layer, after a first run; the
            medians count.
        progress: Function that is called with the number of layers measured and the
            number of all.

    Returns:
        Profile: The costs; printed, a table.

    Raises:
        TypeError: If ``model`` is not a ``Divisible``, ``x`` or ``t`` are not arrays,
            ``x`` has another floating-point type than the parameters, or ``optimizer``
            is not an optimizer.
        ValueError: If ``repeat`` is less than 1, ``x`` and ``t`` have different numbers
            of samples, or ``model`` is a stage that does not begin with the first
            layer.
        Exception: Any error of a layer, with its position as ``layer_position``.

    Example:
        >>> import chainer.links as L
        >>> model = Divisible(L.Linear(50, 20), F.relu, L.Linear(20, 10))
        >>> x, t = np.ones((8, 50), np.float32), np.zeros(8, np.int32)
        >>> costs = profile(model, x, t)
        >>> costs.layers[0].output_bytes == 8 * 20 * 4
        True
        >>> costs.layers[2].parameter_bytes == (20 * 10 + 10) * 4
        True
    """
    if not isinstance(model, Divisible):
        raise TypeError(f"model must be a Divisible, not {type(model).__name__}")
    check_optimizer(optimizer)
    if repeat < 1:
        raise ValueError(f"repeat must be 1 at least, not {repeat}")
    if model.layer_range != (0, len(model.model_layers)):
        raise ValueError(
            f"the layers {model.layer_range} are a part of a model: profile the whole,"
            f" it is measured layer by layer"
        )
    arrays, targets = _as_arrays(model, x, t)
    device = model.device
    inputs = tuple(Tensor(device.send(array)) for array in arrays)
    meter = LayerMeter(model, inputs, optimizer, repeat)
    loss = None
    with (
        restored_random_state(device),
        chainer.using_device(device),
        chainer.using_config("train", True),
        chainer.force_backprop_mode(),
    ):
        for position in range(len(model)):
            try:
                meter.measure(position)
            except Exception as error:
                error.layer_position = position
                raise
            if progress is not None:
                progress(position + 1, len(model))
        _warn_if_disturbed(meter.mean_seconds, meter.seconds)
        if targets is not None or lossfun is not None:
            lossfun = F.softmax_cross_entropy if lossfun is None else lossfun
            loss = meter.measure_loss(lossfun, targets or ())
    return Profile(
        meter.costs(),
        n_samples=len(arrays[0]),
        input_bytes=sum(array.nbytes for array in arrays),
        loss=loss,
        machine=_machine(device),
        coding=measure_coding(),
        scatter=None if repeat < _SEVERAL else meter.scatter_seconds / meter.seconds,
    )


def _as_arrays(model: Divisible, x: Any, t: Any) -> tuple[tuple, tuple | None]:
    """Returns inputs and targets in the form that a pipeline uses.

    A pipeline casts inputs to float16 if the layers are float16.
    """
    dtypes = set() if model.casts_inputs else floating_dtypes(model)
    arrays = tuple(as_trainable(array, dtypes) for array in as_arrays("x", x))
    targets = None if t is None else as_arrays("t", t)
    if targets is not None and len(targets[0]) != len(arrays[0]):
        raise ValueError(
            f"x has {len(arrays[0])} samples, but t has {len(targets[0])}: x and t must"
            f" be of the same minibatch"
        )
    return arrays, targets


def _warn_if_disturbed(mean: float, median: float) -> None:
    """Warns if the layers' medians are much shorter than their means.

    Args:
        mean: Mean seconds of all layers together.
        median: Median seconds of the layers, added up.
    """
    if mean > max(_DISTURBED * median, median + _NOISE):
        warn_user(
            f"the layers took {mean / median:.2f} times their medians on average:"
            f" something else uses the machine, or a quota limits this process's CPU"
            f" time, and stops it in some of the runs. The profile has the medians, so"
            f" plans made from it promise too much, and choose microbatches that are"
            f" too small. Measure where nothing disturbs, and give the speeds of the"
            f" slower ranks to the plan",
            RuntimeWarning,
        )


def _machine(device: Any) -> str:
    if device.xp is not np:
        return str(device)
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    return f"{platform.node()}, {device}, OMP_NUM_THREADS={threads}"
