"""Checks of the arguments that one rank gives to a network, before any message."""

from __future__ import annotations

from typing import Any

import chainer
import numpy as np
from chainer import optimizer_hooks

from divisible.optimizer_hooks import named_hooks
from divisible.records import plain_integer, shown
from heterogeneous.partition import RectangularPartition

_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
# Hooks that need whole arrays, of which a rank has a part only, or that draw random
# numbers, which differ between ranks.
_UNEQUAL_HOOKS = (
    optimizer_hooks.GradientClipping,
    optimizer_hooks.GradientLARS,
    optimizer_hooks.GradientNoise,
)


def check_network(
    n_in: int, n_hidden: int, n_out: int, partition: Any, n_ranks: int
) -> tuple[int, int, int]:
    """Returns the sizes of a network as plain numbers, if they fit the partition.

    Raises:
        TypeError: If a size is not an integer, or ``partition`` is not a partition.
        ValueError: If the partition is for another network, or for other ranks.
    """
    if not isinstance(partition, RectangularPartition):
        raise TypeError(
            f"partition must be a RectangularPartition, not {type(partition).__name__}:"
            f" make one with rectangular_partition"
        )
    names = ("n_in", n_in), ("n_hidden", n_hidden), ("n_out", n_out)
    sizes = tuple(plain_integer(name, size) for name, size in names)
    of_partition = partition.n, partition.m, partition.l
    if sizes != of_partition:
        raise ValueError(
            f"the partition is of a network of {of_partition} inputs, hidden units and"
            f" outputs, not of {sizes}: make one for these"
        )
    if partition.n_processors != n_ranks:
        raise ValueError(
            f"the partition is for {partition.n_processors} processors, but there are"
            f" {n_ranks} ranks: make one for these, or start"
            f" {partition.n_processors} ranks"
        )
    return sizes


def check_weights(seed: int, dtype: Any) -> tuple[int, np.dtype]:
    """Returns a seed and a dtype of weights, if both are valid.

    Raises:
        TypeError, ValueError: If one is not valid.
    """
    seed, found = plain_integer("seed", seed), np.dtype(dtype)
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be 0 or more, and below 2**32, not {seed}")
    if found not in _DTYPES:
        raise ValueError(f"dtype must be float32 or float64, not {found.name}")
    return seed, found


def check_samples(x: Any, n_in: int, dtype: np.dtype) -> None:
    """Checks that an array holds samples.

    Raises:
        TypeError, ValueError: If it does not.
    """
    if not isinstance(x, chainer.get_array_types()):
        raise TypeError(f"x must be an array, not {type(x).__name__}")
    if x.ndim != 2 or x.shape[1] != n_in or not len(x):
        raise ValueError(
            f"x has the shape {x.shape}: it must be (samples, {n_in}), with one sample"
            f" at least"
        )
    if x.dtype != dtype:
        raise TypeError(
            f"x is {x.dtype} and the network {dtype}: convert it with"
            f" x.astype('{dtype}')"
        )


def check_targets(t: Any, n_samples: int, n_out: int | None) -> None:
    """Checks that an array holds targets.

    Args:
        t: The targets.
        n_samples: Number of samples in ``x``.
        n_out: Number of outputs, if targets are compared with them one by one; else
            ``None``.

    Raises:
        TypeError, ValueError: If it does not.
    """
    if not isinstance(t, chainer.get_array_types()):
        raise TypeError(f"t must be an array, not {type(t).__name__}")
    if t.ndim < 1 or len(t) != n_samples:
        raise ValueError(
            f"x has {n_samples} samples, but t is of shape {t.shape}: give as many"
            f" targets"
        )
    if t.dtype.kind == "i" and (t < 0).any():
        raise ValueError(
            "t has negative labels, of samples that losses leave out: a mean over the"
            " others cannot be divided among ranks. Leave these samples out of x and t"
        )
    if n_out is not None and (t.shape != (n_samples, n_out) or t.dtype.kind != "f"):
        raise ValueError(
            f"t is {t.dtype} of shape {t.shape}: without a lossfun it must be floats of"
            f" shape ({n_samples}, {n_out})"
        )


def check_loss(loss: chainer.Variable) -> None:
    """Checks the value that a loss function returned.

    Raises:
        ValueError: If it is not one number.
    """
    if loss.size != 1:
        raise ValueError(
            f"lossfun returned an array of shape {loss.shape}: it must return the mean"
            f" over samples"
        )


def check_enough(n_samples: int, partition: RectangularPartition) -> None:
    """Checks that each column has a sample.

    Raises:
        ValueError: If a column has none.
    """
    if n_samples < partition.n_columns:
        raise ValueError(
            f"there are {n_samples} samples for {partition.n_columns} columns of ranks,"
            f" {shown(partition.columns)}: give at least as many, or a partition for"
            f" so few"
        )


def check_optimizer(optimizer: Any, model: chainer.Link) -> None:
    """Checks that an optimizer updates the network, and keeps copies of units equal.

    Raises:
        TypeError: If the optimizer is not one of Chainer's, or wraps another one: its
            state might not move with the hidden units.
        ValueError: If the optimizer updates another model, or its rule or a hook
            treats the ranks unequally.
    """
    if not isinstance(optimizer, chainer.optimizer.GradientMethod):
        raise TypeError(
            f"optimizer must be one of Chainer's, such as SGD(0.1), not"
            f" {type(optimizer).__name__}: its state could not move with hidden units"
        )
    if getattr(optimizer, "target", None) is not model:
        raise ValueError(
            "the optimizer is not set up with this network: call optimizer.setup(mlp)"
        )
    hooks = named_hooks(optimizer)
    for param in model.params():
        rule = param.update_rule
        hooks += named_hooks(rule)
        if _needs_whole_arrays(rule):
            raise ValueError(
                f"{type(rule).__name__} would change the copies of a hidden unit"
                f" differently on each rank: use an optimizer that treats each element"
                f" by itself, such as MomentumSGD or Adam"
            )
    for _, hook in hooks:
        # A hook of another package may have such an attribute.
        is_of_parts = getattr(hook, "is_elementwise", True)
        if isinstance(hook, _UNEQUAL_HOOKS) or not is_of_parts:
            raise ValueError(
                f"the hook {type(hook).__name__} would change the copies of a hidden"
                f" unit differently on each rank: use one that treats each element by"
                f" itself, such as WeightDecay or GradientHardClipping"
            )


def _needs_whole_arrays(rule: chainer.UpdateRule | None) -> bool:
    """Returns whether the class of an update rule has been marked so, such as LARS."""
    of_classes = [vars(kind).get("is_elementwise") for kind in type(rule).__mro__]
    marks = [mark for mark in of_classes if mark is not None]
    # Chainer's base class has the last mark, for rules that have none of their own.
    return len(marks) > 1 and not marks[0]


def name_of(function: Any) -> str:
    """Returns the name of a function under which ranks compare theirs."""
    return getattr(function, "__qualname__", type(function).__qualname__)


def description(partition: RectangularPartition) -> dict[str, Any]:
    """Returns the facts of a partition that ranks compare."""
    return {
        "columns": partition.columns,
        "samples": [r.samples for r in partition.rectangles],
        "units": [r.units for r in partition.rectangles],
    }
