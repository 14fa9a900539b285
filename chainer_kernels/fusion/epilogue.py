"""The functions behind a product of matrices, as one loop in the product's array."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import chainer
import chainer.functions as F
import numpy as np

from chainer_kernels import threads
from chainer_kernels.compiling import Loop
from chainer_kernels.functions import channels
from chainer_kernels.fusion.epilogue_source import HEAD, epilogue
from chainer_kernels.fusion.function import FusedFunction
from chainer_kernels.fusion.generated import Compiled, loops
from chainer_kernels.fusion.program import Program
from chainer_kernels.fusion.source import Source
from chainer_kernels.layouts import empty_like, flat

Arrays = Sequence[np.ndarray]


class Epilogue(Compiled):
    """A program that begins with a product, and its loops.

    Args:
        program: The functions; their first input is the product including its bias.
        has_bias: Whether the forward loop adds the bias to the product.
    """

    def __init__(self, program: Program, has_bias: bool) -> None:
        super().__init__(program)
        self.has_bias = has_bias

    @property
    def keeps_head(self) -> bool:
        """Whether the backward needs the product, so that the output lies elsewhere."""
        return HEAD in self.directions.inputs

    @functools.cached_property
    def forward(self) -> tuple[Source, Loop]:
        """The loop that computes the output."""
        return loops((epilogue(self.program, self.has_bias, self.keeps_head),))[0]

    @property
    def n_arrays(self) -> int:
        """How many arrays are read and written in both directions."""
        # The product is read and written; the gradient of the bias reads once more.
        return super().n_arrays + 1 + self.has_bias


class EpilogueFunction(FusedFunction):
    """Adds a bias to a product and applies functions to the sum, in one loop.

    The inputs are the product, the side inputs of later functions, and the bias, if
    there is one, with a number for each column. The loop overwrites the product's
    array, so no other function may use that array.

    Args:
        compiled: The loops.
        masks: An array for each mask of the program.
    """

    _compiled: Epilogue

    def forward(self, inputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray]:
        """Computes the output."""
        compiled, chosen = self._compiled, self._compiled.directions
        bias = inputs[-1] if compiled.has_bias else None
        retained = chosen.inputs
        if compiled.has_bias and compiled.keeps_head:
            retained += (len(inputs) - 1,)
        self.retain_inputs(retained)
        if chosen.keeps_output:
            self.retain_outputs((0,))
        given = {**dict(enumerate(inputs)), **self._masks}
        return (continued(compiled, given, bias),)

    def backward(
        self, indexes: tuple[int, ...], grad_outputs: tuple[chainer.Variable, ...]
    ) -> tuple[chainer.Variable | None, ...]:
        """Computes the gradients of some inputs."""
        n = self._compiled.program.n_inputs
        own = tuple(i for i in indexes if i < n)
        if n not in indexes:
            return super().backward(own, grad_outputs)
        # The gradient of the bias is the sum of the product's gradient over rows.
        *found, gz = super().backward((*own, HEAD), grad_outputs)
        return (*found, F.sum(gz, axis=0))

    def _retained(self) -> dict[int, chainer.Variable]:
        """Returns the variables held for backward, by the numbers of their values."""
        given = super()._retained()
        if self._compiled.has_bias and HEAD in given and chainer.config.enable_backprop:
            # The array already holds the sum with the bias; the graph lacks it yet.
            *_, bias = self.get_retained_inputs()
            added = F.broadcast_to(bias, given[HEAD].shape)
            given[HEAD] = given[HEAD] + (added - added.array)
        return given


def continued(
    compiled: Epilogue, given: Mapping[int, np.ndarray], bias: np.ndarray | None
) -> np.ndarray:
    """Returns the output of the functions behind a product.

    Args:
        compiled: The functions.
        given: The product, side inputs and masks, by the numbers of their values. The
            product's array is overwritten.
        bias: The bias, if the loop adds one.
    """
    source, loop = compiled.forward
    z = given[HEAD]
    y = empty_like(z) if compiled.keeps_head else z
    arrays = [*(given[v] for v in source.reads), *[y] * compiled.keeps_head]
    if bias is None:
        threads.run_slices(loop, flat(arrays))
    else:
        threads.run_slices(loop, *_columns(arrays, bias))
    return y


def _columns(arrays: Arrays, bias: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns matrices and a bias, with several short rows joined into one."""
    matrices, fold = channels.columns([a[..., np.newaxis] for a in arrays], 1)
    (row,) = channels.in_groups(len(bias), bias)
    return matrices, channels.repeated(row, fold).reshape(-1)
