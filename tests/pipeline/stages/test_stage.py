"""One stage's microbatches, without MPI."""

import gc
import itertools
import weakref

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, RandomKey, keyed_random_state, pop, stash
from divisible.backward.tensors import to_tensor
from divisible.communication.signatures import Tensor
from pipeline.stages import stage as stage_module
from pipeline.stages.loss import Loss
from tests.support.equivalence import assert_close

N_MICROBATCHES = 3


class Stage(stage_module.Stage):
    """Without skip connections."""

    def begin(self, step=0):
        super().begin(step)

    def forward(self, microbatch, inputs):
        return super().forward(microbatch, inputs, {})[0]

    def backward(self, microbatch, gradients):
        return super().backward(microbatch, gradients, {})[0]

    def backward_input(self, microbatch, gradients):
        return super().backward(microbatch, gradients, {}, split=True)[0]


def layers():
    np.random.seed(0)
    return Divisible(L.Linear(4, 5), F.tanh, L.Linear(5, 3))


def make_inputs(n_in=4, sizes=(2, 3, 1)):
    rng = np.random.RandomState(1)
    return [rng.normal(size=(n, n_in)).astype(np.float32) for n in sizes]


def variable(array):
    """What comes from a stage before."""
    return (Tensor(array, True),)


def ones(message):
    return tuple(Tensor(np.ones_like(tensor.array)) for tensor in message)


def reference(xs):
    """Input gradients and the sum of the weight gradients, by Chainer itself."""
    model = layers()
    model.cleargrads()
    input_gradients = []
    for x in map(chainer.Variable, xs):
        F.sum(model(x)).backward()
        input_gradients.append(x.grad)
    return input_gradients, {path: p.grad for path, p in model.namedparams()}


def assert_gradients(model, expected):
    actual = dict(model.namedparams())
    assert actual.keys() == expected.keys()
    for path, gradient in expected.items():
        assert_close(actual[path].grad, gradient, 1e-5, 1e-6, path)


@pytest.mark.parametrize("order", list(itertools.permutations(range(N_MICROBATCHES))))
@pytest.mark.parametrize("is_split", [False, True])
def test_microbatches_in_flight_go_backward_in_any_order(order, is_split):
    xs = make_inputs()
    stage = Stage(layers())
    stage.begin()
    outputs = [stage.forward(i, variable(x)) for i, x in enumerate(xs)]
    gradients = {}
    backward = stage.backward_input if is_split else stage.backward
    for i in order:
        (gradients[i],) = backward(i, ones(outputs[i]))
    if is_split:
        # The weight gradients in yet another order.
        for i in sorted(order, key=lambda i: (i + 1) % N_MICROBATCHES):
            stage.backward_weight([i])
    stage.finish()
    input_gradients, weight_gradients = reference(xs)
    for i, expected in enumerate(input_gradients):
        assert_close(gradients[i].array, expected)
    assert_gradients(stage.layers, weight_gradients)


def test_weight_gradients_wait_for_their_action():
    (x,) = make_inputs(sizes=[2])
    stage = Stage(layers())
    stage.begin()
    stage.backward_input(0, ones(stage.forward(0, variable(x))))
    stage.finish()
    assert all(p.grad is None for p in stage.layers.params())


def test_other_arrays_than_numbers_do_not_pass():
    for array in (np.array([{}], object), np.zeros(2, [("a", float)])):
        with pytest.raises(TypeError, match="returned an array of"):
            to_tensor(array)


def test_forward_returns_what_the_layers_do():
    (x,) = make_inputs(sizes=[2])
    (y,) = Stage(layers()).forward(0, variable(x))
    np.testing.assert_array_equal(y.array, layers()(x).array)
    assert y.requires_grad is True


def test_an_empty_message_calls_no_layer():
    def refuse(x):
        raise AssertionError("called")

    stage = Stage(Divisible(refuse))
    stage.begin()
    assert stage.forward(0, ()) == ()
    assert stage.backward(0, ()) == ()
    assert stage.backward_input(0, ()) == ()
    stage.backward_weight([0])
    stage.finish()


def test_arrays_of_the_user_get_no_gradient():
    (x,) = make_inputs(sizes=[2])
    seen = []

    def look(x):
        seen.append(type(x))
        return x

    model = Divisible(look, *layers())
    stage = Stage(model)
    stage.begin()
    (gradient,) = stage.backward(0, ones(stage.forward(0, (Tensor(x),))))
    stage.finish()
    assert seen == [np.ndarray]
    assert gradient == Tensor(None)
    assert all(p.grad is not None for p in model.params())


def several(x):
    """A variable, one that nobody uses, an array, and an integer variable."""
    signs = (x.array > 0).astype(np.int32)
    return x * 2, F.sum(x, axis=1), signs, chainer.Variable(signs)


def test_several_tensors_go_out():
    (x,) = make_inputs(sizes=[2])
    stage = Stage(Divisible(several))
    stage.begin()
    message = stage.forward(0, variable(x))
    assert [tensor.requires_grad for tensor in message] == [True, True, None, True]
    assert [tensor.array.dtype.kind for tensor in message] == list("ffii")
    # The stage after has no gradient of the second, the array and the integers.
    gradients = (Tensor(np.ones_like(x)), *[Tensor(None)] * 3)
    (gradient,) = stage.backward(0, gradients)
    np.testing.assert_array_equal(gradient.array, np.full_like(x, 2))


@pytest.mark.parametrize("backward", ["backward", "backward_input"])
def test_several_tensors_come_in(backward):
    (x,) = make_inputs(sizes=[2])
    message = Stage(Divisible(several)).forward(0, variable(x))
    seen = []

    def merge(doubled, total, signs, same_signs):
        del total
        seen.extend([signs, same_signs])
        return doubled * signs.astype(np.float32)

    stage = Stage(Divisible(merge))
    stage.begin()
    (y,) = stage.forward(0, message)
    assert isinstance(seen[0], np.ndarray) and isinstance(seen[1], chainer.Variable)
    gradients = getattr(stage, backward)(0, ones([y]))
    np.testing.assert_array_equal(gradients[0].array, message[2].array)
    assert [gradient.array for gradient in gradients[1:]] == [None] * 3


def test_no_gradient_at_all_comes_back():
    (x,) = make_inputs(sizes=[2])
    stage = Stage(layers())
    stage.begin()
    stage.forward(0, variable(x))
    assert stage.backward(0, (Tensor(None),)) == (Tensor(None),)
    stage.finish()
    assert all(p.grad is None for p in stage.layers.params())


class Remember:
    """A layer that knows which of its results are still in memory."""

    def __init__(self):
        self.results = []

    def __call__(self, x):
        # tanh retains its output, so that the array lives as long as the graph.
        y = F.tanh(x)
        self.results.append(weakref.ref(y.array))
        return y

    def n_alive(self):
        gc.collect()
        return sum(result() is not None for result in self.results)


@pytest.mark.parametrize("is_split", [False, True])
def test_memory_is_held_from_forward_to_backward(is_split):
    remember = Remember()
    stage = Stage(Divisible(L.Linear(4, 5), remember, L.Linear(5, 3)))
    stage.begin()
    outputs = [stage.forward(i, variable(x)) for i, x in enumerate(make_inputs())]
    assert remember.n_alive() == 3
    for n_left, i in zip((2, 1, 0), (1, 0, 2)):
        if is_split:
            stage.backward_input(i, ones(outputs[i]))
            assert remember.n_alive() == n_left + 1
            stage.backward_weight([i])
        else:
            stage.backward(i, ones(outputs[i]))
        assert remember.n_alive() == n_left


def test_evaluation_holds_nothing():
    remember = Remember()
    stage = Stage(Divisible(L.Linear(4, 5), remember, L.Linear(5, 3)))
    stage.begin()
    with chainer.no_backprop_mode():
        for i, x in enumerate(make_inputs()):
            stage.forward(i, variable(x))
    assert remember.n_alive() == 0


@pytest.mark.parametrize("is_split", [False, True])
def test_begin_forgets_an_unfinished_minibatch(is_split):
    xs = make_inputs()
    remember = Remember()
    stage = Stage(Divisible(L.Linear(4, 5), remember, L.Linear(5, 3)))
    stage.begin()
    outputs = [stage.forward(i, variable(x)) for i, x in enumerate(xs)]
    (stage.backward_input if is_split else stage.backward)(0, ones(outputs[0]))
    stage.begin()
    assert remember.n_alive() == 0
    assert stage.backward(1, ones(outputs[1])) == ()
    stage.backward_weight([0])
    stage.finish()
    assert all(p.grad is None for p in stage.layers.params())


def test_the_second_minibatch_has_its_own_gradients():
    xs = make_inputs()
    stage = Stage(layers())
    for _ in range(2):
        stage.begin()
        for i, x in enumerate(xs):
            stage.backward(i, ones(stage.forward(i, variable(x))))
        stage.finish()
    assert_gradients(stage.layers, reference(xs)[1])


def test_loss_and_gradients_weigh_unequal_microbatches_by_their_samples():
    xs = make_inputs()
    ts = [np.arange(len(x), dtype=np.int32) % 3 for x in xs]
    loss = Loss(F.softmax_cross_entropy, F.accuracy)
    stage = Stage(layers(), loss)
    stage.begin()
    loss.start([(t,) for t in ts])
    assert loss.is_wanted
    for i, x in enumerate(xs):
        stage.forward(i, variable(x))
    for i in range(len(xs)):
        stage.backward(i, ())
    stage.finish()

    model = layers()
    model.cleargrads()
    y, t = model(np.concatenate(xs)), np.concatenate(ts)
    whole = F.softmax_cross_entropy(y, t)
    whole.backward()
    assert loss.names == ("loss", "accuracy")
    expected = [float(whole.array), float(F.accuracy(y, t).array)]
    assert_close(loss.outcome()[:2], expected)
    assert_gradients(stage.layers, {p: v.grad for p, v in model.namedparams()})


def test_without_targets_the_last_stage_returns_its_outputs():
    (x,) = make_inputs(sizes=[2])
    loss = Loss(F.softmax_cross_entropy, None)
    loss.start(None)
    with chainer.no_backprop_mode():
        (y,) = Stage(layers(), loss).forward(0, variable(x))
    assert not loss.is_wanted
    np.testing.assert_array_equal(y.array, layers()(x).array)


def spilling(message):
    class Spill(chainer.FunctionNode):
        def forward(self, inputs):
            return inputs

        def backward(self, indexes, gradients):
            raise ArithmeticError(message)

    return lambda x: Spill().apply((x,))[0]


@pytest.mark.parametrize("backward", ["backward", "backward_input"])
def test_an_error_in_backward_says_which_layer(backward):
    (x,) = make_inputs(sizes=[2])
    # Layer 2 is a model itself, whose layer 0 fails; stage and model count from 0.
    model = Divisible(
        L.Linear(4, 5), F.tanh, Divisible(spilling("spilt"), F.relu), L.Linear(5, 3)
    )
    stage = Stage(model.divide(1, 4))
    stage.begin()
    (y,) = stage.forward(1, variable(model[0](x).array))
    with pytest.raises(ArithmeticError, match="spilt") as caught:
        getattr(stage, backward)(1, ones([y]))
    assert caught.value.layer_position == 2


def test_an_error_in_a_late_weight_gradient_says_which_layer(monkeypatch):
    (x,) = make_inputs(sizes=[2])
    stage = Stage(layers())
    stage.begin()
    stage.backward_input(0, ones(stage.forward(0, variable(x))))

    def spill(*args):
        raise ArithmeticError("spilt")

    monkeypatch.setattr(stage._weight_gradients, "accumulate", spill)
    with pytest.raises(ArithmeticError, match="spilt") as caught:
        stage.backward_weight([0])
    assert caught.value.layer_position == 2


# -- recomputation and skips -------------------------------------------------------


def marked_layers():
    np.random.seed(0)
    model = Divisible()
    for i in range(6):
        model.append(L.Linear(4, 4), recompute=i in (1, 2, 4))
        model.append(F.dropout, recompute=i in (1, 2, 4))
    return model


def run_stage(stage, xs, recomputed=(), is_split=False):
    """Returns outputs and input gradients, and the weight gradients."""
    plain = super(Stage, stage)
    stage.begin()
    outputs = [
        plain.forward(i, variable(x), {}, i in recomputed)[0] for i, x in enumerate(xs)
    ]
    gradients = []
    for i in range(len(xs)):
        if i in recomputed:
            stage.recompute(i)
        gradients += plain.backward(i, ones(outputs[i]), {}, is_split)[0]
        if is_split:
            stage.backward_weight([i])
    stage.finish()
    found = {path: p.grad.copy() for path, p in stage.layers.namedparams()}
    return [y.array for (y,) in outputs], [g.array for g in gradients], found


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("recomputed", [(), (0, 2), (0, 1, 2)])
def test_recomputation_changes_no_bit(recomputed, is_split):
    """F.forget draws new masks, and leaves a first stage without gradients."""
    xs = make_inputs()
    plain = marked_layers()
    plain = Divisible(*plain)
    expected = run_stage(Stage(plain, seed=4), xs)
    for layers in (plain, marked_layers()):
        actual = run_stage(Stage(layers, seed=4), xs, recomputed, is_split)
        for a, b in zip(actual, expected):
            for x, y in zip(
                *(v.values() if isinstance(v, dict) else v for v in (a, b))
            ):
                np.testing.assert_array_equal(x, y)


class Watched:
    """Tells which of its outputs are still held."""

    def __init__(self):
        self.outputs = []

    def __call__(self, x):
        y = F.relu(x)
        self.outputs.append(weakref.ref(y.node))
        return F.exp(y)

    @property
    def held(self):
        gc.collect()
        return [ref() is not None for ref in self.outputs]


def test_a_recomputed_microbatch_holds_no_graph():
    kept, forgotten = Watched(), Watched()
    model = Divisible(L.Linear(4, 4), kept)
    model.append(L.Linear(4, 4), recompute=True)
    model.append(forgotten, recompute=True)
    stage = Stage(model)
    stage.begin()
    (x,) = make_inputs(sizes=[2])
    stage.forward(0, variable(x))
    assert (kept.held, forgotten.held) == ([True], [False])
    super(Stage, stage).forward(1, variable(x), {}, True)
    assert (kept.held, forgotten.held) == ([True, False], [False, False])
    stage.recompute(1)
    # The marked layers hold no graph before their own backward either.
    assert kept.held[-1] and not forgotten.held[-1]
    stage.backward(1, ones(variable(x)))
    stage.backward(0, ones(variable(x)))
    assert not any(kept.held + forgotten.held)


@pytest.mark.parametrize("is_split", [False, True])
def test_no_layer_is_computed_three_times(is_split):
    calls = {}

    def counted(i):
        def layer(x):
            calls[i, len(x)] = calls.get((i, len(x)), 0) + 1
            return F.tanh(x)

        return layer

    marks = [False, True, True, False, True]
    model = Divisible(L.Linear(4, 4))
    for i, mark in enumerate(marks):
        model.append(counted(i), recompute=mark)
    # The microbatches have 2, 3 and 1 samples.
    run_stage(Stage(model), make_inputs(), recomputed=(0, 2), is_split=is_split)
    for i, mark in enumerate(marks):
        assert [calls[i, n] for n in (2, 3, 1)] == [2, 1 + mark, 2]


class Head(chainer.Chain):
    """A loss that draws its weights at its first call, and a mask at each."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.output = L.Linear(None, 3)

    def __call__(self, y, t):
        return F.softmax_cross_entropy(F.dropout(self.output(y)), t)


@pytest.mark.parametrize("sized_in", ["layer", "loss"])
def test_a_first_microbatch_that_sizes_a_layer_sees_one_mask(sized_in):
    def train(is_recomputed):
        head = Head()
        if sized_in == "layer":
            model, lossfun = Divisible(head.output, F.dropout), F.softmax_cross_entropy
            model = Divisible(F.tanh, model)
        else:
            model, lossfun = Divisible(F.tanh), head
        loss = Loss(lossfun, None)
        stage = Stage(model, loss)
        x, t = make_inputs(n_in=40, sizes=[6])[0], np.zeros(6, np.int32)
        loss.start([(t,)])
        stage.begin()
        super(Stage, stage).forward(0, variable(x), {}, is_recomputed)
        stage.recompute(0)
        stage.backward(0, ())
        stage.finish()
        return head.output.W.grad

    np.testing.assert_array_equal(train(True), train(False))


def test_a_recomputed_loss_counts_once():
    model = layers()
    loss = Loss(F.softmax_cross_entropy, F.accuracy)
    stage = Stage(model, loss)
    x, t = make_inputs(sizes=[6])[0], np.zeros(6, np.int32)
    loss.start([(t,)])
    stage.begin()
    super(Stage, stage).forward(0, variable(x), {}, True)
    expected = loss.outcome()[:2]
    stage.recompute(0)
    stage.backward(0, ())
    np.testing.assert_array_equal(loss.outcome()[:2], expected)


def test_what_a_skip_brings_and_takes_has_gradients():
    model = Divisible(
        stash("a"), F.relu, pop("a", F.add), stash("b"), F.relu, pop("b", F.add)
    )
    stage = stage_module.Stage(model.divide(1, 5))
    stage.begin(0)
    x, a = (np.array([[v, 1.0]], np.float32) for v in (-1, -3))
    y, handed_over = stage.forward(0, variable(x), {"a": variable(a)})
    np.testing.assert_array_equal(y[0].array, np.maximum(np.maximum(x, 0) + a, 0))
    np.testing.assert_array_equal(handed_over["b"][0].array, np.maximum(x, 0) + a)
    gradient, taken = stage.backward(0, ones(y), {"b": ones(y)})
    # Through the second ReLU, which is off for the first number, and past it.
    np.testing.assert_array_equal(taken["a"][0].array, [[1, 2]])
    np.testing.assert_array_equal(gradient[0].array, [[0, 2]])


def unsized_layers():
    class Noisy(chainer.Chain):
        def __init__(self, link):
            super().__init__(link=link)

        def forward(self, x):
            return F.dropout(self.link(x))

    return Divisible(
        L.Linear(4, 4), Noisy(L.Linear(None, 5)), L.LSTM(None, 4), L.Linear(None, 3)
    )


@pytest.mark.parametrize("first", ["training", "last microbatch", "evaluation"])
def test_weights_drawn_in_the_first_call_depend_on_the_seed_only(first):
    """Not on which microbatch comes first, of which minibatch, to be trained or not."""
    np.random.seed(0)
    serial = unsized_layers()
    with keyed_random_state(RandomKey(seed=3, step=0)):
        serial(make_inputs(sizes=[2])[0])
    np.random.seed(0)
    stage = Stage(unsized_layers(), seed=3)
    xs = make_inputs(sizes=(2, 2, 2))
    stage.begin(0 if first == "training" else 4)
    with chainer.using_config("train", first != "evaluation"):
        stage.forward(2 if first == "last microbatch" else 0, variable(xs[0]))
    for (path, param), expected in zip(stage.layers.namedparams(), serial.params()):
        np.testing.assert_array_equal(param.array, expected.array, path)


def test_layers_draw_other_numbers_in_their_second_call():
    """Also those with a parameter that no call sizes."""
    model = Divisible(F.dropout)
    link = L.Linear(None, 4)
    link.forward = F.dropout
    model.append(link)
    stage = Stage(model)
    (x,) = make_inputs(n_in=40, sizes=[2])
    outputs = []
    for step in range(3):
        stage.begin(step)
        outputs.append(stage.forward(0, variable(x))[0].array)
    with keyed_random_state(RandomKey(seed=0, step=2)):
        np.testing.assert_array_equal(outputs[2], model(x).array)
    assert not (outputs[0] == outputs[1]).all()


@pytest.mark.parametrize("is_marked", [False, True])
def test_what_is_recomputed_may_change_its_input_in_place(is_marked):
    def doubled(x):
        x *= 2
        return x

    gradients = []
    for is_recomputed in (False, True):
        np.random.seed(0)
        model = Divisible()
        for layer in (doubled, L.Linear(4, 3)):
            model.append(layer, recompute=is_recomputed and is_marked)
        stage = Stage(model)
        stage.begin()
        (x,) = make_inputs(sizes=[2])
        (y,), _ = stage_module.Stage.forward(
            stage, 0, (Tensor(x),), {}, is_recomputed and not is_marked
        )
        if is_recomputed:
            stage.recompute(0)
        stage.backward(0, ones((y,)))
        stage.finish()
        gradients.append(model[1].W.grad)
    np.testing.assert_array_equal(*gradients)


def test_the_last_microbatch_tells_what_is_complete():
    """Of layers with the same weights the last graph does, of the first segment."""
    shared = L.Linear(4, 4)
    model = Divisible(shared)
    model.append(lambda x: F.linear(x, shared.W), recompute=True)
    model.append(L.Linear(4, 3))
    stage = stage_module.Stage(model)
    told = []

    def complete(param):
        told.append((param, stage.n_parts(param), stage.take(param).copy()))

    xs = make_inputs()
    stage.begin(0, len(xs), complete)
    for i, x in enumerate(xs):
        y, _ = stage.forward(i, variable(x), {})
        assert not told
        stage.backward(i, ones(y), {}, split=i == 0)
    # The first one's weights come last, and then nothing is missing.
    assert not told
    stage.backward_weight([0])
    ids = [id(param) for param, _, _ in told]
    assert set(ids[:2]) == {id(model[2].W), id(model[2].b)}
    assert set(ids[2:]) == {id(shared.W), id(shared.b)}
    assert len(ids) == 4
    for param, n_parts, taken in told:
        assert n_parts == (6 if param is shared.W else 3)
        assert np.abs(taken).max() > 0
    stage.finish()
    assert all(param.grad is None for param, _, _ in told)
