"""Steps of ``L.LSTM`` and ``L.GRU`` as one function, against single functions."""

import contextlib
import weakref
from unittest import mock

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.link_hooks import TimerHook
from hypothesis import example, given
from hypothesis import strategies as st

import chainer_kernels
from chainer_kernels import kept_weights
from chainer_kernels.catalogue import backward_of, weights_of
from chainer_kernels.contributions import Scratch
from chainer_kernels.functions import recurrent_links
from chainer_kernels.functions.recurrent_steps import (
    FirstGRUStep,
    GRUStep,
    LSTMStep,
    Step,
)
from divisible.backward.backprop import backward, backward_input
from divisible.backward.weight_gradients import WeightGradients
from pipeline.stages.held import Graph
from pipeline.stages.leaving_arrays import take_out
from tests.support import kernels
from tests.support.bfloat16 import in_bfloat16
from tests.support.examples import examples
from tests.support.fusion import assert_same_bits

KINDS = [L.LSTM, L.StatelessLSTM, L.GRU, L.StatefulGRU, L.StatelessGRU]


def made(kind, n_in, n):
    """Returns a link, the same in each call, with biases other than zero."""
    np.random.seed(0)
    link = kind(n_in, n)
    for parameter in link.params():
        if parameter.ndim == 1:
            parameter.array[...] = np.random.normal(size=parameter.shape)
    return link


def one_by_one():
    """Leaves the links to Chainer's code, and its functions to their kernels."""
    return mock.patch.object(recurrent_links, "_parameters_of", lambda *_: None)


def step(link, x, state):
    """Returns the outputs of a step after a state, which is h, or c and h."""
    if isinstance(link, L.StatelessLSTM):
        return link(*state, x)
    if isinstance(link, L.StatelessGRU):
        return (link(*state, x),)
    if any(each is not None for each in state):
        link.set_state(*state)
    else:
        link.reset_state()
    y = link(x)
    return (link.c, y) if isinstance(link, L.LSTM) else (y,)


def states(link, n_rows, n, seed=1):
    n_states = 2 if isinstance(link, (L.LSTM, L.StatelessLSTM)) else 1
    return [kernels.arrays((n_rows, n), seed + i) for i in range(n_states)]


def trained(link, x, state, used=slice(None)):
    """Returns outputs, gradients of all inputs and parameters, and the function."""
    link.cleargrads()
    leaves = [None if a is None else chainer.Variable(a) for a in (x, *state)]
    outputs = step(link, leaves[0], leaves[1:])
    last = outputs[-1].creator
    for i, y in enumerate(outputs):
        y.grad = kernels.arrays(y.shape, 7 + i)
    total = sum(F.sum(y * kernels.arrays(y.shape, 7)) for y in outputs[used])
    total.backward()
    gradients = [leaf.grad for leaf in leaves if leaf is not None]
    gradients += [p.grad for _, p in sorted(link.namedparams())]
    return [*(y.array for y in outputs), *gradients], last


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
@examples(20)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), kernels.orders)
@example(16, 64, 64, "C")
@example(5, 300, 200, "C")
@example(33, 1, 7, "reversed")
@example(128, 3, 256, "C")
def test_a_step_has_the_bits_of_single_functions(kind, n_rows, n_in, n, order):
    link, x = made(kind, n_in, n), kernels.arrays((n_rows, n_in), 0, order)
    state = states(link, n_rows, n)
    found, function = trained(link, x, state)
    assert isinstance(function, Step)
    with one_by_one():
        expected, function = trained(link, x, state)
    assert not isinstance(function, Step)
    assert_same(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_agrees_with_chainer(kind):
    link, x = made(kind, 5, 4), kernels.arrays((3, 5), 0)
    state = states(link, 3, 4)
    found, _ = trained(link, x, state)
    with chainer_kernels.disabled():
        expected, _ = trained(link, x, state)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, 1e-4, 1e-5)


@pytest.mark.parametrize("kind", [L.LSTM, L.StatelessLSTM, L.GRU, L.StatefulGRU])
def test_a_first_step(kind):
    link, x = made(kind, 5, 6), kernels.arrays((3, 5), 0)
    nothing = [None] * len(states(link, 3, 6))
    found, function = trained(link, x, nothing)
    assert type(function) in (LSTMStep, FirstGRUStep)
    with one_by_one():
        expected, _ = trained(link, x, nothing)
    # Parameters of what a first step has not got have no gradient.
    assert_same(found, expected)
    assert any(each is None for each in found)


@pytest.mark.parametrize("given", ["c", "h"])
def test_one_of_the_states_of_lstm(given):
    link, x = made(L.StatelessLSTM, 5, 6), kernels.arrays((3, 5), 0)
    state = [a if name == given else None for name, a in zip("ch", states(link, 3, 6))]
    found, function = trained(link, x, state)
    assert type(function) is LSTMStep
    with one_by_one():
        expected, _ = trained(link, x, state)
    assert_same(found, expected)


@pytest.mark.parametrize("used", [slice(0, 1), slice(1, 2)])
def test_one_output_of_lstm(used):
    link, x = made(L.StatelessLSTM, 5, 6), kernels.arrays((3, 5), 0)
    state = states(link, 3, 6)
    found, _ = trained(link, x, state, used)
    with one_by_one():
        expected, _ = trained(link, x, state, used)
    assert_same(found, expected)


def sequence(link, batches, n_in):
    """Returns outputs and gradients of several steps, whose rows become fewer."""
    link.cleargrads()
    link.reset_state()
    xs = [chainer.Variable(kernels.arrays((b, n_in), i)) for i, b in enumerate(batches)]
    ys = [link(x) for x in xs]
    # Two functions use a state: the next step, and this one.
    loss = sum(F.sum(y * kernels.arrays(y.shape, 9)) for y in ys)
    loss.backward()
    gradients = [v.grad for v in (*xs, *link.params())]
    return [*(y.array for y in ys), link.h.array, *gradients]


@pytest.mark.parametrize(
    ("kind", "batches"),
    [
        (L.LSTM, [4, 4, 4]),
        (L.LSTM, [4, 3, 3, 1]),
        (L.GRU, [4, 4, 4]),
        (L.StatefulGRU, [1, 1]),
    ],
)
def test_sequences(kind, batches):
    link = made(kind, 5, 6)
    found = sequence(link, batches, 5)
    with one_by_one():
        expected = sequence(link, batches, 5)
    if kind is L.LSTM:
        assert_same_bits(found, expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, 1e-4, 1e-5)


def test_rows_without_samples_and_too_many_rows_are_chainers():
    link = made(L.LSTM, 5, 6)
    link(kernels.arrays((3, 5), 0))
    h, c = link.h, link.c
    assert link(kernels.arrays((0, 5), 0)).shape == (0, 6)
    np.testing.assert_array_equal(link.h.array, h.array)
    np.testing.assert_array_equal(link.c.array, c.array)
    with pytest.raises(TypeError, match="must be equal to or less than"):
        link(kernels.arrays((4, 5), 0))


def nothing_else():
    return contextlib.nullcontext()


def hooked(layer):
    hook = TimerHook()
    layer.add_hook(hook)
    return nothing_else()


def doubled(layer):
    class Doubled(L.Linear):
        pass

    layer.__class__ = Doubled
    return nothing_else()


def replaced(layer):
    forward = layer.forward
    layer.forward = lambda x: 2 * forward(x)
    return nothing_else()


def other_parameter(layer):
    class Elsewhere(chainer.Parameter):
        pass

    layer.W.__class__ = Elsewhere
    return nothing_else()


CHANGES = {
    "hook of a layer": hooked,
    "subclass": doubled,
    "replaced forward": replaced,
    "parameter elsewhere": other_parameter,
    "link hook": lambda _: TimerHook(),
    "function hook": lambda _: chainer.function_hooks.TimerHook(),
    "debug": lambda _: chainer.using_config("debug", True),
    "disabled": lambda _: chainer_kernels.disabled(),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_left_to_chainer(kind, change):
    link, x = made(kind, 5, 6), kernels.arrays((3, 5), 0)
    state = states(link, 3, 6)
    layer = link.lateral if hasattr(link, "lateral") else link.U_z
    with CHANGES[change](layer):
        found, function = trained(link, x, state)
        assert not isinstance(function, Step)
        with one_by_one():
            expected, _ = trained(link, x, state)
    assert_same(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_other_dtypes_and_images_are_left_to_chainer(kind):
    for dtype in ("e", "d"):
        with chainer.using_config("dtype", np.dtype(dtype)):
            link = made(kind, 5, 6)
        assert link.xp is np
        state = [chainer.Variable(a.astype(dtype)) for a in states(link, 3, 6)]
        y = step(link, kernels.arrays((3, 5), 0).astype(dtype), state)[-1]
        assert y.dtype == dtype
        assert not isinstance(y.creator, Step)
    link = made(kind, 6, 6)
    state = [chainer.Variable(a) for a in states(link, 3, 6)]
    y = step(link, kernels.arrays((3, 2, 3), 0), state)[-1]
    assert y.shape == (3, 6)
    assert not isinstance(y.creator, Step)


def test_layers_without_a_size():
    link = L.LSTM(None, 6)
    first = link(kernels.arrays((3, 5), 0))
    assert not isinstance(first.creator, Step)
    assert isinstance(link(kernels.arrays((3, 5), 0)).creator, Step)


@in_bfloat16
def test_products_in_bfloat16_are_single_functions():
    link = made(L.StatelessGRU, 5, 6)
    (h,) = states(link, 3, 6)
    with chainer_kernels.products("bfloat16"):
        y = link(chainer.Variable(h), kernels.arrays((3, 5), 0))
    assert not isinstance(y.creator, Step)


@in_bfloat16
@pytest.mark.parametrize("kind", [L.StatelessLSTM, L.StatelessGRU])
@pytest.mark.parametrize("again", [False, True])
def test_a_backward_is_in_the_dtype_of_its_forward(kind, again):
    link, x = made(kind, 5, 6), chainer.Variable(kernels.arrays((3, 5), 0))
    y = step(link, x, [*map(chainer.Variable, states(link, 3, 6))])[-1]
    wanted = [x, *(p for _, p in sorted(link.namedparams()))]
    gy = chainer.Variable(kernels.arrays(y.shape, 3))
    expected = chainer.grad([y], wanted, [gy], enable_double_backprop=again)
    with chainer_kernels.products("bfloat16"):
        found = chainer.grad([y], wanted, [gy], enable_double_backprop=again)
    assert_same([g.array for g in found], [g.array for g in expected])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_gradients(kind):
    link, x = made(kind, 3, 4), kernels.arrays((2, 3), 0)

    def second():
        leaves = [*map(chainer.Variable, (x, *states(link, 2, 4)))]
        wanted = [*leaves, *(p for _, p in sorted(link.namedparams()))]
        loss = sum(F.sum(y * y) for y in step(link, leaves[0], leaves[1:]))
        first = chainer.grad([loss], wanted, enable_double_backprop=True)
        loss = sum(F.sum(each * each) for each in first)
        found = [*first, *chainer.grad([loss], wanted)]
        return [each.array for each in found]

    found = second()
    with chainer_kernels.disabled():
        expected = second()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, 1e-3, 1e-4 * np.abs(other).max())


@pytest.mark.parametrize(
    ("kind", "is_first"),
    [(kind, False) for kind in KINDS] + [(L.LSTM, True), (L.GRU, True)],
)
def test_contributions_are_what_backward_returns(kind, is_first):
    link, x = made(kind, 5, 6), kernels.arrays((3, 5), 0)
    state = states(link, 3, 6)
    if is_first:
        state = [None] * len(state)
    variables = [None if a is None else chainer.Variable(a) for a in state]
    *_, y = step(link, chainer.Variable(x), variables)
    function = y.creator
    assert backward_of(type(function)).is_splittable
    rule = weights_of(type(function))
    assert type(function) in (LSTMStep, GRUStep, FirstGRUStep)
    parameters = {
        i: node.get_variable()
        for i, node in enumerate(function.inputs)
        if isinstance(node.get_variable_or_none(), chainer.Parameter)
    }
    gy = chainer.Variable(kernels.arrays((3, 6), 3))
    given = (*[None] * (len(function.outputs) - 1), gy)
    with chainer.no_backprop_mode():
        expected = function.backward(tuple(parameters), given)
        shares = rule(function, parameters, given)
    assert shares.keys() == parameters.keys()
    for i, one in zip(parameters, expected):
        out = np.full(one.shape, np.nan, "f")
        shares[i].write(out)
        np.testing.assert_array_equal(out, one.array)
        shares[i].add(out, Scratch())
        np.testing.assert_allclose(out, 2 * one.array, 1e-5, 1e-6)


class Steps(chainer.Chain):
    """A recurrent link that is called with one time after the other."""

    def __init__(self, kind):
        super().__init__()
        with self.init_scope():
            self.inner = made(kind, 5, 6)

    def forward(self, x):
        self.inner.reset_state()
        return F.stack([self.inner(x[:, i]) for i in range(x.shape[1])], axis=1)


@pytest.mark.parametrize("kind", [L.LSTM, L.GRU])
@pytest.mark.parametrize("is_split", [False, True])
def test_microbatches_whole_and_in_halves(kind, is_split):
    model = Steps(kind)
    arrays = [kernels.arrays((b, 4, 5), b) for b in (3, 1, 2)]
    model.cleargrads()
    leaves = [*map(chainer.Variable, arrays)]
    for leaf in leaves:
        loss = F.sum(model(leaf) ** 2)
        loss.backward()
    expected = {name: p.grad for name, p in model.namedparams()}
    gradients = WeightGradients(model.params)
    gradients.begin()
    counted = mock.patch.object(
        GRUStep if kind is L.GRU else LSTMStep,
        "_gradients_of_sums",
        autospec=True,
        side_effect=(GRUStep if kind is L.GRU else LSTMStep)._gradients_of_sums,
    )
    with counted as count:
        pending = []
        for leaf in leaves:
            x = chainer.Variable(leaf.array)
            y = model(x)
            run = backward_input if is_split else backward
            found = run([x], [y], [2 * y.array], gradients)
            if is_split:
                found, rest = found
                pending.append(rest)
            np.testing.assert_allclose(found[0], leaf.grad, 1e-4, 1e-5)
        for rest in pending:
            rest.run()
    # Once for each step, whether its backward runs whole or in halves.
    assert count.call_count == 3 * (4 if kind is L.LSTM else 3)
    gradients.finish()
    for name, parameter in model.namedparams():
        np.testing.assert_allclose(parameter.grad, expected[name], 1e-4, 1e-5)


def test_a_learned_state_is_no_weight():
    link, x = made(L.StatelessLSTM, 5, 6), kernels.arrays((3, 5), 0)
    c, h = (chainer.Parameter(a) for a in states(link, 3, 6))
    gradients = WeightGradients(lambda: [c, h, *link.params()])
    gradients.begin()
    leaf = chainer.Variable(x)
    _, y = link(c, h, leaf)
    (gx,) = backward([leaf], [y], [np.ones_like(y.array)], gradients)
    gradients.finish()
    found = [gx, c.grad, h.grad, *(p.grad for p in link.params())]
    for parameter in (c, h, *link.params()):
        parameter.cleargrad()
    leaf = chainer.Variable(x)
    _, y = link(c, h, leaf)
    y.grad = np.ones_like(y.array)
    y.backward()
    assert_same(found, [leaf.grad, c.grad, h.grad, *(p.grad for p in link.params())])


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_waits_for_the_backward_can_leave_memory(kind):
    link, x = made(kind, 5, 6), kernels.arrays((300, 5), 0)
    arrays = [x, *states(link, 300, 6)]
    expected, _ = trained(link, x, arrays[1:])
    n_outputs = len(expected) - len(arrays) - len([*link.params()])
    link.cleargrads()
    leaves = tuple(chainer.Variable(a.copy()) for a in arrays)
    outputs = step(link, leaves[0], leaves[1:])
    if hasattr(link, "reset_state"):
        link.reset_state()
    hidden = [weakref.ref(a) for a in outputs[-1].creator._arrays]
    left = take_out(Graph(leaves, {}, tuple(outputs), {}), [link])
    copies = [buffer.copy() for buffer in left.buffers]
    del left.buffers[:]
    assert not any(each() is not None for each in hidden)
    left.come_back(copies)
    assert len(outputs) == n_outputs
    sum(F.sum(y * kernels.arrays(y.shape, 7)) for y in outputs).backward()
    found = [y.array for y in outputs] + [leaf.grad for leaf in leaves]
    found += [p.grad for _, p in sorted(link.namedparams())]
    assert_same(found, expected)


def test_the_array_of_a_gradient_may_get_other_values():
    link, x = made(L.StatelessLSTM, 5, 6), chainer.Variable(kernels.arrays((3, 5), 0))
    _, y = link(None, None, x)
    gy = chainer.Variable(kernels.arrays(y.shape, 3))
    found = []
    for _ in range(2):
        (gx,) = chainer.grad([y], [x], [gy])
        found.append(gx.array.copy())
        gy.array *= 2
    np.testing.assert_array_equal(found[1], 2 * found[0])


@pytest.mark.parametrize("kind", [L.StatelessLSTM, L.StatelessGRU])
def test_gradients_of_parameters_after_those_of_inputs(kind):
    link, arrays = made(kind, 5, 6), [kernels.arrays((3, 5), 0)]
    leaves = [*map(chainer.Variable, arrays + states(link, 3, 6))]
    y = step(link, leaves[0], leaves[1:])[-1]
    gy = chainer.Variable(kernels.arrays(y.shape, 3))
    wanted = [p for _, p in sorted(link.namedparams())]
    _, *expected = chainer.grad([y], [*leaves, *wanted], [gy])[len(leaves) - 1 :]
    chainer.grad([y], leaves[:1], [gy])
    # As a hook does that clips gradients.
    gy.array *= 2
    for one, other in zip(chainer.grad([y], wanted, [gy]), expected, strict=True):
        np.testing.assert_array_equal(one.array, 2 * other.array)


def test_weights_that_stay_are_compared_no_more_than_needed(monkeypatch):
    sums = []
    own = kept_weights._checksum
    monkeypatch.setattr(
        kept_weights, "_checksum", lambda a: sums.append(a.shape) or own(a)
    )
    link = made(L.LSTM, 300, 200)
    xs = [kernels.arrays((16, 300), i) for i in range(2)]

    def run():
        link.cleargrads()
        link.reset_state()
        loss = sum(F.sum(link(x)) for x in xs)
        loss.backward()
        return [loss.array, *(p.grad for p in link.params())]

    expected = run()
    with chainer_kernels.unchanged_weights():
        first = run()
        n_first = len(sums)
        again = run()
        assert len(sums) == n_first
        assert_same(again, first)
        link.lateral.W.array *= 2
        changed = run()
    for one, other in zip(first, expected, strict=True):
        np.testing.assert_allclose(one, other, 1e-3, 1e-3)
    link.lateral.W.array /= 2
    assert any((one != other).any() for one, other in zip(changed, first))
