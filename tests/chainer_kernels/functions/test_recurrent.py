"""Kernels of n-step LSTM, GRU and RNN against Chainer's functions."""

import functools
from unittest import mock

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import chainer_kernels
from chainer_kernels import catalogue
from chainer_kernels.functions import recurrent, recurrent_cells
from tests.support import kernels
from tests.support.bfloat16 import in_bfloat16
from tests.support.examples import examples

# Chainer's function, its options, the number of gates, whether it has cells, and
# the number of directions.
FUNCTIONS = [
    (F.n_step_lstm, {}, 4, True, 1),
    (F.n_step_bilstm, {}, 4, True, 2),
    (F.n_step_gru, {}, 3, False, 1),
    (F.n_step_bigru, {}, 3, False, 2),
    (F.n_step_rnn, {"activation": "tanh"}, 1, False, 1),
    (F.n_step_birnn, {"activation": "relu"}, 1, False, 2),
]
KERNEL = ["n_step_rnn_impl"]


def problem(function, lengths, sizes, seed=0, order="C", dropout=0.0):
    """Returns a function of variables, to variables, and its arrays."""
    compute, options, n_gates, has_cells, n_directions = function
    n_layers, batch, n_in, n = sizes
    n_states = 1 + has_cells
    shapes = [(n_layers * n_directions, batch, n)] * n_states
    for layer in range(n_layers):
        width = n * n_directions if layer else n_in
        share = [(n, width)] * n_gates + [(n, n)] * n_gates + [(n,)] * (2 * n_gates)
        shapes += share * n_directions
    shapes += [(length, n_in) for length in lengths]
    arrays = [
        kernels.arrays(shape, seed + i, order) / np.float32(2 if len(shape) == 2 else 1)
        for i, shape in enumerate(shapes)
    ]

    def call(*variables):
        variables = list(variables)
        states = [variables.pop(0) for _ in range(n_states)]
        ws, bs = [], []
        for _ in range(n_layers * n_directions):
            ws.append([variables.pop(0) for _ in range(2 * n_gates)])
            bs.append([variables.pop(0) for _ in range(2 * n_gates)])
        np.random.seed(seed)
        *after, ys = compute(n_layers, dropout, *states, ws, bs, variables, **options)
        return [*after, *ys]

    return call, arrays


@examples(100)
@given(
    st.sampled_from(FUNCTIONS),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.tuples(*[st.integers(1, 3)] * 4),
    kernels.seeds,
    kernels.orders,
    st.sampled_from([0.0, 0.4]),
)
@example(FUNCTIONS[0], [5, 5, 5], (2, 5, 4, 20), 0, "C", 0.3)
@example(FUNCTIONS[1], [5, 3, 3, 1], (2, 5, 4, 3), 0, "gaps", 0.3)
@example(FUNCTIONS[2], [5, 3, 3, 1], (2, 5, 4, 20), 0, "C", 0.0)
@example(FUNCTIONS[3], [5, 3, 3, 1], (2, 6, 4, 3), 0, "C", 0.0)
@example(FUNCTIONS[4], [5, 3, 3, 1], (2, 6, 4, 20), 0, "C", 0.0)
@example(FUNCTIONS[5], [5, 3, 3, 1], (2, 5, 4, 3), 0, "C", 0.3)
def test_n_step(function, lengths, sizes, seed, order, dropout):
    n_layers, batch, n_in, n = sizes
    # Chainer takes any order of lengths, but none above that of the states.
    sizes = n_layers, max(batch, *lengths), n_in, n
    call, arrays = problem(function, lengths, sizes, seed % 1000, order, dropout)
    # Of arrays of one element, what is left of a sum may be small.
    kernels.check(call, arrays, KERNEL, atol=3e-4)


@examples(100)
@given(
    st.sampled_from(FUNCTIONS),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.tuples(*[st.integers(1, 3)] * 4),
    kernels.seeds,
    kernels.orders,
    st.sampled_from([0.0, 0.4]),
)
def test_n_step_of_float16(function, lengths, sizes, seed, order, dropout):
    n_layers, batch, n_in, n = sizes
    sizes = n_layers, max(batch, *lengths), n_in, n
    call, arrays = problem(function, lengths, sizes, seed % 1000, order, dropout)
    halves = [kernels.in_order(a.astype("e"), order) for a in arrays]
    # Layers and steps may hand on what was rounded.
    kernels.check_float16(call, halves, KERNEL, tolerance=1e-2)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_layer_of_float16_is_rounded_once(function):
    n_directions = function[-1]
    call, arrays = problem(function, [3, 2], (1, 3, 4, 5))
    outputs, _ = kernels.run(call, [a.astype("e") for a in arrays])
    right, _ = kernels.run(call, [a.astype("e").astype("f") for a in arrays])
    assert len(outputs) == 1 + function[3] + 2
    assert outputs[0].shape == (n_directions, 3, 5)
    for output, exact in zip(outputs, right):
        np.testing.assert_array_equal(output, exact.astype("e"), strict=True)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_of_gradients(function):
    call, arrays = problem(function, [3, 2], (2, 3, 2, 2), dropout=0.3)

    def second():
        variables = [chainer.Variable(a) for a in arrays]
        y = functools.reduce(lambda s, v: s + F.sum(v * v), call(*variables), 0)
        first = chainer.grad([y], variables, enable_double_backprop=True)
        z = sum(F.sum(g * g) for g in first)
        return [g.array for g in [*first, *chainer.grad([z], variables)]]

    with kernels.called() as names:
        ours = second()
    assert names >= {*KERNEL}
    with chainer_kernels.disabled():
        right = second()
    for our, exact in zip(ours, right):
        np.testing.assert_allclose(our, exact, 1e-3, 1e-4)


def test_one_weight_for_several_gates():
    call, arrays = problem(FUNCTIONS[0], [3, 2], (1, 3, 2, 2))
    shared = chainer.Variable(arrays[2])

    def gradient(double):
        inputs = [*map(chainer.Variable, arrays)]
        inputs[2:6] = [shared] * 4
        loss = sum(F.sum(y * y) for y in call(*inputs))
        (found,) = chainer.grad([loss], [shared], enable_double_backprop=double)
        return found.array

    with chainer_kernels.disabled():
        right = gradient(False)
    for double in (False, True):
        np.testing.assert_allclose(gradient(double), right, 1e-5, 1e-5)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("used", range(3))
def test_some_outputs(function, used):
    """Gradients of zeros may stand where Chainer has none."""
    call, arrays = problem(function, [3, 2, 2], (2, 3, 2, 2))

    def gradients():
        variables = [
            chainer.Variable(a, requires_grad=bool(i % 2)) for i, a in enumerate(arrays)
        ]
        F.sum(call(*variables)[used]).backward()
        return [v.grad for v in variables]

    ours = gradients()
    with chainer_kernels.disabled():
        right = gradients()
    for our, their in zip(ours, right):
        if our is not None:
            their = np.zeros_like(our) if their is None else their
            np.testing.assert_allclose(our, their, 1e-4, 1e-5)
        else:
            assert their is None


def test_backward_twice_and_gradients_of_their_own():
    call, arrays = problem(FUNCTIONS[0], [3, 2], (1, 3, 2, 2))
    variables = [*map(chainer.Variable, arrays)]
    loss = sum(F.sum(y) for y in call(*variables))
    once, again = (chainer.grad([loss], variables) for _ in range(2))
    for one, other in zip(once, again):
        np.testing.assert_array_equal(one.array, other.array)
    # Chainer's hooks change gradients in place.
    for i, one in enumerate(once):
        assert not any(np.shares_memory(one.array, g.array) for g in once[i + 1 :])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_backward_in_halves(function):
    """The steps are gone back once, as catalogue.BACKWARD says."""
    call, arrays = problem(function, [3, 2], (1, 3, 2, 2))
    outputs = call(*map(chainer.Variable, arrays))
    node = outputs[0].creator.inputs[0].creator
    while not isinstance(node, recurrent.NStepLayer):
        node = node.inputs[0].creator
    assert catalogue.backward_of(type(node)).is_splittable
    shapes = [(5, 2), *[(3, 2)] * node._cell.n_states]
    gradients = [chainer.Variable(kernels.arrays(shape, 0)) for shape in shapes]
    first = 1 + node._cell.n_states
    others, weights = range(first), range(first, len(node.inputs))
    with chainer.no_backprop_mode():
        whole = node.backward((*others, *weights), gradients)
        # While the graph is there, the same arrays may come with other values.
        node.backward((*others,), gradients)
        for gradient in gradients:
            gradient.array *= 2
        doubled = node.backward((*weights,), gradients)
        for gradient in gradients:
            gradient.array /= 2
        for output in filter(None, (reference() for reference in node.outputs)):
            output.unchain()
        spied = mock.patch.object(node, "_steps_back", side_effect=node._steps_back)
        with spied as steps:
            half = node.backward((*others,), gradients)
            halves = *half, *node.backward((*weights,), gradients)
        assert steps.call_count == 1
        changed = [gradients[0] + 1, *gradients[1:]]
        node.backward((*others,), gradients)
        other = node.backward((*others,), changed)
    for one, half in zip(whole, halves):
        np.testing.assert_array_equal(one.array, half.array)
    for one, twice in zip(whole[first:], doubled, strict=True):
        np.testing.assert_array_equal(2 * one.array, twice.array)
    assert (other[1].array != whole[1].array).any()


@pytest.mark.parametrize(
    "link, n_gates",
    [(L.NStepLSTM, 4), (L.NStepBiGRU, 3), (L.NStepRNNTanh, 1), (L.NStepBiRNNReLU, 1)],
)
def test_links(link, n_gates):
    model = link(2, 3, 4, 0.5)
    xs = [kernels.arrays((length, 3), length) for length in (2, 4, 1)]

    def trained():
        np.random.seed(0)
        model.cleargrads()
        *_, ys = model(*[None] * model.n_cells, xs)
        sum(F.sum(y * y) for y in ys).backward()
        return [y.array for y in ys], [p.grad for p in model.params()]

    with kernels.called() as names:
        ours, our_gradients = trained()
    assert names >= {*KERNEL}
    again, _ = trained()
    with chainer_kernels.disabled():
        right, right_gradients = trained()
    for our, same, their in zip(ours, again, right):
        np.testing.assert_array_equal(our, same)
        np.testing.assert_allclose(our, their, 1e-5, 1e-6)
    for our, their in zip(our_gradients, right_gradients):
        np.testing.assert_allclose(our, their, 1e-4, 1e-5)


def test_hooks_see_a_node_for_each_layer():
    class Labels(chainer.FunctionHook):
        name = "labels"
        seen: list = []

        def forward_preprocess(self, function, inputs):
            self.seen.append(function.label)

    call, arrays = problem(FUNCTIONS[1], [3, 2], (2, 3, 2, 2))
    with Labels() as hook:
        call(*arrays)
    assert hook.seen.count("NStepLSTM") == 4


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("fault", ["dtype", "too many rows", "width", "layers"])
def test_faults_are_chainers(function, fault):
    call, arrays = problem(function, [3, 2], (1, 3, 2, 2))
    if fault == "dtype":
        arrays[-1] = arrays[-1].astype("d")
    elif fault == "too many rows":
        arrays[-1] = kernels.arrays((4, 2), 0)
    elif fault == "width":
        arrays[3] = kernels.arrays((2, 3), 0)
    else:
        arrays[0] = arrays[0][:0]
    with chainer_kernels.disabled(), pytest.raises(Exception) as theirs:
        call(*arrays)
    with pytest.raises(type(theirs.value)) as ours:
        call(*arrays)
    assert str(ours.value) == str(theirs.value)


@given(st.integers(0, 4), st.integers(0, 3), st.integers(0, 40), kernels.orders)
def test_lstm(n_live, n_over, n, order):
    shapes = [(n_live + n_over, n), (n_live, 4 * n)]
    inputs = [kernels.arrays(shape, 0, order) for shape in shapes]
    kernels.check(F.lstm, inputs, ["LSTM.forward", "LSTMGrad.forward"])


@given(st.integers(0, 4), st.integers(0, 3), st.integers(1, 40), kernels.orders)
def test_lstm_of_float16(n_live, n_over, n, order):
    shapes = [(n_live + n_over, n), (n_live, 4 * n)]
    halves = [kernels.arrays(shape, 0).astype("e") for shape in shapes]
    halves = [kernels.in_order(a, order) for a in halves]
    names = ["LSTM.forward", "LSTMGrad.forward"]
    # The gradient is that of the rounded state.
    kernels.check_float16(F.lstm, halves, names, tolerance=5e-3)


@pytest.mark.parametrize("used", [0, 1])
def test_one_output_of_lstm(used):
    inputs = [kernels.arrays(shape, 0) for shape in ((4, 5), (3, 20))]
    names = ["LSTM.forward", "LSTMGrad.forward"]
    kernels.check(lambda c, x: F.lstm(c, x)[used], inputs, names)


def test_lstm_of_images_is_left_to_chainer():
    inputs = [kernels.arrays(shape, 0) for shape in ((4, 5, 2), (3, 20, 2))]
    with kernels.called() as names:
        F.lstm(*inputs)
    assert not names


def test_cells_of_users_are_left_to_chainer():
    assert recurrent._cell(lambda x, h, c, w, b: (h, c)) is None


@pytest.mark.parametrize("changed", [None, "first", "last"])
def test_gates_are_stacked_once_while_weights_stay(changed, monkeypatch):
    stacked = []
    own = recurrent_cells.Cell.stacked

    def counted(cell, parts):
        stacked.append(len(parts))
        return own(cell, parts)

    np.random.seed(0)
    # Smaller weights are not kept.
    link = L.NStepLSTM(1, 300, 300, 0.0)
    xs = [kernels.arrays((2, 300), seed) for seed in range(3)]
    weights = [link.ws[0][i] for i in range(8)]

    def run():
        link.cleargrads()
        _, _, ys = link(None, None, xs)
        sum(F.sum(y) for y in ys).backward()
        return [y.array for y in ys] + [param.grad for param in link.params()]

    expected = run()
    monkeypatch.setattr(recurrent_cells.Cell, "stacked", counted)
    with chainer_kernels.unchanged_weights():
        run()
        n_first = len(stacked)
        if changed is not None:
            weights[0 if changed == "first" else 7].array += 1
        found = run()
        n_again = len(stacked) - n_first
    if changed is None:
        # Only the biases, which are small, are stacked again.
        assert n_again == 2 < n_first
    else:
        expected = run()
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("function", FUNCTIONS)
@in_bfloat16
def test_n_step_in_bfloat16(function):
    """The operands are those of Chainer's own steps, which take one gate at a time."""
    call, arrays = problem(function, [5, 5, 4], (2, 5, 24, 40))

    def run(dtype):
        with chainer_kernels.products(dtype), chainer_kernels.unchanged_weights():
            outputs, gradients = kernels.run(call, arrays)
        return [a for a in (*outputs, *gradients) if a is not None]

    with kernels.called() as names:
        ours = run("bfloat16")
    assert names >= {*KERNEL}
    single = run("float32")
    with mock.patch.object(recurrent, "_are_covered", lambda *_: False):
        right = run("bfloat16")
    for our, exact, other in zip(ours, right, single):
        # Where sums differ in their last bits, the next rounding may differ.
        assert _distance(our, exact) <= 0.1 * _distance(other, exact) + 1e-6


def _distance(a, b):
    return np.abs(a - b).mean() / max(np.abs(b).mean(), 1e-3)
