"""One step of LSTM, GRU and RNN, and Chainer's function of such a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chainer_kernels import threads
from chainer_kernels.half_precision import in_float32, rounded
from chainer_kernels.layouts import are_float32
from chainer_kernels.loops import recurrent as loops

Array = np.ndarray


class Cell:
    """A recurrent cell, over the rows of a step.

    Its sums are blocks of N columns, one for each gate.

    Attributes:
        name: Name of the cell in Chainer's functions.
        n_states: 2 with a cell state, else 1.
        order: The places of the blocks among Chainer's weights.
    """

    name: str
    n_states = 1
    order: tuple[int, ...]

    @property
    def n_gates(self) -> int:
        """The number of blocks."""
        return len(self.order)

    def stacked(self, parts: Sequence[Array]) -> Array:
        """Returns weights or biases of all gates, one below the other."""
        return np.concatenate([parts[place] for place in self.order])

    def bias(self, bx: Array, bh: Array, gates: Array) -> Array:
        """Returns what :meth:`forward` is to add to each row."""
        return bx + bh

    def kept(self, n_rows: int, n: int) -> Array | None:
        """Returns an array for the last block of the products with the state."""
        return None

    def new_gradients(self, gates: Array) -> tuple[Array, Array]:
        """Returns arrays for the gradients of the products with x and with h.

        Both are the same array where each gate adds up nothing else than the two
        products.
        """
        gradient = np.empty_like(gates)
        return gradient, gradient

    def forward(
        self, gates: Array, recurrent: Array, states: Sequence[Array], bias: Array
    ) -> None:
        """Computes a step.

        Args:
            gates: Products with x, replaced by the activated gates.
            recurrent: Products with the states.
            states: Before the step, replaced by those after it.
            bias: From :meth:`bias`.
        """
        raise NotImplementedError

    def backward(
        self,
        gates: Array,
        kept: Array | None,
        before: Sequence[Array],
        g_states: Sequence[Array],
        g_x: Array,
        g_h: Array,
    ) -> bool:
        """Computes the gradients of a step.

        Args:
            gates: The activated gates.
            kept: The step's part of :meth:`kept`.
            before: The states before the step.
            g_states: Gradients of the states after the step. They are replaced by
                gradients of the states before it, without the parts that come
                through products.
            g_x: Written: gradients of the products with x.
            g_h: Written: gradients of the products with the states.

        Returns:
            Whether a part of the first state's gradient comes through no product.
        """
        raise NotImplementedError


class _LSTM(Cell):
    name = "LSTM"
    n_states = 2
    # Chainer's are i, f, a, o; here the three with a sigmoid come first.
    order = (0, 1, 3, 2)

    def forward(
        self, gates: Array, recurrent: Array, states: Sequence[Array], bias: Array
    ) -> None:
        h, c = states
        threads.run_slices(loops.lstm, [gates, recurrent, c, h], bias)

    def backward(
        self,
        gates: Array,
        kept: Array | None,
        before: Sequence[Array],
        g_states: Sequence[Array],
        g_x: Array,
        g_h: Array,
    ) -> bool:
        arrays = [gates, before[1], *g_states, g_x]
        threads.run_slices(loops.lstm_grad, arrays)
        return False


class _GRU(Cell):
    name = "GRU"
    order = (0, 1, 2)

    def bias(self, bx: Array, bh: Array, gates: Array) -> Array:
        # The reset gate multiplies the product with the states and its bias, so that
        # `bh` is added separately.
        gates += bx
        return bh

    def kept(self, n_rows: int, n: int) -> Array:
        return np.empty((n_rows, n), np.float32)

    def new_gradients(self, gates: Array) -> tuple[Array, Array]:
        return np.empty_like(gates), np.empty_like(gates)

    def forward(
        self, gates: Array, recurrent: Array, states: Sequence[Array], bias: Array
    ) -> None:
        threads.run_slices(loops.gru, [gates, recurrent, *states], bias)

    def backward(
        self,
        gates: Array,
        kept: Array | None,
        before: Sequence[Array],
        g_states: Sequence[Array],
        g_x: Array,
        g_h: Array,
    ) -> bool:
        arrays = [gates, kept, *before, *g_states, g_x, g_h]
        threads.run_slices(loops.gru_grad, arrays)
        return True


class _RNN(Cell):
    order = (0,)

    def __init__(self, activation: str) -> None:
        self.name = f"RNN{activation}"
        self._forward = {"Tanh": loops.rnn_tanh, "ReLU": loops.rnn_relu}[activation]
        self._is_tanh = activation == "Tanh"

    def forward(
        self, gates: Array, recurrent: Array, states: Sequence[Array], bias: Array
    ) -> None:
        threads.run_slices(self._forward, [gates, recurrent, *states], bias)

    def backward(
        self,
        gates: Array,
        kept: Array | None,
        before: Sequence[Array],
        g_states: Sequence[Array],
        g_x: Array,
        g_h: Array,
    ) -> bool:
        slope = 1 - gates * gates if self._is_tanh else gates > 0
        np.multiply(g_states[0], slope, out=g_x)
        return False


LSTM = _LSTM()
GRU = _GRU()
RNN_TANH = _RNN("Tanh")
RNN_RELU = _RNN("ReLU")


def lstm(function: Any, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
    """Stands for ``LSTM.forward``, for a batch of vectors."""
    dtype = inputs[0].dtype
    c, x = in_float32(inputs)
    if not are_float32(c, x) or x.ndim != 2:
        return NotImplemented
    function.retain_inputs((0, 1))
    n_live = len(x)
    c, x = map(np.ascontiguousarray, (c, x))
    c_next = np.empty_like(c)
    h = np.empty_like(c[:n_live])
    threads.run_slices(loops.lstm_cell, [x, c[:n_live], c_next[:n_live], h])
    c_next[n_live:] = c[n_live:]
    function.retain_outputs((0,))
    return rounded(c_next, dtype), rounded(h, dtype)


def lstm_grad(function: Any, inputs: tuple[Array | None, ...]) -> tuple[Array, ...]:
    """Stands for ``LSTMGrad.forward``, for a batch of vectors."""
    dtype = inputs[0].dtype
    given = in_float32([a for a in inputs if a is not None])
    if not are_float32(*given) or inputs[1].ndim != 2:
        return NotImplemented
    singles = iter(given)
    c, x, c_next, gc, gh = (None if a is None else next(singles) for a in inputs)
    n_live = len(x)
    gc = np.zeros(c.shape, c.dtype) if gc is None else gc.copy("C")
    gh = np.zeros_like(gc[:n_live]) if gh is None else gh
    gx = np.empty(x.shape, x.dtype)
    arrays = [x, c[:n_live], c_next[:n_live], gh, gc[:n_live], gx]
    threads.run_slices(loops.lstm_cell_grad, [*map(np.ascontiguousarray, arrays)])
    return rounded(gc, dtype), rounded(gx, dtype)
