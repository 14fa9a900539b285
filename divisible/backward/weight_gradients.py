"""Weight gradients, accumulated in place over the microbatches of a minibatch.

Chainer accumulates the gradient of a parameter with ``F.add``. For every microbatch it
allocates an array as large as the parameter for the microbatch's gradient, and another
one for the sum. :class:`WeightGradients` keeps one array for each parameter. The first
microbatch overwrites it, so it is never filled with zeros. Later ones add to it. A
contribution that is not an array yet, such as a matrix product, is computed into it.

Gradients of float16 parameters are summed in float32 and rounded once, at the end of
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
    # Whether the gradient is in use already, so that nothing may be added.
    is_taken: bool = False
    # Function that brings the array into the parameter's order, while it has another.
    bring_in_order: Callable[[Array], None] | None = None
    # The gradient in float16, for float16 parameters, whose `array` is float32.
    rounded: Array | None = None

    def in_order(self) -> Array:
        """Returns the array in the order of the parameter."""
        if self.bring_in_order is not None:
            self.bring_in_order(self.array)
            self.bring_in_order = None
        return self.array

    def accumulate(self, contribution: Contribution, scratch: Scratch) -> None:
        """Adds one contribution. The first one overwrites the array."""
        is_first, order = not self.n_parts, self.bring_in_order
        if is_first or order is not None:
            turned = getattr(contribution, "turned", None)
            # Two uses of a parameter may have two orders.
            if turned is not None and (is_first or turned.bring_in_order == order):
                turned.add(self.array, is_first)
                self.bring_in_order = turned.bring_in_order
                self.n_parts += 1
                return
        if is_first:
            contribution.write(self.array)
        else:
            contribution.add(self.in_order(), scratch)
        self.n_parts += 1


class WeightGradients:
    """The gradients of one stage's parameters over one minibatch.

    ::

        begin()     every gradient is empty; param.grad is None
        add(W, g0)  array = g0       first microbatch: overwrites
        add(W, g1)  array += g1      later ones: in place
        finish()    param.grad is array, or None for a parameter that got nothing

    The same array serves a parameter step after step, and belongs to this object.
    Between the steps anything may happen to ``param.grad``: an optimizer may scale or
    clip it in place, and a user may clear or replace it. The next minibatch overwrites
    an array of this one, so copy it if it must last longer. When the parameter's shape,
    dtype or device changes, a new array replaces the old one.

    Some functions add to ``param.grad`` by themselves while they run backward,
    :func:`chainer.functions.forget` above all; :meth:`finish` adds that up too.

    A parameter whose update rule is disabled gets its gradient like any other, as in
    Chainer, because hooks such as ``GradientClipping`` count it.

    Args:
        parameters: Function that returns the parameters, for example ``stage.params``.
            It is called at the beginning of every minibatch. Other parameters that
            receive a gradient are included from then on.

    Attributes:
        completion (Completion or None): The object that is notified of each addition.
        is_updated_early: Function that returns whether the last part of a parameter's
            gradient updates it directly, without being summed; ``None`` if no parameter
            is updated so.
        others (list of Parameter): Parameters that received a gradient, but are not
            among those that ``parameters`` returned.

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
        # Keys are identities, because variables do not hash. A gradient keeps its
        # parameter alive, so no identity is used twice.
        self._gradients: dict[int, _Gradient] = {}
        # The parameters when the minibatch began.
        self._given: dict[int, chainer.Parameter] = {}
        self.others: list[chainer.Parameter] = []
        # Parameters that the last part of their gradient has updated.
        self._updated: set[int] = set()
        self._scratch = Scratch()
        self.completion: Completion | None = None
        self.is_updated_early: Callable[[chainer.Parameter], bool] | None = None

    def begin(self) -> None:
        """Empties all gradients, also those of an unfinished minibatch."""
        self._empty()
        self._look_up()

    def _empty(self) -> None:
        """Drops all sums; their arrays stay."""
        for gradient in self._gradients.values():
            gradient.n_parts, gradient.is_taken = 0, False
            gradient.bring_in_order = None
        self._updated.clear()

    def _look_up(self) -> None:
        """Finds the parameters of a minibatch, and clears ``param.grad``."""
        params = [*self._parameters()]
        given = self._given = dict(zip(map(id, params), params))
        unknown = self._gradients.keys() - given.keys()
        if unknown or self.others:
            self.others = [
                gradient.parameter
                for key, gradient in self._gradients.items()
                if key in unknown
            ]
        for parameter in (*given.values(), *self.others):
            # Without this, Chainer would create an array of NaN beside the data of a
            # parameter that is initialized later.
            parameter.cleargrad()

    def add(self, parameter: chainer.Parameter, array: Array) -> None:
        """Adds one contribution.

        Args:
            parameter: An initialized parameter.
            array: A gradient of the parameter's shape and dtype. It is only read.
        """
        self.accumulate(parameter, Whole(array))

    def accumulate(
        self, parameter: chainer.Parameter, contribution: Contribution
    ) -> None:
        """Adds one contribution that need not be an array yet.

        Args:
            parameter: An initialized parameter.
            contribution: The contribution, of the parameter's dtype, or float32 for
                float16. It has the parameter's shape with all axes but the first
                flattened.
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
        """Returns whether a contribution updates a parameter directly."""
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
        """Returns the number of contributions to a gradient.

        A contribution that a function wrote to ``param.grad`` by itself counts from
        :meth:`take` or :meth:`finish` on.
        """
        gradient = self._gradients.get(id(parameter))
        return 0 if gradient is None else gradient.n_parts

    def take(self, parameter: chainer.Parameter) -> Array | None:
        """Returns the gradient of a parameter that is complete before the others are.

        The gradient is then in use: :meth:`finish` does not change it.

        Args:
            parameter: The parameter. Nothing may be added to its gradient any more in
                this minibatch.

        Returns:
            An array of the parameter's dtype; ``None`` if it has received nothing.
        """
        gradient = self._total(parameter)
        parameter.cleargrad()
        if gradient is not None:
            self._gradients[id(parameter)].is_taken = True
        return gradient

    def finish(self, factor: float = 1.0, loss_scale: float | None = None) -> None:
        """Stores the minibatch's gradients in ``param.grad``, except for those in use.

        Parameters that received nothing have ``None`` there, as after Chainer's
        ``cleargrads`` and ``backward``.

        Args:
            factor (float): Factor of the sums, which is applied before rounding.
            loss_scale (float or None): Scale that the sums already have.
        """
        for parameter in (*self._given.values(), *self.others):
            gradient = self._total(parameter, factor)
            if gradient is not None:
                parameter.grad = gradient
            # Variable.backward sets this, too; update rules divide by it.
            parameter._loss_scale = loss_scale

    def _total(self, parameter: chainer.Parameter, factor: float = 1.0) -> Array | None:
        """Returns the gradient, including contributions to ``param.grad``.

        Returns ``None`` if there is none, or if it is in use.
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
            # At the beginning it was unknown. Its gradient is an old one, or NaN.
            parameter.cleargrad()
            self.others.append(parameter)
        if gradient is None or not _fits(gradient.array, parameter.array):
            array = _new_gradient(parameter)
            gradient = self._gradients[id(parameter)] = _Gradient(parameter, array)
        return gradient


def _new_gradient(parameter: chainer.Parameter) -> Array:
    if hasattr(parameter, "new_gradient"):
        # The parameter has another place for its gradient than memory.
        return parameter.new_gradient()
    xp = backend.get_array_module(parameter.array)
    # C order, whatever the order of the data: GEMM writes into flattened views.
    return xp.empty(parameter.shape, _sum_dtype(parameter.dtype))


def _sum_dtype(dtype: numpy.dtype) -> numpy.dtype:
    return numpy.dtype(numpy.float32) if dtype == numpy.float16 else dtype


def _rounded(parameter: chainer.Parameter, gradient: _Gradient) -> Array:
    """Returns an array with the gradient, rounded to float16."""
    if gradient.rounded is None:
        xp = backend.get_array_module(gradient.array)
        gradient.rounded = xp.empty(gradient.array.shape, parameter.dtype)
    # Code that scales the loss checks for infinities.
    with numpy.errstate(over="ignore"):
        gradient.rounded[...] = gradient.array
    return gradient.rounded


def _fits(array: Array, data: Array) -> bool:
    # Most gradients have the dtype of the parameter, but never those of float16.
    is_own = array.dtype == data.dtype and data.dtype != numpy.float16
    if array.shape != data.shape or not (
        is_own or array.dtype == _sum_dtype(data.dtype)
    ):
        return False
    if type(array) is type(data) is numpy.ndarray:
        # Most arrays are NumPy's, and comparing devices takes longer.
        return True
    return backend.get_device_from_array(array) == backend.get_device_from_array(data)
