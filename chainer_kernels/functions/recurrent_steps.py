"""A step of ``L.LSTM`` or ``L.GRU``: products, biases and gates as one function.

::

    one by one   linear(x)   linear(h)   add   lstm     each a node, and nodes of its
                                                        gradients
    a step       [ x W^T     h U^T       one loop ]     one node, one backward

The products are those of the single functions, on the same arrays. The loop between
them keeps the gates, where Chainer's function keeps their sums and computes the gates
again in its backward.

Gradients of ``x`` and of the state before are sums over products. A step adds them up
in Chainer's order, and has the bits of single functions. If other functions have added
to the same gradient, a step adds its own sum to that rather than term after term: in a
sequence of steps of GRU the last bits differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import chainer
import chainer.functions as F
import numpy as np

from chainer_kernels import kept_weights, product_dtype, providers, threads
from chainer_kernels.contributions import Contribution, Product
from chainer_kernels.functions.halves import is_out_of_graph
from chainer_kernels.functions.products import as_matrix
from chainer_kernels.functions.sums import total
from chainer_kernels.functions.weight_gradients import Sum
from chainer_kernels.loops import recurrent_steps as loops

Array = np.ndarray
#: Gradients of the outputs, variables or ``None``.
Gradients = Sequence[Any]


class _Share(NamedTuple):
    """The part of a weight or a bias in a step.

    Attributes:
        place: The place of the sum to which it adds, among those of its step.
        operand: Number of the input that a weight is multiplied by; ``None`` for a
            bias.
    """

    place: int
    operand: int | None = None


class Step(chainer.FunctionNode):
    """A step of a recurrent link, as a function of its inputs and parameters.

    The backward may be called twice, for some inputs and then for the others. Once the
    function is out of the graph, this takes no more work than one call for all.
    """

    #: Parameters by their numbers among the inputs.
    shares: Mapping[int, _Share]

    def __init__(self) -> None:
        # A flat list, in which a pipeline finds the arrays that wait elsewhere.
        self._arrays: list[Array] = []
        # One part of the backward: the inputs that were answered, the gradients of the
        # outputs, and those of the sums, for the other part.
        self._known: tuple[frozenset[int], Gradients, list[Array]] | None = None

    def one_by_one(self, inputs: Sequence[chainer.Variable]) -> tuple:
        """Returns the outputs by functions of Chainer."""
        raise NotImplementedError

    def _gradients_of_sums(self, gradients: Sequence[Array | None]) -> list[Array]:
        """Returns the gradients of all sums, and what else :meth:`_of_input` needs.

        Args:
            gradients: Gradients of the outputs.
        """
        raise NotImplementedError

    def _of_input(self, i: int, found: Sequence[Array]) -> Array:
        """Returns the gradient of an input that is no parameter.

        Args:
            i: Number of the input.
            found: From :meth:`_gradients_of_sums`.
        """
        raise NotImplementedError

    def _operand(self, i: int) -> Array:
        """Returns the operand with a number."""
        return as_matrix(self.inputs[i].data)

    def backward(
        self, indexes: tuple[int, ...], grad_outputs: Gradients
    ) -> tuple[chainer.Variable, ...]:
        """Computes the gradients of some inputs."""
        if chainer.config.enable_backprop:
            with product_dtype.scope(product_dtype.FLOAT32):
                return self._differentiable(indexes, grad_outputs)
        found = self._found(indexes, grad_outputs)
        return tuple(chainer.as_variable(self._gradient(i, found)) for i in indexes)

    def _differentiable(
        self, indexes: tuple[int, ...], grad_outputs: Gradients
    ) -> tuple[chainer.Variable, ...]:
        """Returns gradients by Chainer's own functions, which have gradients again."""
        # One variable may be several inputs: each has a gradient of its own here.
        inputs = [F.identity(each) for each in self.get_retained_inputs()]
        pairs = zip(self.one_by_one(inputs), grad_outputs)
        given = [(y, g) for y, g in pairs if g is not None]
        outputs, gradients = zip(*given)
        wanted = [inputs[i] for i in indexes]
        return tuple(
            chainer.grad(outputs, wanted, gradients, enable_double_backprop=True)
        )

    def contributions(
        self, parameters: Mapping[int, chainer.Parameter], grad_outputs: Gradients
    ) -> dict[int, Contribution]:
        """Returns contributions to the gradients of parameters, by their number."""
        numbers = [i for i in parameters if i in self.shares]
        if not numbers:
            return {}
        found, told = self._found(numbers, grad_outputs), {}
        for i in numbers:
            place, operand = self.shares[i]
            g = found[place].T
            is_bias = operand is None
            told[i] = Sum(g.T, (0,)) if is_bias else Product(g, self._operand(operand))
        return told

    def _found(self, indexes: Iterable[int], grad_outputs: Gradients) -> list[Array]:
        """Returns the gradients of all sums, once for two parts of the inputs."""
        asked, known = frozenset(indexes), self._known
        self._known = None
        if known is not None:
            answered, given, found = known
            is_same = all(one is other for one, other in zip(given, grad_outputs))
            # An array may have other values when it is given a second time.
            if is_same and not answered & asked:
                return found
        arrays = [None if g is None else g.array for g in grad_outputs]
        found = self._gradients_of_sums(arrays)
        others = (x for i, x in enumerate(self.inputs) if i not in asked)
        if any(x.requires_grad for x in others) and is_out_of_graph(self):
            self._known = asked, tuple(grad_outputs), found
        return found

    def _gradient(self, i: int, found: Sequence[Array]) -> Array:
        """Returns the gradient of an input."""
        if i not in self.shares:
            return self._of_input(i, found)
        place, operand = self.shares[i]
        if operand is None:
            return total(found[place], (0,))
        return providers.active().product(found[place].T, self._operand(operand))

    def _times(self, gradient: Array, i: int) -> Array:
        """Returns the product of a gradient with the weights that are an input."""
        W = self.inputs[i].data
        kept_weights.count_application(W)
        return providers.active().product_with_weights(gradient, W)


def contributions(
    step: Step, parameters: Mapping[int, chainer.Parameter], grad_outputs: Gradients
) -> dict[int, Contribution]:
    """Returns contributions to the gradients of parameters, by their number.

    Args:
        step: The function.
        parameters: The inputs that are parameters, by number.
        grad_outputs: Gradients of the outputs, variables or ``None``.
    """
    return step.contributions(parameters, grad_outputs)


def _sums(x: Array, W: Array) -> Array:
    return providers.active().product_with_weights(as_matrix(x), W, is_transposed=True)


class LSTMStep(Step):
    """The next cells, and the output.

    Inputs are c (B or more, N), x (B, I), W (4 N, I), b (4 N,), and perhaps h (B, N)
    and U (4 N, N). Rows of c beyond those of x stay as they are.
    """

    shares = {2: _Share(0, 1), 3: _Share(0), 5: _Share(0, 4)}

    def forward(self, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        """Computes both."""
        self.retain_inputs(tuple(range(len(inputs))))
        c, x, W, b, *state = inputs
        c, n_live = np.ascontiguousarray(c), len(x)
        sums = _sums(x, W)
        others = _sums(*state) if state else sums[:0]
        c_next = np.empty_like(c)
        h = np.empty_like(c[:n_live])
        arrays = [sums, others, c[:n_live], c_next[:n_live], h]
        threads.run_slices(loops.lstm_step, arrays, b)
        c_next[n_live:] = c[n_live:]
        self._arrays = [sums, c_next]
        return c_next, h

    def one_by_one(self, inputs: Sequence[chainer.Variable]) -> tuple:
        """Returns the outputs by functions of Chainer."""
        c, x, W, b, *state = inputs
        sums = F.linear(x, W, b)
        return F.lstm(c, sums + F.linear(*state) if state else sums)

    def _gradients_of_sums(self, gradients: Sequence[Array | None]) -> list[Array]:
        gates, c_next = self._arrays
        c, n_live = np.ascontiguousarray(self.inputs[0].data), len(gates)
        gc, gh = gradients
        gc = np.zeros_like(c_next) if gc is None else gc.copy("C")
        gh = np.zeros_like(gc[:n_live]) if gh is None else np.ascontiguousarray(gh)
        g_sums = np.empty_like(gates)
        arrays = [gates, c[:n_live], c_next[:n_live], gh, gc[:n_live], g_sums]
        threads.run_slices(loops.lstm_step_grad, arrays)
        return [g_sums, gc]

    def _of_input(self, i: int, found: Sequence[Array]) -> Array:
        g_sums, gc = found
        return gc if i == 0 else self._times(g_sums, i + 1)


class FirstGRUStep(Step):
    """The next state where there is none before.

    Inputs are x (B, I), and a weight (N, I) and a bias (N,) of the gate z and of the
    candidate a.
    """

    shares = {1: _Share(0, 0), 2: _Share(0), 3: _Share(1, 0), 4: _Share(1)}

    def forward(self, inputs: tuple[Array, ...]) -> tuple[Array]:
        """Computes the next state."""
        self.retain_inputs(tuple(range(len(inputs))))
        x, W_z, b_z, W, b = inputs
        z, a = _sums(x, W_z), _sums(x, W)
        h_next, nothing = np.empty_like(z), z[:0]
        arrays = [z, nothing, a, nothing, nothing, h_next]
        threads.run_slices(loops.gru_step, arrays, b_z, b_z, b, b)
        self._arrays = [z, a]
        return (h_next,)

    def one_by_one(self, inputs: Sequence[chainer.Variable]) -> tuple:
        """Returns the output by functions of Chainer."""
        x, W_z, b_z, W, b = inputs
        return (F.sigmoid(F.linear(x, W_z, b_z)) * F.tanh(F.linear(x, W, b)),)

    def _gradients_of_sums(self, gradients: Sequence[Array | None]) -> list[Array]:
        z, a = self._arrays
        gz, ga, nothing = np.empty_like(z), np.empty_like(a), z[:0]
        gh = np.ascontiguousarray(gradients[0])
        arrays = [z, a, gh, nothing, gz, ga, nothing]
        threads.run_slices(loops.gru_step_grad, arrays)
        return [gz, ga]

    def _of_input(self, i: int, found: Sequence[Array]) -> Array:
        gz, ga = found
        gx = self._times(ga, 3)
        gx += self._times(gz, 1)
        return gx


class GRUStep(Step):
    """The next state.

    Inputs are x (B, I) and h (B, N), weights and biases. Weights (N, I) of x are those
    of the gate z, the candidate a and the gate r, in this order. Weights (N, N) of the
    state are those of r and z, with which h is multiplied, and of a, with which r h is.
    """

    #: The number of r h among operands.
    _RESET = -1
    _W_Z, _W_A, _W_R, _U_R, _U_Z, _U_A = range(2, 14, 2)
    _WEIGHTS = {
        _W_Z: _Share(0, 0),
        _W_A: _Share(1, 0),
        _W_R: _Share(2, 0),
        _U_R: _Share(2, 1),
        _U_Z: _Share(0, 1),
        _U_A: _Share(1, _RESET),
    }
    # The bias of a weight is the input behind it.
    shares = _WEIGHTS | {i + 1: _Share(place) for i, (place, _) in _WEIGHTS.items()}

    def forward(self, inputs: tuple[Array, ...]) -> tuple[Array]:
        """Computes the next state."""
        self.retain_inputs(tuple(range(len(inputs))))
        x, h, W_z, b_z, W, b, W_r, b_r, U_r, c_r, U_z, c_z, U, c = inputs
        h = np.ascontiguousarray(h)
        r, reset = _sums(x, W_r), np.empty_like(h)
        arrays = [r, _sums(h, U_r), h, reset]
        threads.run_slices(loops.gru_reset, arrays, b_r, c_r)
        z, a, h_next = _sums(x, W_z), _sums(x, W), np.empty_like(h)
        arrays = [z, _sums(h, U_z), a, _sums(reset, U), h, h_next]
        threads.run_slices(loops.gru_step, arrays, b_z, c_z, b, c)
        self._arrays = [z, a, r, reset]
        return (h_next,)

    def one_by_one(self, inputs: Sequence[chainer.Variable]) -> tuple:
        """Returns the output by functions of Chainer."""
        x, h, W_z, b_z, W, b, W_r, b_r, U_r, c_r, U_z, c_z, U, c = inputs
        r = F.sigmoid(F.linear(x, W_r, b_r) + F.linear(h, U_r, c_r))
        z = F.sigmoid(F.linear(x, W_z, b_z) + F.linear(h, U_z, c_z))
        a = F.tanh(F.linear(x, W, b) + F.linear(r * h, U, c))
        return (F.linear_interpolate(z, a, h),)

    def _operand(self, i: int) -> Array:
        return self._arrays[-1] if i == self._RESET else super()._operand(i)

    def _gradients_of_sums(self, gradients: Sequence[Array | None]) -> list[Array]:
        z, a, r, _ = self._arrays
        h = np.ascontiguousarray(self.inputs[1].data)
        gh = np.ascontiguousarray(gradients[0])
        gz, ga, gr, g_before = (np.empty_like(z) for _ in range(4))
        threads.run_slices(loops.gru_step_grad, [z, a, gh, h, gz, ga, g_before])
        g_reset = self._times(ga, self._U_A)
        threads.run_slices(loops.gru_reset_grad, [r, h, g_reset, gr, g_before])
        return [gz, ga, gr, g_before]

    def _of_input(self, i: int, found: Sequence[Array]) -> Array:
        gz, ga, gr, g_before = found
        if i == 0:
            gx = self._times(ga, self._W_A)
            gx += self._times(gz, self._W_Z)
            gx += self._times(gr, self._W_R)
            return gx
        gh = g_before + self._times(gz, self._U_Z)
        gh += self._times(gr, self._U_R)
        return gh
