"""The parameters of a replica, and their gradients, for an exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Union

import chainer
import numpy as np

from data_parallel.arrays import HOST, Spec

#: Choice of parameters that are sent in float32: ``'1d'``, a predicate, or ``None``.
#: Users may also give ``'auto'``, which leaves it to the strategy.
Exempt = Union[str, Callable[[chainer.Parameter], Any], None]


class NamedParameter(NamedTuple):
    """A parameter, and its path in the model, the first one if it has several."""

    name: str
    param: chainer.Parameter


def parameters_of(
    model: chainer.Link, include_uninit: bool = False
) -> list[NamedParameter]:
    """Returns the parameters of a model, each once, by path.

    Two stages on a rank may have copies of a shared parameter. The first one stands for
    both.

    Args:
        model: The model.
        include_uninit: Whether to include parameters without a shape.
    """
    by_name: dict[str, chainer.Parameter] = {}
    for name, param in model.namedparams(include_uninit):
        by_name.setdefault(name, param)
    by_id: dict[int, NamedParameter] = {}
    for name in sorted(by_name):
        param = by_name[name]
        by_id.setdefault(id(param), NamedParameter(name, param))
    return list(by_id.values())


def refusal_of_streamed(parameters: Sequence[NamedParameter], copying: str) -> str:
    """Returns the reason why parameters on disk cannot be trained, or an empty text.

    Args:
        parameters: Parameters of the model.
        copying: The argument for which gradients are copied. Empty if they are
            exchanged in place.

    Returns:
        str: The reason; empty if there is none.
    """
    for name, param in parameters:
        if not getattr(param, "is_streamed", False):
            continue
        if copying:
            return (
                f"{name} is streamed from disk, and {copying} keeps a copy of its"
                f" gradient or weights in memory: leave that out, or let the layer stay"
                f" in memory"
            )
        if param.dtype != np.float32:
            return (
                f"{name} is streamed from disk in {param.dtype}, and its gradient would"
                f" be exchanged in a copy in memory of float32: make it float32"
            )
    return ""


def in_order(
    parameters: Sequence[NamedParameter], names: Sequence[str]
) -> list[NamedParameter]:
    """Returns parameters in the order of some names, the others at the end."""
    place = {name: i for i, name in enumerate(names)}
    return sorted(parameters, key=lambda each: place.get(each.name, len(place)))


def is_exempt(exempt: Exempt) -> Callable[[chainer.Parameter], bool]:
    """Returns the predicate of parameters that are sent in float32.

    Args:
        exempt: ``'1d'`` for parameters with fewer than two dimensions, a predicate, or
            ``None`` for no parameter.

    Raises:
        ValueError: If it is something else.

    Example:
        >>> of = is_exempt("1d")
        >>> bias, weights = np.zeros(3, "f"), np.zeros((4, 3), "f")
        >>> of(chainer.Parameter(bias)), of(chainer.Parameter(weights))
        (True, False)
    """
    if exempt is None:
        return lambda param: False
    if exempt == "1d":
        return lambda param: param.ndim < 2
    if not callable(exempt):
        raise ValueError(
            f"exempt must be '1d', 'auto', None or a function of a parameter, not"
            f" {exempt!r}"
        )
    return lambda param: bool(exempt(param))


def specs_of_gradients(
    parameters: Sequence[NamedParameter],
    exempt: Callable[[chainer.Parameter], bool],
) -> tuple[Spec, ...]:
    """Returns the descriptions of the gradients of parameters.

    Raises:
        TypeError: If one cannot be exchanged.
    """
    specs = []
    for name, param in parameters:
        xp = param.device.xp
        if xp not in (np, chainer.backends.cuda.cupy):
            raise TypeError(
                f"parameter {name} is on the device {param.device}: gradients are"
                f" exchanged of NumPy and CuPy arrays"
            )
        if param.dtype.char not in "efd":
            raise TypeError(
                f"parameter {name} is of dtype {param.dtype}: gradients are exchanged"
                f" of float16, float32 and float64"
            )
        device = HOST if xp is np else param.device
        dtype = param.dtype.char
        specs.append(Spec(name, param.shape, dtype, exempt(param), device))
    return tuple(specs)
