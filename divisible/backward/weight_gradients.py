"""Weight gradients, accumulated in place over the microbatches of a minibatch.

Chainer accumulates the gradient of a parameter with ``F.add``: every microbatch
allocates an array as large as the parameter for its own gradient and another one for
the sum. :class:`WeightGradients` gives each parameter one array for good. The first
microbatch overwrites it, so nothing is filled with zeros, and the later ones add to
it; what is not an array yet, such as a matrix product, is computed into it.

Gradients of float16 parameters are added up in float32 and rounded once, at the end of
the minibatch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import chainer
import numpy
from chainer import backend

from chainer_kernels.contributions import Contribution, Scratch, Whole
from divisible.backward.completion import Completion

Array = Any


@dataclasses.dataclass
class _Gradient:
    """The gradient array of one parameter, and how many parts have been added."""

    parameter: chainer.Parameter
    array: Array
    n_parts: int = 0
    # Whether somebody uses it already, and nothing may be added.
    is_taken: bool = False
    # Brings the array in order, while it is in another one.
    bring_in_order: Callable[[Array], None] | None = None

    def in_order(self) -> Array:
        """Returns the array, in its own order."""
        if self.bring_in_order is not None:
            self.bring_in_order(self.array)
            self.bring_in_order = None
        return self.array

    def accumulate(self, contribution: Contribution, scratch: Scratch) -> None:
        """Adds one contribution, or overwrites what is there with the first."""
        is_first = not self.n_parts
        if is_first or self.bring_in_order is not None:
            turned = getattr(contribution, "turned", None)
            if turned is not None:
                turned.add(self.array, is_first)
                self.bring_in_order = turned.bring_in_order
                self.n_parts += 1
                return
        if is_first:
            contribution.write(self.array)
        else:
            contribution.add(self.in_order(), scratch)
        self.n_parts += 1

    # Of float16 parameters, for which `array` is float32.
    rounded: Array | None = None


class WeightGradients:
    """The gradients of one stage's parameters over one minibatch.

    ::

        begin()     every gradient is empty; param.grad is None
        add(W, g0)  array = g0       first microbatch: overwrites
        add(W, g1)  array += g1      later ones: in place
        finish()    param.grad is array, or None for a parameter that got nothing

    The same array serves a parameter step after step. It stays the property of this
    object, which copes with whatever happens to ``param.grad`` between the steps: an
    optimizer may scale or clip it in place, and a user may clear or replace it. An
    array kept from one minibatch is overwritten in the next, so copy what has to
    outlive it. When the parameter's shape, dtype or device changes, a new array takes
    the place of the old one.

    Some functions add to ``param.grad`` by themselves while they run backward,
    :func:`chainer.functions.forget` above all; :meth:`finish` adds that up too.

    A parameter whose update rule is disabled gets its gradient like any other, as in
    Chainer, because hooks such as ``GradientClipping`` count it.

    Args:
        parameters: Returns the parameters in question, for example ``stage.params``.
            It is called at the beginning of every minibatch. Others that receive a
            gradient are served as well, from then on.

    Attributes:
        completion (Completion or None): Whom backwards tell what they add.
        is_updated_early: Says of a parameter whether the last part of its gradient,
            which then is added up nowhere, is to update it; ``None`` if none is.
        others (list of Parameter): What received a gradient and is not among the given
            parameters.

    Example:
        >>> import chainer, numpy as np
        >>> link = chainer.links.Linear(2, 1, initialW=1)
        >>> gradients = WeightGradients(link.params)
        >>> gradients.begin()
        >>> gradients.add(link.W, np.array([[1, 2]], 'f'))
        >>> gradients.add(link.W, np.array([[10, 20]], 'f'))
        >>> gradients.finish()
        >>> link.W.grad
        array([[11., 22.]], dtype=float32)
        >>> link.b.grad is None
        True
    """

    def __init__(
        self, parameters: Callable[[], Iterable[chainer.Parameter]] = tuple
    ) -> None:
        self._parameters = parameters
        # Keyed by id because variables do not hash. Each keeps its parameter alive, so
        # no id is used twice.
        self._gradients: dict[int, _Gradient] = {}
        # Those that were given when the minibatch began.
        self._given: dict[int, chainer.Parameter] = {}
        self.others: list[chainer.Parameter] = []
        # Those that the last part of their gradient has updated.
        self._updated: set[int] = set()
        self._scratch = Scratch()
        self.completion: Completion | None = None
        self.is_updated_early: Callable[[chainer.Parameter], bool] | None = None

    def begin(self) -> None:
        """Empties all gradients; what an unfinished minibatch left is forgotten."""
        for gradient in self._gradients.values():
            gradient.n_parts, gradient.is_taken = 0, False
            gradient.bring_in_order = None
        self._updated.clear()
        given = self._given = {id(param): param for param in self._parameters()}
        self.others = [
            gradient.parameter
            for key, gradient in self._gradients.items()
            if key not in given
        ]
        for parameter in (*given.values(), *self.others):
            # It also spares uninitialized parameters the array of NaN that Chainer
            # would create beside their data.
            parameter.cleargrad()

    def add(self, parameter: chainer.Parameter, array: Array) -> None:
        """Adds one contribution.

        Args:
            parameter: An initialized parameter.
            array: Its gradient, of the parameter's shape and dtype. It is only read.
        """
        self.accumulate(parameter, Whole(array))

    def accumulate(
        self, parameter: chainer.Parameter, contribution: Contribution
    ) -> None:
        """Adds one contribution that need not be an array yet.

        Args:
            parameter: An initialized parameter.
            contribution: Of the parameter's shape, if its axes but the first are
                flattened, and dtype; of float32 for float16.
        """
        if self.is_updated_early is not None and self._updates_early(
            parameter, contribution
        ):
            known = self._gradients.get(id(parameter))
            contribution.update(known.in_order() if known and known.n_parts else None)
            self._updated.add(id(parameter))
            return
        gradient = self._gradients.get(id(parameter))
        if gradient is None or not gradient.n_parts:
            gradient = self._fitting(parameter, gradient)
        elif gradient.is_taken:
            raise RuntimeError(
                f"a gradient of {parameter} came after those of the last microbatch had"
                f" been added up: something adds to it by itself. Exchange gradients"
                f" after the step, create_multi_node_optimizer(..., overlap=False)"
            )
        gradient.accumulate(contribution, self._scratch)

    def _updates_early(
        self, parameter: chainer.Parameter, contribution: Contribution
    ) -> bool:
        """Says whether a contribution is to update a parameter."""
        if id(parameter) in self._updated:
            raise RuntimeError(
                f"a gradient of {parameter} came after it had been updated with those"
                f" before: something adds to it by itself. Update after the step: give"
                f" pipe.step() no optimizer"
            )
        return (
            self.completion is not None
            and self.completion.is_next(parameter)
            and hasattr(contribution, "update")
            and parameter.grad is None
            and self.is_updated_early(parameter)
        )

    def n_parts(self, parameter: chainer.Parameter) -> int:
        """Returns how many contributions there were to a gradient.

        One that a function has written to ``param.grad`` by itself counts from
        :meth:`take` or :meth:`finish` on.
        """
        gradient = self._gradients.get(id(parameter))
        return 0 if gradient is None else gradient.n_parts

    def take(self, parameter: chainer.Parameter) -> Array | None:
        """Returns the gradient of a parameter that is complete before the others are.

        :meth:`finish` leaves it alone.

        Args:
            parameter: Nothing may be added to its gradient in this minibatch.

        Returns:
            An array of the parameter's dtype; ``None`` if it has received nothing.
        """
        gradient = self._total(parameter)
        parameter.cleargrad()
        if gradient is not None:
            self._gradients[id(parameter)].is_taken = True
        return gradient

    def finish(self, factor: float = 1.0, loss_scale: float | None = None) -> None:
        """Leaves the minibatch's gradients in ``param.grad``, but for those taken.

        Parameters that received nothing have ``None`` there, as after Chainer's
        ``cleargrads`` and ``backward``.

        Args:
            factor (float): What the sums are multiplied by, before they are rounded.
            loss_scale (float or None): What the sums are multiplied by already.
        """
        for parameter in (*self._given.values(), *self.others):
            gradient = self._total(parameter, factor)
            if gradient is not None:
                parameter.grad = gradient
            # As Variable.backward does; update rules divide by it.
            parameter._loss_scale = loss_scale

    def _total(self, parameter: chainer.Parameter, factor: float = 1.0) -> Array | None:
        """Returns the gradient, with what was written to ``param.grad``.

        ``None`` if there is none, or if it is taken.
        """
        written = parameter.grad
        if written is not None:
            self.add(parameter, written)
        gradient = self._gradients.get(id(parameter))
        if gradient is None or not gradient.n_parts or gradient.is_taken:
            return None
        gradient.in_order()
        if factor != 1.0:
            gradient.array *= factor
        if parameter.dtype == gradient.array.dtype:
            return gradient.array
        return _rounded(parameter, gradient)

    def _fitting(
        self, parameter: chainer.Parameter, gradient: _Gradient | None
    ) -> _Gradient:
        """Returns the gradient that a parameter has, or a new one for its shape."""
        if gradient is None and id(parameter) not in self._given:
            # Not known at the beginning: what it has is of before, or Chainer's NaN.
            parameter.cleargrad()
            self.others.append(parameter)
        if gradient is None or not _fits(gradient.array, parameter.array):
            array = _new_gradient(parameter)
            gradient = self._gradients[id(parameter)] = _Gradient(parameter, array)
        return gradient


def _new_gradient(parameter: chainer.Parameter) -> Array:
    if hasattr(parameter, "new_gradient"):
        # It has a place for it that is not memory.
        return parameter.new_gradient()
    xp = backend.get_array_module(parameter.array)
    # C order whatever the data's: GEMM writes into flattened views.
    return xp.empty(parameter.shape, _sum_dtype(parameter.dtype))


def _sum_dtype(dtype: numpy.dtype) -> numpy.dtype:
    return numpy.dtype(numpy.float32) if dtype == numpy.float16 else dtype


def _rounded(parameter: chainer.Parameter, gradient: _Gradient) -> Array:
    """Returns an array with the gradient, rounded to float16."""
    if gradient.rounded is None:
        xp = backend.get_array_module(gradient.array)
        gradient.rounded = xp.empty(gradient.array.shape, parameter.dtype)
    # Whoever scales the loss looks for infinities.
    with numpy.errstate(over="ignore"):
        gradient.rounded[...] = gradient.array
    return gradient.rounded


def _fits(array: Array, data: Array) -> bool:
    # Most gradients are added up in their own dtype, and those of float16 never are.
    is_own = array.dtype == data.dtype and data.dtype != numpy.float16
    if array.shape != data.shape or not (
        is_own or array.dtype == _sum_dtype(data.dtype)
    ):
        return False
    if type(array) is type(data) is numpy.ndarray:
        # Most of them, and to ask for devices takes longer.
        return True
    return backend.get_device_from_array(array) == backend.get_device_from_array(data)
