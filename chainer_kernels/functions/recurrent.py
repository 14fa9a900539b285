"""n-step LSTM, GRU and RNN: one node for each layer and direction.

Chainer makes several nodes for each step. Here all steps' inputs are one product, and
so are all steps' shares in the gradient of a weight; only the product with the state is
left to each step::

    gates = X Wx^T                       X: the rows of all steps, one below the other
    for each step, of rows i to j:
        H[i:j] = h[:j - i]               the states before it, for the gradient of Wh
        gates[i:j], h = cell(gates[i:j] + h Wh^T)

    for each step, backwards:
        g[i:j] = cell'(gates[i:j], gh)
        gh = g[i:j] Wh
    gWx = g^T X,  gWh = g^T H,  gX = g Wx

Sequences that are over keep their state, whatever the order of their lengths.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Callable

import chainer
import chainer.functions as F
import numpy as np
from chainer.functions.noise.dropout import Dropout
from chainer.functions.rnn import n_step_gru, n_step_lstm

from chainer_kernels import kept_weights, providers, switch
from chainer_kernels.functions.halves import is_out_of_graph
from chainer_kernels.functions.recurrent_cells import (
    GRU,
    LSTM,
    RNN_RELU,
    RNN_TANH,
    Cell,
)
from chainer_kernels.half_precision import are_singles_or_halves, in_float32, rounded
from chainer_kernels.layouts import are_float32
from chainer_kernels.product_dtype import FLOAT32, here

Array = np.ndarray


def n_step_rnn_impl(
    step: Callable,
    n_layers: int,
    dropout_ratio: float,
    hx: Any,
    cx: Any,
    ws: Sequence[Sequence[Any]],
    bs: Sequence[Sequence[Any]],
    xs: Sequence[Any],
    use_bi_direction: bool,
) -> tuple:
    """Stands for ``n_step_rnn_impl``, on which all n-step functions are built."""
    cell = _cell(step)
    n_directions = 2 if use_bi_direction else 1
    shares = [(*w, *b) for w, b in zip(ws, bs)]
    if cell is None or not _are_covered(
        cell, n_layers, n_directions, hx, cx, shares, xs
    ):
        return NotImplemented
    lengths = [len(x) for x in xs]
    states = [F.separate(s) for s in (hx, cx)[: cell.n_states]]
    sequence = F.concat(xs, axis=0)
    last = []
    for layer in range(n_layers):
        outputs = []
        for direction in range(n_directions):
            i = n_directions * layer + direction
            x = _dropout(sequence, dropout_ratio, lengths) if layer else sequence
            node = NStepLayer(cell, step, lengths, bool(direction))
            y, *after = node.apply((x, *(s[i] for s in states), *shares[i]))
            outputs.append(y)
            last.append(after)
        sequence = F.concat(outputs, axis=1) if use_bi_direction else outputs[0]
    ends = np.cumsum(lengths)[:-1]
    ys = F.split_axis(sequence, ends, axis=0) if len(xs) > 1 else [sequence]
    hy, *cy = (F.stack(state) for state in zip(*last))
    return hy, cy[0] if cy else None, tuple(ys)


def _dropout(sequence: Any, ratio: float, lengths: Sequence[int]) -> Any:
    """Drops values of all steps; the draws are those of one step after the other."""
    if not chainer.config.train:
        return sequence
    function = Dropout(ratio)
    # For hooks that need to know which rows belong to which sequence.
    function.lengths = lengths
    return function.apply((sequence,))[0]


def _cell(step: Callable) -> Cell | None:
    """Returns what a function of Chainer's computes in a step."""
    if step is n_step_lstm._lstm:
        return LSTM
    if step is n_step_gru._gru:
        return GRU
    if step.__module__ == "chainer.functions.rnn.n_step_rnn":
        activation = inspect.getclosurevars(step).nonlocals.get("activation")
        return {"tanh": RNN_TANH, "relu": RNN_RELU}.get(activation)
    return None


def _are_covered(
    cell: Cell,
    n_layers: int,
    n_directions: int,
    hx: Any,
    cx: Any,
    shares: Sequence[Sequence[Any]],
    xs: Sequence[Any],
) -> bool:
    """Returns whether all arrays are of one covered dtype and of the right shapes."""
    states = [hx, cx][: cell.n_states]
    everything = [*states, *xs, *(each for share in shares for each in share)]
    if not xs or not are_singles_or_halves(*map(_array, everything)):
        return False
    n_used = n_layers * n_directions
    if hx.ndim != 3 or any(s.shape != hx.shape for s in states):
        return False
    _, batch, n = hx.shape
    width = xs[0].shape[-1]
    if len(hx) != n_used or len(shares) < n_used or not n_used:
        return False
    if any(x.ndim != 2 or x.shape[1] != width or len(x) > batch for x in xs):
        return False
    for i in range(n_used):
        n_in = width if i < n_directions else n * n_directions
        k = cell.n_gates
        right = [(n, n_in)] * k + [(n, n)] * k + [(n,)] * (2 * k)
        if [a.shape for a in shares[i]] != right:
            return False
    return True


def _array(x: Any) -> Any:
    return x.array if isinstance(x, chainer.Variable) else x


class NStepLayer(chainer.FunctionNode):
    """All steps of a layer in one direction.

    Inputs are x (rows of all steps, I) and each state (B, N). Then each gate has a
    weight (N, I) for x, and each a weight (N, N) for the state. Biases (N,) follow, one
    for each weight. Outputs are y (rows of all steps, N), and each state afterwards. An
    input on which nothing depends that was used has a gradient of zeros, where
    Chainer's graph leaves none.

    Args:
        cell: The cell that computes a step.
        step: The cell's step in Chainer's functions, for second derivatives.
        lengths: How many rows each step has.
        is_backward: Whether the last step is the first.
    """

    def __init__(
        self, cell: Cell, step: Callable, lengths: Sequence[int], is_backward: bool
    ) -> None:
        self._cell = cell
        self._step = step
        ends = np.cumsum(lengths)
        self._rows = [slice(e - n, e) for e, n in zip(ends.tolist(), lengths)]
        if is_backward:
            self._rows.reverse()
        self._half: tuple | None = None
        self._dtype = FLOAT32

    @property
    def label(self) -> str:
        """The name of the function, to be shown."""
        return f"NStep{self._cell.name}"

    @property
    def _is_single(self) -> bool:
        return self._dtype == FLOAT32

    def forward(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """Computes all steps."""
        cell = self._cell
        self.retain_inputs(range(len(inputs)))
        dtype = inputs[0].dtype
        if are_float32(inputs[0]):
            self._dtype = here()
        provider = providers.of(self._dtype)
        x, states, wx, wh, bx, bh = self._split(in_float32(inputs))
        states = [state.copy() for state in states]
        h = states[0]
        n = h.shape[1]
        # A gradient reads the same array of float32, but bfloat16 in another order.
        wx = self._stacked(wx).T if self._is_single else self._stacked(wx, True)
        gates = provider.product(x, wx)
        bias = cell.bias(cell.stacked(bx), cell.stacked(bh), gates)
        wh = self._stacked(wh, is_transposed=True)
        before = [np.empty((len(x), n), np.float32) for _ in states]
        kept = cell.kept(len(x), n)
        recurrent = np.empty((len(h), wh.shape[1]), np.float32)
        y = np.empty((len(x), n), np.float32)
        for rows in self._rows:
            live = slice(0, rows.stop - rows.start)
            for state, all_of_it in zip(states, before):
                all_of_it[rows] = state[live]
            product = provider.product(h[live], wh, out=recurrent[live])
            cell.forward(gates[rows], product, [s[live] for s in states], bias)
            if kept is not None:
                kept[rows] = product[:, -n:]
            y[rows] = h[live]
        self._memory = gates, before, kept
        return tuple(rounded(output, dtype) for output in (y, *states))

    def _stacked(self, weights: Sequence[Array], is_transposed: bool = False) -> Any:
        """Returns the weights of all gates, one below the other, or beside each other.

        They are right operands of products. Within a scope of unchanged weights they
        are made but once.
        """

        def make() -> Any:
            stacked = self._cell.stacked(weights)
            if is_transposed:
                # Not transposed, float32 is multiplied by few rows faster.
                turn = np.ascontiguousarray if self._is_single else np.asarray
                stacked = turn(stacked.T)
            return providers.of(self._dtype).as_operand(stacked)

        n_bytes = sum(each.nbytes for each in weights)
        key = "stacked gates", is_transposed, self._dtype
        return kept_weights.kept_of_all(weights, key, n_bytes, make)

    def _stacked_again(self, weights: Sequence[Array]) -> Any:
        """Returns stacked weights, and counts a use that Chainer does not see."""
        for each in weights:
            kept_weights.count_application(each)
        return self._stacked(weights)

    def _split(self, inputs: Sequence[Any]) -> tuple:
        """Returns x, the states, and the weights and biases of x and of h."""
        first, k = 1 + self._cell.n_states, self._cell.n_gates
        parts = [inputs[first + i * k : first + (i + 1) * k] for i in range(4)]
        return (inputs[0], list(inputs[1:first]), *parts)

    def backward(
        self, indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Computes the gradients of some inputs.

        Two calls, for x and the states and then for weights and biases, are no more
        work than one call for all.
        """
        inputs = self.get_retained_inputs()
        if chainer.config.enable_backprop:
            return self._differentiable(inputs, indexes, grad_outputs)
        arrays = [v.array for v in inputs]
        gradients = [None if g is None else g.array for g in grad_outputs]
        found = self._gradients(arrays, gradients, set(indexes))
        dtype = arrays[0].dtype
        return tuple(chainer.as_variable(rounded(found[i], dtype)) for i in indexes)

    def _gradients(
        self,
        inputs: Sequence[Array],
        grad_outputs: Sequence[Array | None],
        wanted: set[int],
    ) -> dict[int, Array]:
        """Returns gradients in float32 by the positions of inputs."""
        cell = self._cell
        inputs = in_float32(inputs)
        x, _, wx, *_ = self._split(inputs)
        provider = providers.of(self._dtype)
        first, k = 1 + cell.n_states, cell.n_gates
        is_half = (
            max(wanted, default=0) < first
            and any(v.requires_grad for v in self.inputs[1:])
            and is_out_of_graph(self)
        )
        g_states, g_x, g_h = self._gradients_of_sums(inputs, grad_outputs, is_half)
        _, before, _ = self._memory
        found = dict(enumerate(g_states, 1))
        n = len(wx[0])
        for start, gradient, operand in ((0, g_x, x), (1, g_h, before[0])):
            at = [first + start * k + place for place in cell.order]
            if wanted & {*at}:
                product = provider.product(gradient.T, operand)
                found.update(zip(at, product.reshape(k, n, -1)))
            at = [place + 2 * k for place in at]
            if wanted & {*at}:
                found.update(zip(at, gradient.sum(axis=0).reshape(k, n)))
        if 0 in wanted:
            found[0] = provider.product(g_x, self._stacked_again(wx))
        return found

    def _gradients_of_sums(
        self,
        inputs: Sequence[Array],
        grad_outputs: Sequence[Array | None],
        is_half: bool,
    ) -> tuple[list[Array], Array, Array]:
        """Returns the gradients of the states, and of the products with x and with h.

        If this is one half of the backward, they are kept for the other.
        """
        if self._half is not None:
            given, result = self._half
            self._half = None
            if all(one is other for one, other in zip(given, grad_outputs)):
                return result
        _, states, _, wh, *_ = self._split(inputs)
        g_y, *g_after = (
            None if g is None else in_float32([g])[0] for g in grad_outputs
        )
        g_states = [
            np.zeros_like(state) if g is None else g.copy("C")
            for g, state in zip(g_after, states)
        ]
        result = g_states, *self._cell.new_gradients(self._memory[0])
        self._steps_back(self._stacked_again(wh), g_y, *result)
        if is_half:
            self._half = grad_outputs, result
        return result

    def _steps_back(
        self,
        wh: Array,
        g_y: Array | None,
        g_states: Sequence[Array],
        g_x: Array,
        g_h: Array,
    ) -> None:
        """Computes the gradients of all sums, and of the states before the first step.

        Args:
            wh: The stacked weights of the states.
            g_y: Gradient of all outputs.
            g_states: Gradients of the states after the last step, replaced.
            g_x: Written: gradients of the products with x.
            g_h: Written: gradients of the products with the states. The array may
                be ``g_x``.
        """
        provider = providers.of(self._dtype)
        gates, before, kept = self._memory
        gh = g_states[0]
        through = np.empty_like(gh)
        for rows in reversed(self._rows):
            live = slice(0, rows.stop - rows.start)
            if g_y is not None:
                gh[live] += g_y[rows]
            keeps = self._cell.backward(
                gates[rows],
                None if kept is None else kept[rows],
                [b[rows] for b in before],
                [g[live] for g in g_states],
                g_x[rows],
                g_h[rows],
            )
            product = provider.product(g_h[rows], wh, out=through[live])
            if keeps:
                gh[live] += product
            else:
                gh[live] = product

    def _differentiable(
        self,
        inputs: Sequence[chainer.Variable],
        indexes: tuple[int, ...],
        grad_outputs: Sequence[chainer.Variable | None],
    ) -> tuple[chainer.Variable | None, ...]:
        """Returns gradients by Chainer's own functions, which have gradients again."""
        # One variable may be several inputs: each has a gradient of its own here.
        inputs = [F.identity(v) for v in inputs]
        with switch.disabled():
            x, states, wx, wh, bx, bh = self._split(inputs)
            w, b = (*wx, *wh), (*bx, *bh)
            state, cells = (*states, None)[:2]
            parts: dict[int, chainer.Variable] = {}
            for rows in self._rows:
                n_live = rows.stop - rows.start
                h, c = state[:n_live], None if cells is None else cells[:n_live]
                h, c = self._step(x[rows], h, c, w, b)
                parts[rows.start] = h
                state = F.concat([h, state[n_live:]], axis=0)
                if cells is not None:
                    cells = F.concat([c, cells[n_live:]], axis=0)
            y = F.concat([parts[start] for start in sorted(parts)], axis=0)
            outputs = [y, state] if cells is None else [y, state, cells]
            given = [(o, g) for o, g in zip(outputs, grad_outputs) if g is not None]
            return tuple(
                chainer.grad(
                    [output for output, _ in given],
                    [inputs[i] for i in indexes],
                    [gradient for _, gradient in given],
                    enable_double_backprop=True,
                )
            )
