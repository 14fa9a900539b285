"""Kernels of ``L.LSTM``, ``L.GRU`` and their stateless forms: a step as one function.

A link is left to Chainer where hooks need to observe single functions. It is also left
to Chainer where one of its layers is not a plain ``L.Linear`` of float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chainer
import chainer.functions as F
import numpy as np
from chainer.links.connection.linear import Linear

from chainer_kernels import product_dtype
from chainer_kernels.functions.recurrent_steps import FirstGRUStep, GRUStep, LSTMStep
from chainer_kernels.hooks import is_quiet
from chainer_kernels.layouts import are_float32

Parameters = tuple[chainer.Parameter, ...]


def lstm(link: Any, x: Any) -> Any:
    """Stands for ``LSTM.forward``."""
    h, c = link.h, link.c
    parameters = _lstm_parameters(link, x, h, c)
    if parameters is None:
        return NotImplemented
    batch, rest = len(x), None
    if h is not None and len(h) > batch:
        h, rest = F.split_axis(h, [batch], axis=0)
    link.c, y = _lstm_step(link, x, h, c, parameters)
    link.h = y if rest is None else F.concat([y, rest], axis=0)
    return y


def stateless_lstm(link: Any, c: Any, h: Any, x: Any) -> Any:
    """Stands for ``StatelessLSTM.forward``."""
    parameters = _lstm_parameters(link, x, h, c)
    if parameters is None or (h is not None and len(h) != len(x)):
        return NotImplemented
    return _lstm_step(link, x, h, c, parameters)


def gru(link: Any, *arguments: Any) -> Any:
    """Stands for ``GRU.forward``."""
    return stateful_gru(link, *arguments) if len(arguments) == 1 else NotImplemented


def stateful_gru(link: Any, x: Any) -> Any:
    """Stands for ``StatefulGRU.forward``."""
    y = _gru_step(link, x, link.h)
    if y is not NotImplemented:
        link.h = y
    return y


def stateless_gru(link: Any, h: Any, x: Any) -> Any:
    """Stands for ``StatelessGRU.forward``."""
    return NotImplemented if h is None else _gru_step(link, x, h)


def _lstm_parameters(link: Any, x: Any, h: Any, c: Any) -> Parameters | None:
    """Returns the parameters of a step; ``None`` if it is left to Chainer."""
    if not _are_covered(x, h, c):
        return None
    n = link.state_size
    # Chainer has words for too few rows. A state may have more.
    for state in (h, c):
        if state is not None and (state.shape[1] != n or len(state) < len(x)):
            return None
    upward = _parameters_of(link.upward, (4 * n, x.shape[1]), True)
    if upward is None or h is None:
        return upward
    lateral = _parameters_of(link.lateral, (4 * n, n), False)
    return None if lateral is None else upward + lateral


def _lstm_step(link: Any, x: Any, h: Any, c: Any, parameters: Parameters) -> tuple:
    """Returns the next cells and the output."""
    if c is None:
        c = chainer.Variable(np.zeros((len(x), link.state_size), np.float32))
    W, b, *U = parameters
    state = () if h is None else (h, *U)
    return LSTMStep().apply((c, x, W, b, *state))


def _gru_step(link: Any, x: Any, h: Any) -> Any:
    """Returns the next state, or ``NotImplemented``."""
    if not _are_covered(x, h) or type(link.U) is not Linear or link.U.b is None:
        return NotImplemented
    n = link.U.b.size
    if h is not None and h.shape != (len(x), n):
        return NotImplemented
    of_x = link.W_z, link.W, link.W_r
    of_h = link.U_r, link.U_z, link.U
    found: Parameters = ()
    for layer in of_x[:2] if h is None else (*of_x, *of_h):
        width = n if layer in of_h else x.shape[1]
        parameters = _parameters_of(layer, (n, width), True)
        if parameters is None:
            return NotImplemented
        found += parameters
    if h is None:
        (y,) = FirstGRUStep().apply((x, *found))
    else:
        (y,) = GRUStep().apply((x, h, *found))
    return y


def _are_covered(x: Any, *states: Any) -> bool:
    """Returns whether inputs are matrices of float32, and nothing observes them."""
    given = [x, *(state for state in states if state is not None)]
    return (
        all(isinstance(each, (chainer.Variable, np.ndarray)) for each in given)
        and all(each.ndim == 2 for each in given)
        and are_float32(*map(chainer.as_array, given))
        and x.size > 0
        and product_dtype.here() == product_dtype.FLOAT32
        and chainer.config.schedule_func is None
        and is_quiet()
    )


def _parameters_of(
    layer: Any, shape: tuple[int, int], has_bias: bool
) -> Parameters | None:
    """Returns a layer's weight, and its bias; ``None`` if it is not a plain one.

    Args:
        layer: A link.
        shape: The shape that its weight must have.
        has_bias: Whether it must have a bias, or must have none.
    """
    if type(layer) is not Linear or layer._n_local_link_hooks:
        return None
    if "forward" in vars(layer) or (layer.b is not None) is not has_bias:
        return None
    found = (layer.W, layer.b) if has_bias else (layer.W,)
    shapes: Sequence[tuple[int, ...]] = (shape, shape[:1])
    for parameter, expected in zip(found, shapes):
        # Parameters in slower memory, and such as are not there yet, have other types.
        if type(parameter) is not chainer.Parameter:
            return None
        array = parameter.array
        if not are_float32(array) or array.shape != expected:
            return None
        if not array.flags.c_contiguous:
            return None
    return found
