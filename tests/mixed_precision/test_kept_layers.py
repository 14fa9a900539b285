"""Layers of a float16 model in other types: which, and where their inputs are cast."""

import copy
import pickle
from typing import Any, NamedTuple

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, deferred_init, pop, stash
from divisible.streaming import Streamed
from mixed_precision import (
    LayerTypes,
    MixedPrecision,
    float32_loss,
    half_sum_links,
    to_float16,
)
from tests.support.fake_gpu import FakeArray

X = np.random.RandomState(0).normal(size=(8, 6)).astype(np.float32)
T = np.random.RandomState(1).randint(0, 4, 8).astype(np.int32)


def half(x):
    return np.asarray(x).astype(np.float16)


def perceptron():
    np.random.seed(0)
    return Divisible(
        L.Linear(6, 5), L.BatchNormalization(5), F.relu, L.Linear(5, 7), L.Linear(7, 4)
    )


class Block(chainer.Chain):
    """Adds its input to the output of two layers."""

    def __init__(self):
        super().__init__(first=L.Linear(5, 5), second=L.Linear(5, 5))

    def forward(self, x):
        return F.relu(x + self.second(F.relu(self.first(x))))


def dtypes_of(model):
    return {path: param.dtype.name for path, param in model.namedparams()}


class Watch(chainer.LinkHook):
    """Records the dtypes that links compute in: of inputs and outputs."""

    name = "Watch"

    def __init__(self):
        self.seen = {}

    def forward_postprocess(self, args):
        self.seen[id(args.link)] = args.args[0].dtype.name, args.out.dtype.name


def passed(model, x):
    """Returns the output, and the dtypes of inputs and outputs by path."""
    with Watch() as watch:
        y = model(x)
    names = {id(link): path for path, link in model.namedlinks(skipself=True)}
    return y, {names[key]: each for key, each in watch.seen.items() if key in names}


@pytest.mark.parametrize("keep", [[0, 4], ["/0", "/4"], {4: "float32", "/0": "f4"}])
def test_positions_and_paths(keep):
    model = to_float16(perceptron(), keep=keep)
    assert {p for p, d in dtypes_of(model).items() if d == "float32"} == {
        *("/0/W", "/0/b", "/1/beta", "/1/gamma", "/4/W", "/4/b")
    }
    y, seen = passed(model, X)
    single, narrow = "float32", "float16"
    assert seen == {
        "/0": (single, single),
        "/1": (single, single),
        "/3": (narrow, narrow),
        "/4": (single, single),
    }
    assert y.dtype == np.float32


def test_casts_are_only_where_neighbours_differ():
    """Numbers between two kept layers are not rounded."""
    model = to_float16(perceptron(), keep=[0, 3, 4])
    plain = perceptron()
    np.testing.assert_array_equal(model(X).array, plain(X).array)
    # Nothing else has another class than before.
    some = to_float16(perceptron(), keep=[3])
    kinds = [type(layer) for layer in some if isinstance(layer, chainer.Link)]
    assert kinds[1] is L.BatchNormalization
    plain = to_float16(perceptron())
    for layer in plain:
        assert not isinstance(layer, chainer.Link) or type(layer).__module__[:8] == (
            "chainer."
        )
        assert not hasattr(layer, "types")


def test_links_within_a_layer_return_the_type_of_the_layer():
    model = to_float16(
        Divisible(L.Linear(6, 5), Block(), L.Linear(5, 4)), keep=["/1/second"]
    )
    assert dtypes_of(model)["/1/second/W"] == "float32"
    assert dtypes_of(model)["/1/first/W"] == "float16"
    y, seen = passed(model, half(X))
    assert seen["/1/second"] == ("float32", "float32")
    assert seen["/1"] == ("float16", "float16")
    assert model[1].second(half(np.ones((1, 5)))).dtype == np.float16
    assert y.dtype == np.float16


def test_the_longer_path_counts_and_a_path_comes_before_a_class():
    keep = {1: "float32", "/1/first": "float16", L.Linear: "float32", 0: "float16"}
    model = to_float16(Divisible(L.Linear(6, 5), Block(), L.Linear(5, 4)), keep=keep)
    assert {p: d for p, d in dtypes_of(model).items() if p.endswith("W")} == {
        "/0/W": "float16",
        "/1/first/W": "float16",
        "/1/second/W": "float32",
        "/2/W": "float32",
    }
    _, seen = passed(model, X)
    assert seen["/1"] == ("float32", "float32")
    assert seen["/1/first"] == ("float16", "float16")


def test_both_ends_of_a_skip_connection_get_one_type():
    def make(*joined):
        np.random.seed(0)
        return Divisible(
            L.Linear(6, 5),
            stash("x"),
            L.Linear(5, 5),
            pop("x", *joined[:1]),
            *joined[1:],
        )

    add = make(F.add)
    to_float16(add, keep=[0])
    assert add(X).dtype == np.float16
    concat = to_float16(make(None, lambda y, x: F.concat([y, x])), keep=[2])
    assert concat(X).dtype == np.float32
    with pytest.raises(chainer.utils.type_check.InvalidType):
        # Without the cast.
        add[3].in_one_type = False
        add(X)


@pytest.mark.parametrize("forward", ["float16", "float32"])
def test_forward_and_backward_apart(forward):
    """Beside the same in NumPy: one direction is rounded, the other is not."""
    backward = "float16" if forward == "float32" else "float32"
    model = perceptron()
    W, b = model[4].W.array.copy(), model[4].b.array.copy()
    to_float16(model, keep={4: LayerTypes(forward, backward)})
    link = model[4]
    assert link.W.dtype == np.float32
    x = chainer.Variable(np.random.RandomState(2).normal(size=(8, 7)).astype("f"))
    gy = np.random.RandomState(3).normal(size=(8, 4)).astype("f")
    link.cleargrads()
    y = link(x)
    y.grad = gy
    y.backward()
    narrow = (lambda a: half(a).astype("f")) if forward == "float16" else np.asarray
    xs, Ws, bs = map(narrow, (x.array, W, b))
    np.testing.assert_allclose(y.array, narrow(xs @ Ws.T + bs), rtol=1e-3, atol=1e-6)
    narrow = (lambda a: half(a).astype("f")) if backward == "float16" else np.asarray
    gy = narrow(gy)
    for gradient, expected in (
        (x.grad, gy @ Ws),
        (link.W.grad, gy.T @ xs),
        (link.b.grad, gy.sum(axis=0)),
    ):
        exact = half(expected) if backward == "float16" else expected
        tolerance = 2**-10 if backward == "float16" else 1e-5
        np.testing.assert_allclose(gradient, exact, rtol=tolerance, atol=1e-6)
        is_narrow = (gradient == half(gradient)).all()
        assert is_narrow == (backward == "float16")
    assert ((y.array == half(y.array)).all()) == (forward == "float16")


def sums(a, b):
    """A product whose sums are rounded after each addition, as float32."""
    total = np.zeros((len(a), b.shape[1]), np.float16)
    for k in range(a.shape[1]):
        products = a[:, k, None].astype("f") * b[k].astype("f")
        total = (total.astype("f") + products).astype(np.float16)
    return total


def run(link, x, gy):
    """Returns the output, and the gradients of x, W and b."""
    x = chainer.Variable(x)
    link.cleargrads()
    y = link(x)
    y.grad = gy
    y.backward()
    return y.array, x.grad, link.W.grad, link.b.grad


@pytest.mark.parametrize("forward", ["float16", "float32"])
@pytest.mark.parametrize("backward", ["float16", "float32"])
def test_products_of_a_linear_layer(forward, backward):
    rng = np.random.RandomState(2)
    bias = rng.normal(size=4)
    types = LayerTypes(forward_math=forward, backward_math=backward)
    typed, plain = (L.Linear(300, 4, initialW=1, initial_bias=bias) for _ in "12")
    to_float16(Divisible(typed), keep={0: types})
    to_float16(plain)
    x, gy = half(rng.normal(size=(9, 300))), half(rng.normal(size=(9, 4)))
    W, b = plain.W.array, plain.b.array
    found, default = run(typed, x, gy), run(plain, x, gy)
    in_half = (
        sums(x, W.T) + b,
        sums(gy, W),
        sums(gy.T, x),
        sums(np.ones((1, 9), "e"), gy)[0],
    )
    for i, each in enumerate(found):
        is_half = (backward if i else forward) == "float16"
        np.testing.assert_array_equal(each, (in_half if is_half else default)[i])
    # The two differ, so that the test sees which of them it is.
    assert (in_half[0] != default[0]).any() and (in_half[2] != default[2]).any()


@pytest.mark.parametrize("forward", ["float16", "float32"])
@pytest.mark.parametrize("backward", ["float16", "float32"])
def test_products_of_a_convolution(forward, backward):
    """Small whole numbers, of which all sums are exact: only the places are tested."""
    rng = np.random.RandomState(0)

    def make():
        link = L.Convolution2D(3, 4, (3, 2), stride=(2, 1), pad=1, dilate=(1, 2))
        link.W.array[...] = np.random.RandomState(5).randint(-2, 3, link.W.shape)
        link.b.array[...] = [1, -1, 2, 0]
        return link

    types = LayerTypes(forward_math=forward, backward_math=backward)
    typed, plain = to_float16(Divisible(make()), keep={0: types})[0], to_float16(make())
    x = rng.randint(-2, 3, (2, 3, 7, 6)).astype(np.float16)
    gy = rng.randint(-2, 3, typed(x).shape).astype(np.float16)
    for found, expected in zip(run(typed, x, gy), run(plain, x, gy)):
        np.testing.assert_array_equal(found, expected)
    assert type(typed) is not type(plain)


def test_sums_in_float16_of_a_convolution_are_rounded():
    link = L.Convolution2D(4096, 1, 1, nobias=True, initialW=1)
    typed = to_float16(
        Divisible(link), keep={L.Convolution2D: LayerTypes(forward_math="float16")}
    )
    y = typed(np.ones((1, 4096, 1, 1), np.float16))
    assert float(y.array.item()) == 2048


def test_sums_in_float16_of_no_samples():
    types = LayerTypes(forward_math="float16", backward_math="float16")
    links = L.Linear(3, 4), L.Convolution2D(3, 4, 1)
    to_float16(Divisible(*links), keep={0: types, 1: types})
    for link, shape in zip(links, [(0, 3), (0, 3, 2, 2)]):
        gy = np.ones((0, 4, *shape[2:]), np.float16)
        y, gx, *gradients = run(link, np.ones(shape, np.float16), gy)
        assert (y.shape, gx.shape) == (gy.shape, shape)
        assert not any(gradient.any() for gradient in gradients)
    x = np.ones((2, 0, 3), np.float16)
    assert links[0](x, n_batch_axes=2).shape == (2, 0, 4)


def test_sums_in_float16_are_for_a_cpu():
    model = Divisible(L.Linear(2, 2))
    to_float16(model, keep={0: LayerTypes(forward_math="float16")})
    with pytest.raises(TypeError, match="on a GPU leave out forward_math"):
        half_sum_links.apply(model[0], model[0].types, FakeArray(half(np.ones((1, 2)))))


def test_second_derivatives_need_sums_in_float32():
    types = LayerTypes(backward_math="float16")
    model = to_float16(Divisible(L.Linear(2, 2)), keep={0: types})
    x = chainer.Variable(half(np.ones((1, 2))))
    y = F.sum(model(x))
    with pytest.raises(RuntimeError, match="has no second derivative"):
        chainer.grad([y], [x], enable_double_backprop=True)


def test_layers_that_get_their_size_later():
    weights = []
    for n_in in (6, None):
        np.random.seed(0)
        model = Divisible(L.Linear(n_in, 5), F.relu, L.Linear(5, n_in and 4))
        if n_in is None:
            np.random.seed(0)
            model = Divisible(L.Linear(None, 5), F.relu, L.Linear(None, 4))
        to_float16(model, keep={0: LayerTypes("float16", "float32"), 2: "float32"})
        y = model(X)
        weights.append([p.array for _, p in sorted(model.namedparams())] + [y.array])
    for one, other in zip(*weights):
        assert one.dtype == other.dtype == np.float32
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), None],
)
def test_copies_and_stages(copied):
    types = {0: LayerTypes("float16", "float32"), 3: "float32"}
    model = to_float16(perceptron(), keep=types)
    expected = model(X).array
    again = copied(model) if copied else model.copy("copy")
    assert again.casts_inputs
    np.testing.assert_array_equal(again(X).array, expected)
    assert repr(again) == repr(model)
    h = X
    for start, end in ((0, 1), (1, 4), (4, 5)):
        h = model.divide(start, end)(h)
    np.testing.assert_array_equal(h.array, expected)


def test_stages_that_are_cast_by_themselves():
    keep = {0: "float32", "/3": LayerTypes("float32", "float16"), L.Linear: "float16"}
    expected = to_float16(perceptron(), keep=keep)(X).array
    h = X
    for start, end in ((0, 2), (2, 4), (4, 5)):
        h = to_float16(perceptron().divide(start, end), keep=keep)(h)
    np.testing.assert_array_equal(h.array, expected)


@pytest.mark.parametrize(
    "keep", [["/2/second"], [Block], {"/2/first": "float16"}, [L.EmbedID], [3]]
)
def test_functions_before_a_type_compute_alike_on_every_cut(keep):
    """In float16 or float32, whether the whole model is cast or each stage."""

    def make():
        np.random.seed(0)
        return Divisible(
            lambda x: F.exp(x), L.Linear(6, 5), Block(), L.Linear(5, 4), F.tanh
        )

    whole = to_float16(make(), keep=keep)
    parts = [to_float16(make().divide(i, i + 1), keep=keep) for i in range(5)]
    assert parts[0].casts_inputs == whole.casts_inputs
    h = X if whole.casts_inputs else half(X)
    expected = whole(h)
    for part in parts:
        h = part(h)
    assert h.dtype == expected.dtype
    np.testing.assert_array_equal(h.array, expected.array)


def test_a_model_that_is_not_made():
    keep = {0: "float32", 1: LayerTypes("float16", "float32"), 3: "float32"}

    def build():
        with deferred_init(seed=0):
            return Divisible(
                L.Linear(6, 5),
                L.Linear(5, 5),
                Streamed(L.Linear(5, 5), segment=2),
                Streamed(L.Linear(5, 4), segment=2),
            )

    models = to_float16(build().divide(), keep=keep), to_float16(build(), keep=keep)
    stages = models[0], models[1].divide()
    outputs = [stage(X).array for stage in stages]
    assert outputs[0].dtype == np.float32
    np.testing.assert_array_equal(*outputs)
    assert [stage[2].output_dtype for stage in stages] == ["float16"] * 2


def test_a_serial_script_with_a_chain(tmp_path):
    """Training goes on from a snapshot bit for bit; the kept layer has no master."""

    class Net(chainer.Chain):
        def __init__(self):
            super().__init__(body=L.Linear(6, 9), head=L.Linear(9, 4))

        def forward(self, x):
            return self.head(F.relu(self.body(x)))

    def make():
        model = to_float16(Net(), keep=["/head"])
        adam = chainer.optimizers.Adam(0.05)
        return model, MixedPrecision(adam, loss_scale=1000).setup(model)

    def train(model, optimizer, n_steps):
        lossfun = float32_loss(F.softmax_cross_entropy)
        losses = []
        for _ in range(n_steps):
            loss = lossfun(model(half(X)), T)
            model.cleargrads()
            optimizer.backward(loss)
            optimizer.update()
            losses.append(float(loss.array))
        return losses

    model, optimizer = make()
    first = train(model, optimizer, 20)
    assert sorted(optimizer.masters()) == ["/body/W", "/body/b"]
    for name, each in ("model", model), ("optimizer", optimizer):
        chainer.serializers.save_npz(tmp_path / f"{name}.npz", each)
    expected = train(model, optimizer, 5)
    assert expected[-1] < 0.5 * first[0]
    model, optimizer = make()
    for name, each in ("model", model), ("optimizer", optimizer):
        chainer.serializers.load_npz(tmp_path / f"{name}.npz", each)
    assert train(model, optimizer, 5) == expected


class Pair(NamedTuple):
    """Values that pass between two layers, by name."""

    h: Any
    skipped: Any


class Enter(chainer.Chain):
    """Returns a dictionary or a named tuple."""

    def __init__(self, kind):
        super().__init__(layer=L.Linear(6, 5))
        self.kind = kind

    def forward(self, x):
        return self.kind(h=self.layer(x), skipped=x)


class Leave(chainer.Chain):
    """Takes what `Enter` returns, and records its types."""

    def __init__(self):
        super().__init__(first=L.Linear(5, 4), second=L.Linear(6, 4))

    def forward(self, *found):
        if isinstance(found[0], dict):
            found = found[0].values()
        h, x = found
        self.seen = h.dtype, x.dtype
        return self.first(h) + self.second(x)


@pytest.mark.parametrize("kind", [dict, Pair])
@pytest.mark.parametrize("keep", [[0], [1], [0, 1]])
def test_dictionaries_and_named_tuples(keep, kind):
    np.random.seed(0)
    model = to_float16(Divisible(Enter(kind), Leave()), keep=keep)
    assert type(model[0](X)) is kind
    y = model(X)
    expected = np.float32 if 1 in keep else np.float16
    assert model[1].seen == (expected, expected)
    assert y.dtype == expected


class Reader(chainer.Chain):
    """Reads texts: one layer gets and returns lists, the other has a state."""

    def __init__(self):
        super().__init__(
            words=L.EmbedID(9, 6), steps=L.NStepLSTM(1, 6, 5, 0.0), last=L.LSTM(5, 4)
        )

    def forward(self, texts):
        self.last.reset_state()
        h, _, outputs = self.steps(None, None, [self.words(t) for t in texts])
        self.last(F.concat(outputs, axis=0)[:1])
        return self.last(h[0][:1])


@pytest.mark.parametrize("keep", [["/steps"], [L.LSTM], ["/words", "/last"]])
def test_recurrent_layers(keep):
    def make():
        np.random.seed(0)
        return Reader()

    texts = [np.array(each, np.int32) for each in ([3, 1, 4], [1, 5])]
    expected, model = make()(texts), to_float16(make(), keep=keep)
    y = model(texts)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y.array, expected.array, rtol=0.01, atol=1e-3)
    model.cleargrads()
    F.sum(F.cast(y, np.float32)).backward()
    for path, param in model.namedparams():
        assert param.grad.dtype == param.dtype, path
    assert {p.dtype.name for p in model.params()} == {"float16", "float32"}


def test_the_predictor_of_a_classifier_returns_its_own_type():
    model = L.Classifier(perceptron(), float32_loss(F.softmax_cross_entropy))
    model.compute_accuracy = False
    to_float16(model, keep=["/predictor/4"])
    model(half(X), T)
    assert model.y.dtype == np.float32


def test_a_later_call_keeps_what_an_earlier_one_kept():
    model = to_float16(to_float16(perceptron(), keep=[0]))
    assert dtypes_of(model)["/0/W"] == "float32"
    to_float16(model, keep={0: "float16", 3: "float32"})
    assert dtypes_of(model)["/0/W"] == "float16"
    assert dtypes_of(model)["/3/W"] == "float32"
    to_float16(model, keep=[0])
    assert dtypes_of(model)["/0/W"] == "float32"
    assert model(X).dtype == np.float16


def tied():
    model = perceptron()
    model.append(L.Linear(4, 7))
    model.tie("/4/W", "/5/W", transpose=True)
    return model


@pytest.mark.parametrize(
    "make, keep, error, words",
    [
        (perceptron, "/3", TypeError, "keep must be a list"),
        (perceptron, L.Linear, TypeError, "keep must be a list"),
        (perceptron, [1.5], TypeError, "by classes of links, positions or paths"),
        (perceptron, [np.ndarray], TypeError, "by classes of links, positions"),
        (perceptron, [5], ValueError, "no link /5; its links are /0, /1, /3, /4"),
        (perceptron, [-1], ValueError, "no link /-1"),
        (perceptron, [2], ValueError, "layer 2, relu, is a function"),
        (perceptron, ["/3/W"], ValueError, "/3/W is a parameter, and .* name /3"),
        (perceptron, ["/3/conv"], ValueError, "no link /3/conv"),
        (perceptron, {3: "int8"}, ValueError, r"keep\[3\]: .* not 'int8'"),
        (perceptron, {3: None}, ValueError, "must be 'float16' or 'float32', not None"),
        (Block, [0], ValueError, "neither a Divisible nor a Sequential: give the path"),
        (
            perceptron,
            {1: LayerTypes("float16", "float32")},
            ValueError,
            "/1 is BatchNormalization, which cannot have a forward_type of float16",
        ),
        (
            lambda: Divisible(Block()),
            {0: LayerTypes(forward_math="float16")},
            ValueError,
            "/0 cannot add up products in float16, because it is Block",
        ),
        (
            lambda: Divisible(L.Convolution2D(4, 4, 1, groups=2)),
            {0: LayerTypes(backward_math="float16")},
            ValueError,
            "because it has 2 groups of channels",
        ),
        (tied, [5], ValueError, "/4 and /5 share the parameter W"),
        (
            lambda: chainer.Sequential(F.relu, L.Linear(2, 2)),
            [0],
            ValueError,
            "layer 0, <function relu",
        ),
        (
            lambda: chainer.Sequential(F.relu, L.Linear(2, 2)),
            [2],
            ValueError,
            "its layers go from 0 to 1",
        ),
    ],
)
def test_what_is_refused_and_why(make, keep, error, words):
    with pytest.raises(error, match=words):
        to_float16(make(), keep=keep)


def test_streamed_layers_have_no_other_types():
    with deferred_init(seed=0):
        model = Divisible(Streamed(L.Linear(5, 5), segment=2))
    with pytest.raises(ValueError, match="/0 is streamed, and computes in float32"):
        to_float16(model, keep={0: LayerTypes(forward_math="float16")})
