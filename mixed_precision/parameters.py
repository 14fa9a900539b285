"""Checks of the optimizers, parameters and gradients for mixed precision."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import chainer
import numpy as np
from chainer.optimizer import GradientMethod


def check_optimizer(optimizer: chainer.Optimizer) -> None:
    """Refuses optimizers that do more than call update rules and hooks.

    Raises:
        TypeError: If the optimizer has an update of its own.
        ValueError: If the optimizer has a loss scale of its own.
    """
    name = type(optimizer).__name__
    if not isinstance(optimizer, GradientMethod):
        raise TypeError(
            f"optimizer must be a Chainer optimizer such as MomentumSGD(0.01), not"
            f" {name}"
        )
    if type(optimizer).update is not GradientMethod.update:
        raise TypeError(
            f"{name} has an update of its own, which would not be called: put what it"
            f" does into its update rule or a hook"
        )
    if optimizer._loss_scale is not None:
        raise ValueError(
            "the optimizer has a loss scale of its own, from set_loss_scale or"
            " loss_scaling: give it to MixedPrecision instead"
        )


def check_parameter(path: str, param: chainer.Parameter) -> None:
    """Refuses parameters that cannot be trained here."""
    if param.dtype.kind != "f":
        raise TypeError(
            f"parameter {path} is of dtype {param.dtype}; only floating-point"
            f" parameters can be trained. What is not trained can be a persistent"
            f" value of its link"
        )
    if param.device.xp not in (np, chainer.backends.cuda.cupy):
        raise TypeError(
            f"parameter {path} is on the device {param.device}; MixedPrecision works"
            f" on NumPy and CuPy arrays"
        )


def unique_parameters(
    target: chainer.Link, include_uninit: bool = False
) -> list[tuple[str, chainer.Parameter]]:
    """Returns parameters with their paths; one that two links share has its first path.

    Two stages on a rank may each have a copy of a shared parameter: two parameters of
    the same path.
    """
    by_id: dict[int, tuple[str, chainer.Parameter]] = {}
    for path, param in target.namedparams(include_uninit):
        by_id.setdefault(id(param), (path, param))
    return list(by_id.values())


def check_copies(target: chainer.Link) -> None:
    """Refuses parameters that are copies with one array.

    Chainer updates the array once for each copy. Here each copy would have its own
    place in the buffers, and the updates of all but one would be lost.
    """
    known: dict[int, tuple[str, chainer.Parameter]] = {}
    for path, param in unique_parameters(target, include_uninit=True):
        # Copies that are sized later share the cell that holds the array.
        cell = param._data if param.array is None else param.array
        first, other = known.setdefault(id(cell), (path, param))
        if other is not param:
            raise ValueError(
                f"the parameters {first} and {path} are copies with one array, as of"
                f" copy() or repeat(n, 'share'): use the same link in both places, or"
                f" Divisible.tie, which makes them one parameter"
            )


def check_has_no_float16(target: chainer.Link) -> None:
    """Refuses float16 parameters, whose gradients underflow without a loss scale."""
    for path, param in unique_parameters(target, include_uninit=True):
        if _is_float16(param):
            raise ValueError(
                f"parameter {path} is float16, and its gradients underflow without a"
                f" loss scale, which products='bfloat16' leaves out by default. Give"
                f" MixedPrecision(..., loss_scale=DynamicLossScale()), or leave the"
                f" model in float32"
            )


def check_is_whole(target: chainer.Link) -> None:
    """Refuses a stage of a model whose other stages are in other processes.

    Without a common decision one process would skip steps that others take.
    """
    # Every process that sends anything to another one has imported MPI.
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.COMM_WORLD.size == 1:
        return
    stages = [x for x in (target, *target.children()) if hasattr(x, "layer_range")]
    n_layers = sum(end - start for start, end in (x.layer_range for x in stages))
    n_of_model = max((len(x.model_layers) for x in stages), default=0)
    if n_layers < n_of_model:
        raise ValueError(
            f"rank {mpi.COMM_WORLD.rank} has {n_layers} of the model's {n_of_model}"
            f" layers, and alone would skip steps that the other ranks take: give"
            f" MixedPrecision their communicator, MixedPrecision(optimizer, comm=comm)"
        )


def check_scale(parameters: Sequence[chainer.Parameter], scale: float) -> None:
    """Refuses gradients that are not scaled by the loss scale.

    Args:
        parameters: Parameters whose gradients are checked.
        scale (float): The loss scale.

    Raises:
        ValueError: If the gradients are not scaled, or by another number.
    """
    noted = {
        None if param._loss_scale is None else float(param._loss_scale)
        for param in parameters
        if param.grad is not None
    }
    # F.forget does not pass the scale on to the parameters within.
    found = noted - {None} or noted
    if found <= {scale} or scale == 1 and found <= {None}:
        return
    if found == {None}:
        raise ValueError(
            f"the gradients are not scaled, but the loss scale is {scale:g}: call"
            f" optimizer.backward(loss) instead of loss.backward(), or make the"
            f" pipeline with Pipeline(..., loss_scale=optimizer.loss_scale)"
        )
    raise ValueError(
        f"the gradients are scaled by {sorted(found)}, but the loss scale is"
        f" {scale:g}: call optimizer.backward(loss), and give a pipeline the object"
        f" optimizer.loss_scale, which changes, instead of a number. Of two"
        f" optimizers with one such object each changes it: make one for both,"
        f" MixedPrecision(optimizer).setup([stage, stage])"
    )


def keeps_master(param: chainer.Parameter) -> bool:
    """Returns whether the parameter, if it is float16, is updated in float32."""
    return getattr(param.update_rule, "keeps_master", True)


def has_master(param: chainer.Parameter) -> bool:
    """Returns whether the parameter is float16 and updated in float32."""
    return _is_float16(param) and keeps_master(param)


def _is_float16(param: chainer.Parameter) -> bool:
    if param.array is not None:
        return param.dtype == np.float16
    # Before initialization the dtype is the initializer's, or the configuration's.
    return chainer.get_dtype(getattr(param.initializer, "dtype", None)) == np.float16
