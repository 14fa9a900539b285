"""The kinds of traced chains, by their first layer.

::

    Pointwise     tanh > dropout > ...           one function
    Normalized    BatchNormalization > ...       one function
    Product       Linear > ReLU > ...            the product, and one function
    Perceptron    Linear > tanh > Linear ...     one function, in `perceptrons`
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np

from chainer_kernels.fusion import products
from chainer_kernels.fusion.epilogue import Epilogue, EpilogueFunction
from chainer_kernels.fusion.function import FusedFunction
from chainer_kernels.fusion.generated import Compiled
from chainer_kernels.fusion.headed import HeadedLoops
from chainer_kernels.fusion.heads import heads_of, is_ready
from chainer_kernels.fusion.normalized import NormalizedFunction
from chainer_kernels.fusion.program import Program
from chainer_kernels.fusion.side_inputs import SideInputs, call_each
from chainer_kernels.fusion.tracing import NotPointwise, trace, trace_headed
from chainer_kernels.layouts import are_alike, are_float32

Layer = Callable[..., Any]
#: Draws the masks of a program for an array.
Draw = Callable[[np.ndarray], Sequence[np.ndarray]]

TAKES_ANOTHER_SHAPE = "it takes an input of another shape"


class ChainTrial(NamedTuple):
    """A chain to measure, unfused and fused.

    Attributes:
        unfused: Runs the functions of the chain one by one, on variables.
        fused: Runs the functions of the chain as one function.
        inputs: Inputs for ``unfused`` and ``fused``.
        parameters: Parameters whose gradients are computed besides those of inputs.
        n_before: How many arrays are read and written unfused.
        n_after: How many arrays are read and written fused.
    """

    unfused: Callable[..., chainer.Variable]
    fused: Callable[..., chainer.Variable]
    inputs: Sequence[np.ndarray]
    parameters: Sequence[chainer.Variable]
    n_before: int
    n_after: int


class Chain(abc.ABC):
    """Traced layers that run as one; the constructor of a subclass traces them.

    Args:
        layers: The layers, each called with the output of the previous one.
        side_inputs: Indexes of side inputs among the chain's inputs, by the place of
            their layer.
    """

    def __init__(self, layers: Sequence[Layer], side_inputs: SideInputs) -> None:
        self._layers, self._side_inputs = layers, side_inputs

    @property
    @abc.abstractmethod
    def program(self) -> Program:
        """The chain's functions, without a normalization or product before them."""

    def is_ready(self, inputs: Sequence[np.ndarray]) -> bool:
        """Returns whether the chain can run on inputs in its current state.

        Args:
            inputs: Inputs of the first layer, followed by side inputs of other layers.
        """
        return are_alike(*inputs)

    @abc.abstractmethod
    def apply(self, inputs: Sequence[Any], draw: Draw) -> chainer.Variable:
        """Runs the chain.

        Args:
            inputs: Inputs of the first layer, followed by side inputs of other layers.
            draw: Draws the masks of the program for an array.
        """

    @abc.abstractmethod
    def trial(self, inputs: Sequence[np.ndarray], draw: Draw) -> ChainTrial:
        """Returns the unfused and the fused chain, for a measurement.

        Args:
            inputs: Inputs of the first layer, followed by side inputs of other layers.
            draw: Draws the masks of the program for an array.
        """

    def _trial(
        self,
        inputs: Sequence[np.ndarray],
        draw: Draw,
        parameters: Sequence[chainer.Parameter],
        n_arrays: tuple[int, int],
    ) -> ChainTrial:
        """Returns a trial of the whole chain."""
        return ChainTrial(
            lambda *values: call_each(self._layers, values, self._side_inputs),
            lambda *values: self.apply(values, draw),
            inputs,
            parameters,
            *n_arrays,
        )


class Pointwise(Chain):
    """A chain of pointwise functions alone."""

    def __init__(
        self,
        layers: Sequence[Layer],
        inputs: Sequence[np.ndarray],
        side_inputs: SideInputs,
    ) -> None:
        super().__init__(layers, side_inputs)
        self._compiled = Compiled(trace(layers, inputs, side_inputs))

    @property
    def program(self) -> Program:
        """All functions of the chain."""
        return self._compiled.program

    def apply(self, inputs: Sequence[Any], draw: Draw) -> chainer.Variable:
        """Runs the chain."""
        masks = draw(_array(inputs[0]))
        (y,) = FusedFunction(self._compiled, masks).apply(tuple(inputs))
        return y

    def trial(self, inputs: Sequence[np.ndarray], draw: Draw) -> ChainTrial:
        """Returns the unfused and the fused chain, for a measurement."""
        n_arrays = self.program.n_arrays, self._compiled.n_arrays
        return self._trial(inputs, draw, (), n_arrays)


class Normalized(Chain):
    """A chain that begins with a batch normalization."""

    def __init__(
        self,
        layers: Sequence[Layer],
        inputs: Sequence[np.ndarray],
        side_inputs: SideInputs,
    ) -> None:
        super().__init__(layers, side_inputs)
        headed = trace_headed(layers, inputs, side_inputs)
        self._link, self._place = headed.link, headed.place
        if not self.is_ready(inputs):
            reason = "a batch normalization that is not of float32 channels"
            raise NotPointwise(0, reason)
        self._loops = HeadedLoops(headed.program)

    @property
    def program(self) -> Program:
        """The functions behind the batch normalization."""
        return self._loops.program

    def is_ready(self, inputs: Sequence[np.ndarray]) -> bool:
        """Returns whether the chain can run on inputs in its current state."""
        return are_alike(*inputs) and is_ready(self._link, inputs[self._place])

    def apply(self, inputs: Sequence[Any], draw: Draw) -> chainer.Variable:
        """Runs the chain, and updates the running averages."""
        link, masks = self._link, draw(_array(inputs[0]))
        moving = None, None
        if not chainer.config.in_recomputing:
            moving = link.avg_mean, link.avg_var
        function = NormalizedFunction(
            self._loops,
            masks,
            eps=link.eps,
            mean=moving[0],
            var=moving[1],
            decay=link.decay,
            axis=link.axis,
        )
        x = inputs[self._place]
        others = [each for i, each in enumerate(inputs) if i != self._place]
        (y,) = function.apply((x, link.gamma, link.beta, *others))
        return y

    def trial(self, inputs: Sequence[np.ndarray], draw: Draw) -> ChainTrial:
        """Returns the unfused and the fused chain, for a measurement."""
        n_before = self.program.n_arrays + HeadedLoops.N_ARRAYS_OF_HEAD
        parameters = self._link.gamma, self._link.beta
        return self._trial(inputs, draw, parameters, (n_before, self._loops.n_arrays))


class Product(Chain):
    """A chain that begins with a linear layer or a convolution.

    The functions behind the product run in one loop, which writes to the product's
    array and adds the bias of a linear layer.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        inputs: Sequence[np.ndarray],
        side_inputs: SideInputs,
    ) -> None:
        super().__init__(layers, side_inputs)
        self._link, *tail = layers
        self._tail_side_inputs = {
            place - 1: taken for place, taken in side_inputs.items()
        }
        name = type(self._link).__name__
        nothing = f"nothing follows {name} that can go on in its array"
        if not tail or not products.are_ready(self._link):
            raise NotPointwise(0, nothing)
        x, *others = inputs
        with chainer.no_backprop_mode():
            z = products.product(self._link, x).array
        if not are_alike(z, *others):
            raise NotPointwise(min(side_inputs, default=0), TAKES_ANOTHER_SHAPE)
        if products.leaves_bias(self._link) and not z.flags.c_contiguous:
            raise NotPointwise(0, nothing)
        self._layout = z.shape, z.strides
        try:
            program = trace(tail, [z, *others], self._tail_side_inputs)
        except NotPointwise as error:
            raise NotPointwise(error.layer + 1, error.reason) from None
        program = program._replace(
            masks=tuple(m._replace(layer=m.layer + 1) for m in program.masks),
            labels=(name, *program.labels),
        )
        self._epilogue = Epilogue(program, products.leaves_bias(self._link))
        if self._epilogue.keeps_head and not self._epilogue.has_bias:
            raise NotPointwise(0, nothing)

    @property
    def program(self) -> Program:
        """The functions behind the product."""
        return self._epilogue.program

    def is_ready(self, inputs: Sequence[np.ndarray]) -> bool:
        """Returns whether the chain can run on inputs in its current state."""
        x, *others = inputs
        return (
            are_float32(x, *others)
            and products.are_ready(self._link)
            and products.leaves_bias(self._link) == self._epilogue.has_bias
            and all((a.shape, a.strides) == self._layout for a in others)
        )

    def apply(self, inputs: Sequence[Any], draw: Draw) -> chainer.Variable:
        """Runs the chain."""
        x, *others = inputs
        z = products.product(self._link, x)
        if (z.shape, z.array.strides) != self._layout:
            # With another layout, the loop might write to a copy of the product.
            return call_each(self._layers, inputs, self._side_inputs)
        return self._continued(z, others, draw)

    def _continued(
        self, z: chainer.Variable, others: Sequence[Any], draw: Draw
    ) -> chainer.Variable:
        """Runs the functions that follow the product."""
        bias = [self._link.b] if self._epilogue.has_bias else []
        masks = draw(z.array)
        (y,) = EpilogueFunction(self._epilogue, masks).apply((z, *others, *bias))
        return y

    def trial(self, inputs: Sequence[np.ndarray], draw: Draw) -> ChainTrial:
        """Returns the chain behind a small product, unfused and fused."""
        link, tail = self._link, self._layers[1:]
        x, *others = inputs
        thin = products.Thin(link, x)

        def unfused(x: chainer.Variable, *others: chainer.Variable) -> chainer.Variable:
            return call_each(tail, [thin(x), *others], self._tail_side_inputs)

        def fused(x: chainer.Variable, *others: chainer.Variable) -> chainer.Variable:
            return self._continued(thin(x, with_bias=False), others, draw)

        # Unfused, adding a bias reads and writes the product, and the gradient of the
        # bias reads the gradient of the product.
        n_before = self.program.n_arrays + 3 * self._epilogue.has_bias
        parameters = [link.b] if self._epilogue.has_bias else []
        n_arrays = n_before, self._epilogue.n_arrays
        return ChainTrial(unfused, fused, [thin.x, *others], parameters, *n_arrays)


def traced(
    layers: Sequence[Layer], inputs: Sequence[np.ndarray], side_inputs: SideInputs
) -> Chain:
    """Returns layers as a chain of the kind that fits their first layer.

    Raises:
        NotPointwise: If the layers cannot run as one chain.
        Exception: If a layer raises it.
    """
    if products.is_product(layers[0]):
        return Product(layers, inputs, side_inputs)
    kind = Normalized if heads_of(layers) else Pointwise
    return kind(layers, inputs, side_inputs)


def _array(value: Any) -> np.ndarray:
    return value.array if isinstance(value, chainer.Variable) else value
