import copy
import functools
import gc
import inspect
import io
import pickle
import random
import resource
import threading
import tracemalloc
import weakref

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import initializers
from chainer.link_hooks import SpectralNormalization
from hypothesis import given, settings
from hypothesis import strategies as st

from chainer_compat import npz
from divisible import Divisible, NotMadeError, deferred_init
from examples.train.models.cnn import CNN
from examples.train.models.mlp import MLP
from examples.train.models.resnet50 import ResNet50
from examples.train.models.vgg16 import VGG16
from mixed_precision import to_float16

X = np.random.RandomState(0).rand(6, 4).astype(np.float32)


def build(make, seed=0):
    with deferred_init(seed):
        return make()


def values(model):
    """Returns every sized parameter and persistent array by its path."""
    found = {path: param.array for path, param in model.namedparams(False)}
    for path, link in model.namedlinks():
        for name in link._persistent:
            value = vars(link)[name]
            if isinstance(value, np.ndarray):
                found[f"{path.rstrip('/')}/{name}"] = value
    assert all(type(array) is np.ndarray for array in found.values())
    return found


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for path in a:
        assert a[path].dtype == b[path].dtype
        np.testing.assert_array_equal(a[path], b[path], err_msg=path)


def cut(make, cuts, seed=0):
    """Returns the values of all stages, each from a model of its own, as ranks do."""
    found = {}
    for start, end in zip(cuts, cuts[1:]):
        part = values(build(make, seed).divide(start, end))
        assert not found.keys() & part.keys()
        found.update(part)
    return found


def assert_cut_is_irrelevant(make, cuts):
    assert_equal(cut(make, cuts), values(build(make).divide()))


# -- every initializer ---------------------------------------------------------


class FromGlobalGenerators(initializers.Normal):
    """Defined by a user."""

    def __call__(self, array):
        array[...] = np.random.rand(*array.shape) * random.random()


def from_a_function(array):
    array[...] = np.random.randint(0, 100, array.shape)


def with_closure():
    rng = np.random.default_rng(5)

    def draw(array):
        array[...] = rng.standard_normal(array.shape)

    return draw


def draw_from(rng, array):
    array[...] = rng.random_sample(array.shape)


RNG = np.random.RandomState(3)


def from_a_global_name(array):
    array[...] = RNG.rand(*array.shape)


INITIALIZERS = {
    name: kind
    for name, kind in vars(initializers).items()
    if inspect.isclass(kind) and issubclass(kind, chainer.Initializer)
}
SPECIAL = {
    "Constant": lambda: initializers.Constant(2.5),
    "Identity": lambda: initializers.Identity(3),
}
USERS = {
    "class": FromGlobalGenerators,
    "function": lambda: from_a_function,
    "lambda": lambda: lambda array: array.fill(np.random.rand()),
    "partial": lambda: functools.partial(draw_from, np.random.RandomState(1)),
    "closure": with_closure,
    "global name": lambda: from_a_global_name,
    "scalar": lambda: 0.25,
    "array": lambda: np.arange(81, dtype=np.float32).reshape(9, 9),
    "default": lambda: None,
    "rng": lambda: initializers.HeNormal(rng=np.random.RandomState(7)),
}


def test_all_of_chainers_initializers_are_known():
    assert len(INITIALIZERS) >= 16


@pytest.mark.parametrize("name", [*INITIALIZERS, *USERS])
def test_every_initializer(name):
    create = USERS.get(name) or SPECIAL.get(name) or INITIALIZERS[name]
    is_filter = name.endswith("Filter")

    def make():
        one = create()  # shared by the layers, as in a user's loop
        if is_filter:
            return Divisible(
                *[L.Convolution2D(3, 3, 3, initialW=one, nobias=True) for _ in "123"]
            )
        return Divisible(
            L.Linear(9, 9, initialW=one),
            L.Linear(None, 9, initialW=one, initial_bias=1),
            L.Linear(9, 9, initialW=one),
        )

    model = build(make)
    whole = values_after_call(model.divide(), is_filter)
    for cuts in ([0, 1, 2, 3], [0, 2, 3], [0, 1, 3]):
        found = {}
        for start, end in zip(cuts, cuts[1:]):
            stage = build(make).divide(start, end)
            found.update(values_after_call(stage, is_filter))
        assert_equal(found, whole)
    # Chainer's values are not random, or not these; the kinds of arrays are the same.
    eager = make()
    values_after_call(eager, is_filter)
    for path, param in eager.namedparams():
        assert param.dtype == whole[path].dtype
        if name in ("Constant", "Identity", "Zero", "One", "scalar", "array"):
            np.testing.assert_array_equal(param.array, whole[path])


def values_after_call(model, is_filter):
    x = np.ones((1, 3, 9, 9) if is_filter else (1, 9), np.float32)
    model(x)
    return values(model)


def test_dtypes_are_chainers():
    def make():
        half = initializers.HeNormal(dtype=np.float16)
        return Divisible(L.Linear(4, 4, initialW=half), L.BatchNormalization(4))

    for dtype in (np.float32, np.float64, chainer.mixed16):
        with chainer.using_config("dtype", dtype):
            deferred, eager = build(make), make()
        expected = {path: array.dtype for path, array in values(eager).items()}
        made = values(deferred.divide())
        assert {path: array.dtype for path, array in made.items()} == expected


def test_an_initializer_may_change_between_layers():
    def make():
        init = initializers.Constant(1)
        layers = []
        for value in (1, 2):
            init.fill_value = value
            layers.append(L.Linear(4, 4, initialW=init))
        with chainer.using_config("dtype", chainer.mixed16):
            layers.append(L.BatchNormalization(4, initial_gamma=init))
        return Divisible(*layers)

    assert_equal(values(build(make).divide()), values(make()))


def test_layers_differ_and_seeds_differ():
    def make():
        return Divisible(*[L.Linear(4, 4) for _ in range(3)])

    first, other = values(build(make, 0).divide()), values(build(make, 1).divide())
    weights = [found[f"/{i}/W"] for found in (first, other) for i in range(3)]
    for i, a in enumerate(weights):
        assert not any(np.array_equal(a, b) for b in weights[:i])


def test_the_values_have_the_initializers_distribution():
    model = build(
        lambda: Divisible(L.Linear(400, 500, initialW=initializers.HeNormal()))
    )
    weights = model.divide()[0].W.array
    assert abs(weights.std() - np.sqrt(2 / 400)) < 1e-3
    assert abs(weights.mean()) < 1e-3


def test_a_sized_layer_has_the_values_of_a_lazily_sized_one():
    sized = build(lambda: Divisible(F.relu, L.Linear(4, 3))).divide()
    lazy = build(lambda: Divisible(F.relu, L.Linear(None, 3))).divide()
    np.testing.assert_array_equal(lazy(X).array, sized(X).array)
    assert_equal(values(lazy), values(sized))


def test_golden_values():
    """They must not change between versions: they are part of what a seed means."""
    stage = build(lambda: Divisible(F.relu, L.Linear(3, 2)), seed=7).divide(1, 2)
    expected = [[-0.22257, -0.324477, -0.110559], [0.026232, -0.593024, -0.524953]]
    np.testing.assert_allclose(stage[0].W.array, expected, rtol=1e-4)


# -- any cut of any model ------------------------------------------------------


class Tied(chainer.Chain):
    """Two links with one parameter, one outside of init_scope, one in a list."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.a = L.Linear(4, 4)
            self.b = L.Linear(4, 4)
            self.b.W = self.a.W
            self.loc = chainer.Parameter(initializers.Normal(), (4,))
        self.hidden = [chainer.Parameter(initializers.Normal(), (4,))]
        self.noise = np.random.rand(4).astype(np.float32)

    def forward(self, x):
        h = self.b(self.a(x)) + F.broadcast_to(self.hidden[0] + self.loc, x.shape)
        return h + self.noise


def zoo():
    """Layers of many kinds, of 4 inputs and 4 outputs."""
    repeated = L.Linear(4, 4)
    block = chainer.Sequential(L.Linear(4, 4), F.tanh, L.LayerNormalization(4))
    nested = Divisible(L.Linear(4, 4), F.relu, L.BatchNormalization(4))
    written = L.Linear(4, 4)
    written.W.array[...] *= 0.5
    written.b.array[1:] = np.random.rand(3)
    owner, borrower = L.Linear(4, 4), L.Linear(4, 4)
    borrower.W = owner.W
    return Divisible(
        repeated,
        Tied(),
        block,
        nested,
        LSTM(4),
        repeated,
        L.Maxout(4, 4, 2),
        written,
        block.copy("init"),
        block.copy("copy"),
        L.Linear(None, 4),
        owner,
        L.StatefulGRU(4, 4),
        borrower,
        *L.Linear(4, 4).repeat(2, "copy"),
        *L.Linear(4, 4).repeat(2, "init"),
        L.Linear(4, 4, nobias=True).repeat(2, "share"),
        L.Swish(None),
        L.Scale(1, (4,)),
        L.Highway(4),
        L.PReLU((4,)),
        F.relu,
    )


class LSTM(chainer.Chain):
    """Chainer's calls initializers on parts of its parameters."""

    def __init__(self, n_in):
        super().__init__()
        with self.init_scope():
            self.lstm = L.StatelessLSTM(n_in, 4, forget_bias_init=initializers.Normal())

    def forward(self, x):
        return self.lstm(None, None, x)[1]


def lazy_zoo():
    return Divisible(
        L.Linear(None, 4),
        LSTM(None),
        F.dropout,
        F.relu,
        chainer.Sequential(
            L.Linear(None, 4), F.dropout, L.Linear(None, 4, nobias=True)
        ),
        L.BatchNormalization(axis=0),
        L.Linear(None, 4),
    )


@settings(max_examples=8)
@given(st.data())
def test_any_cut_of_a_model_of_many_kinds_of_layers(data):
    n = len(build(zoo))
    inner = data.draw(st.sets(st.integers(1, n - 1), max_size=7))
    cuts = [0, *sorted(inner), n]
    whole = values(build(zoo).divide())
    for start, end in zip(cuts, cuts[1:]):
        for path, array in values(build(zoo).divide(start, end)).items():
            np.testing.assert_array_equal(array, whole[path], err_msg=path)
    # Also when one process makes one stage after the other.
    model = build(zoo)
    for start, end in zip(cuts, cuts[1:]):
        model.divide(start, end)
    assert_equal(values(model), whole)


def test_the_model_of_many_kinds_of_layers_computes():
    assert np.isfinite(build(zoo).divide()(X).array).all()


@pytest.mark.parametrize(
    "n",
    [
        pytest.param(n, marks=() if n in (1, 3, 8) else pytest.mark.matrix)
        for n in range(1, 9)
    ],
)
@pytest.mark.parametrize(
    "make",
    [
        CNN,
        lambda: MLP(6, n_layers=5),
        lambda: VGG16(n_units=4),
        lambda: ResNet50(),
    ],
    ids=["cnn", "mlp", "vgg16", "resnet50"],
)
def test_1_to_8_ranks_have_the_same_weights(make, n, monkeypatch):
    from examples.train.models import resnet50, vgg16

    small = tuple(tuple(4 for _ in group) for group in vgg16.GROUPS)
    monkeypatch.setattr(vgg16, "GROUPS", small)
    small = tuple((n_blocks, 2) for n_blocks, _ in resnet50.GROUPS)
    monkeypatch.setattr(resnet50, "GROUPS", small)
    n_layers = len(build(make))
    assert_cut_is_irrelevant(make, [n_layers * i // n for i in range(n + 1)])


@settings(max_examples=10)
@given(st.sets(st.integers(1, 6)), st.integers(0, 99))
def test_lazily_sized_layers_on_any_cut(inner, unrelated_draws):
    cuts = [0, *sorted(inner), 7]
    whole = build(lazy_zoo).divide()
    with chainer.using_config("train", False):
        whole(X)
    y, found = X, {}
    for start, end in zip(cuts, cuts[1:]):
        stage = build(lazy_zoo).divide(start, end)
        np.random.rand(unrelated_draws)
        with chainer.using_config("train", False):
            y = stage(y)
        found.update(values(stage))
    assert_equal(found, values(whole))
    # What was returned is not the only way to call the model, once it is made.
    model = build(lazy_zoo)
    model.divide()
    with chainer.using_config("train", False):
        model(X)
    assert_equal(values(model), values(whole))


def test_first_calls_in_float16():
    """An LSTM draws its weights in its first call, those of float32, rounded."""
    made = []
    for convert in (lambda model: model, to_float16):
        np.random.seed(len(made))
        model = convert(build(lambda: Divisible(L.LSTM(None, 5))).divide())
        model(X.astype(next(model.params()).dtype))
        made.append(dict(model.namedparams()))
    assert {param.dtype for param in made[1].values()} == {np.dtype(np.float16)}
    for path, param in made[0].items():
        rounded = param.array.astype(np.float16)
        np.testing.assert_array_equal(rounded, made[1][path].array)


def test_only_the_first_call_is_keyed():
    model = build(lambda: Divisible(L.Linear(None, 4), F.dropout)).divide()
    np.random.seed(5)
    outputs = [model(X).array for _ in range(3)]
    assert not np.array_equal(outputs[0], outputs[1])
    assert not np.array_equal(outputs[1], outputs[2])


def test_only_the_first_call_is_keyed_even_if_something_is_never_sized():
    class WithSpare(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.used, self.spare = L.Linear(4, 4), L.Linear(None, 2)

        def forward(self, x):
            return F.dropout(self.used(x))

    model = build(lambda: Divisible(WithSpare())).divide()
    np.random.seed(5)
    first, second, third = (model(X).array for _ in range(3))
    assert not np.array_equal(first, second)
    assert not np.array_equal(second, third)


@pytest.mark.parametrize("n_in", [4, None])
def test_a_layer_put_in_front_after_the_division_draws_for_itself(n_in):
    def make():
        model = Divisible(L.Linear(n_in, 4))
        model.divide(0, 1)
        model.insert(0, L.Linear(n_in, 4))
        return model

    model = build(make)
    whole = model.divide()
    whole(X)
    assert not np.array_equal(whole[0].W.array, whole[1].W.array)
    # Neither depends on the cut.
    for i in (0, 1):
        alone = build(make).divide(i, i + 1)
        alone(X)
        np.testing.assert_array_equal(alone[0].W.array, whole[i].W.array)


def test_a_parameter_shared_by_layers_is_made_once_and_stays_shared():
    def make():
        a, b = L.Linear(4, 4), L.Linear(4, 4)
        b.W = a.W
        return Divisible(a, F.relu, b)

    model = build(make).divide()
    assert model[0].W is model[2].W
    alone = build(make).divide(2, 3)
    np.testing.assert_array_equal(alone[0].W.array, model[0].W.array)


def test_repeat_shares_or_copies_as_chainer_does():
    def make(mode):
        return Divisible(*L.Linear(4, 4).repeat(3, mode))

    for mode in ("init", "copy", "share"):
        model = build(lambda mode=mode: make(mode)).divide()
        arrays = [link.W.array for link in model]
        assert np.array_equal(arrays[0], arrays[1]) == (mode != "init")
        assert (arrays[0] is arrays[1]) == (mode == "share")
        assert_cut_is_irrelevant(lambda mode=mode: make(mode), [0, 1, 2, 3])


def test_random_numbers_of_constructors_are_the_same_on_every_rank():
    np.random.seed(1)
    first = build(lambda: Divisible(Tied(), Tied()))
    np.random.seed(2)
    second = build(lambda: Divisible(Tied(), Tied()))
    np.testing.assert_array_equal(first[1].noise, second[1].noise)
    assert not np.array_equal(first[0].noise, first[1].noise)


# -- what is left as it was -----------------------------------------------------


def test_generators_and_chainer_are_left_as_they_were():
    before = (chainer.Parameter.__init__, initializers.generate_array)
    calls = [kind.__call__ for kind in INITIALIZERS.values()]
    np.random.seed(11)
    random.seed(11)
    RNG.seed(3)
    expected = (random.random(), np.random.rand(), RNG.rand())
    np.random.seed(11)
    random.seed(11)
    RNG.seed(3)
    with deferred_init(4):
        model = Divisible(
            Tied(), L.Linear(None, 4), L.Linear(4, 4, initialW=from_a_global_name)
        )
    stage = model.divide()
    stage(X)
    assert (random.random(), np.random.rand(), RNG.rand()) == expected
    assert before == (chainer.Parameter.__init__, initializers.generate_array)
    assert calls == [kind.__call__ for kind in INITIALIZERS.values()]
    link = L.Linear(4, 4)
    assert type(link.W.array) is np.ndarray


def test_the_scope_ends_with_an_error_and_may_be_nested():
    before = chainer.Parameter.__init__
    with pytest.raises(ZeroDivisionError), deferred_init(0):
        with deferred_init(1):
            inner = Divisible(L.Linear(4, 4))
        outer = Divisible(L.Linear(4, 4))
        raise ZeroDivisionError
    assert chainer.Parameter.__init__ is before
    assert_equal(
        values(inner.divide()),
        values(build(lambda: Divisible(L.Linear(4, 4)), 1).divide()),
    )
    assert_equal(
        values(outer.divide()),
        values(build(lambda: Divisible(L.Linear(4, 4)), 0).divide()),
    )


def test_other_threads_are_not_concerned():
    made = []
    with deferred_init(0):
        thread = threading.Thread(target=lambda: made.append(L.Linear(3, 3)))
        thread.start()
        thread.join()
    assert type(made[0].W.array) is np.ndarray


def test_dividing_inside_the_scope():
    class TwoGenerators(chainer.Initializer):
        def __init__(self):
            super().__init__()
            self.rng = np.random.RandomState(1)

        def __call__(self, array):
            array[...] = self.rng.rand(*array.shape) - RNG.rand(*array.shape)

    for make in (CNN, lambda: Divisible(L.Linear(3, 4, initialW=TwoGenerators()))):
        with deferred_init(0):
            stage = make().divide(0, 1)
        assert_equal(values(stage), values(build(make).divide(0, 1)))


def test_layers_made_outside_keep_their_values():
    ready = L.Linear(4, 4)
    expected = ready.W.array.copy()
    with deferred_init(0):
        model = Divisible(ready, L.Linear(4, 4))
    np.testing.assert_array_equal(model.divide()[0].W.array, expected)
    links = [build(lambda: L.Linear(4, 4)), F.relu]
    assert np.isfinite(Divisible(*links).divide()(X).array).all()


@pytest.mark.parametrize("seed, error", [(-1, ValueError), (1.5, TypeError)])
def test_bad_seeds_are_refused(seed, error):
    with pytest.raises(error), deferred_init(seed):
        pass


# -- memory ---------------------------------------------------------------------


def test_building_allocates_nothing():
    """A model of 10 TB, on a machine that has not as much."""

    def make():
        layers = [L.Linear(500_000, 500_000) for _ in range(10)]
        return Divisible(*layers, L.BatchNormalization(10**9), L.LSTM(10**5, 10**5))

    tracemalloc.start()
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        model = build(make)
        assert model.count_params() > 2.5e12
        str(model)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - size < 20_000  # KiB


def test_dividing_allocates_its_own_layers_only():
    def make():
        return Divisible(*[L.Linear(512, 512, nobias=True) for _ in range(16)])

    one = 512 * 512 * 4
    model = build(make)
    tracemalloc.start()
    try:
        stage = model.divide(5, 7)
        gc.collect()
        current, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Two arrays and, as in Chainer, the two of their gradients.
    assert 4 * one <= current < 4.2 * one
    assert len(stage) == 2


def test_layers_can_be_made_one_by_one_in_copies():
    """Never the whole model, as is needed to profile one that is larger than a host."""

    def make():
        return Divisible(*[L.Linear(512, 512, nobias=True) for _ in range(8)])

    one = 512 * 512 * 4
    expected = values(build(make).divide())
    model = build(make)
    tracemalloc.start()
    try:
        for position in range(len(model)):
            stage = model.divide(position, position + 1, mode="copy")
            path = f"/{position}/W"
            np.testing.assert_array_equal(stage[0].W.array, expected[path])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * one  # of 16, and initializers draw float64
    with pytest.raises(NotMadeError, match=r"layers \[0, 1, 2, 3, 4, 5, 6, 7\]"):
        model(X)
    with pytest.raises(ValueError, match="'init'"):
        model.divide(mode="init")


def test_what_is_made_is_freed_with_its_layer():
    model = build(lambda: Divisible(L.Linear(4, 4), L.Linear(4, 4)))
    stage = model.divide(0, 1)
    freed = weakref.ref(stage[0].W.array)
    other = weakref.ref(model[1])
    del model
    gc.collect()
    assert other() is None and freed() is not None
    del stage
    gc.collect()
    assert freed() is None


# -- before it is made ----------------------------------------------------------


def test_text_and_sizes_are_those_of_an_ordinary_model():
    deferred, eager = build(CNN), CNN()
    assert str(deferred) == str(eager)
    assert deferred.model_layers == eager.model_layers
    assert deferred.divide(0, 3).model_layers == eager.model_layers
    assert deferred.count_params() == eager.count_params()
    shapes = [(path, p.shape, p.dtype) for path, p in deferred.namedparams()]
    assert shapes == [(path, p.shape, p.dtype) for path, p in eager.namedparams()]
    assert "deferred" in repr(deferred[5].W)
    shared = build(lambda: Divisible(Tied(), L.BatchNormalization(4)))
    assert str(shared) == str(Divisible(Tied(), L.BatchNormalization(4)))


def test_using_a_model_that_is_not_made_is_refused(tmp_path):
    model = build(lambda: Divisible(L.Linear(4, 4), F.relu, L.Linear(None, 2)))
    with pytest.raises(NotMadeError, match=r"layers \[0, 2\] of Divisible"):
        model(X)
    with pytest.raises(NotMadeError, match="no values to save"):
        chainer.serializers.save_npz(tmp_path / "a.npz", model)
    with pytest.raises(NotMadeError, match="pickle"):
        pickle.dumps(model)
    for use in (
        lambda w: w * 2,
        lambda w: w.sum(),
        lambda w: float(w[0, 0]),
        lambda w: np.linalg.norm(w),
        lambda w: w.astype(np.int32),
        lambda w: w[w > 0],
        lambda w: w.tolist(),
        lambda w: np.concatenate([w, w]),
    ):
        with pytest.raises(NotMadeError, match="divide"):
            use(model[0].W.array)
    stage = model.divide(0, 1)
    stage(X)
    with pytest.raises(NotMadeError, match=r"layers \[2\]"):
        model(X)
    whole = model.divide()
    np.testing.assert_array_equal(whole(X).array, model(X).array)


def test_a_link_that_belongs_to_no_model_says_so():
    link = build(lambda: L.Linear(None, 4))
    with pytest.raises(NotMadeError, match="append it to a Divisible"):
        link(X)


def test_copies_of_a_model():
    model = build(CNN)
    copies = [copy.deepcopy(model), model.copy("copy"), model.copy("share")]
    expected = values(build(CNN).divide(0, 4))
    for other in copies:
        assert_equal(values(other.divide(0, 4)), expected)


def test_an_initializer_that_fails_names_the_layer():
    model = build(
        lambda: Divisible(F.relu, L.Linear(3, 4, initialW=initializers.Identity()))
    )
    with pytest.raises(RuntimeError, match=r"layer 1 \(Linear\): /W .*Identity"):
        model.divide()
    with pytest.raises(ValueError, match="broadcast"), deferred_init(0):
        L.Linear(3, 4).W.array[...] = np.zeros(5)


def test_load_npz_reads_the_layers_of_a_stage_only(tmp_path, monkeypatch):
    def make():
        return Divisible(
            L.Linear(4, 4), F.relu, L.BatchNormalization(4), L.Linear(None, 3)
        )

    source = make()
    source(X)
    path = tmp_path / "model.npz"
    chainer.serializers.save_npz(path, source)
    read = []
    get = npz.read
    monkeypatch.setattr(
        npz, "read", lambda arrays, key: read.append(key) or get(arrays, key)
    )
    model = build(make)
    chainer.serializers.load_npz(path, model)
    assert not read
    stage = model.divide(2, 4)
    assert read and not any(key.startswith("0/") for key in read)
    assert_equal(
        {k: v for k, v in values(source).items() if k[1] != "0"}, values(stage)
    )
    # What is trained meanwhile is not read again.
    stage[1].W.array[...] = 5
    model.divide()
    assert (stage[1].W.array == 5).all()
    np.testing.assert_array_equal(model[0].W.array, source[0].W.array)
    with pytest.raises(NotMadeError, match="by its path"):
        chainer.serializers.load_npz(io.BytesIO(path.read_bytes()), build(make))


class Moves(chainer.device_resident.DeviceResidentsVisitor):
    """Stands for to_device, on a machine without another device."""

    def __init__(self):
        self.arrays = []

    def visit_device_resident(self, resident):
        pass

    def visit_variable(self, variable):
        self.arrays.append(variable.array)

    def visit_array(self, array):
        self.arrays.append(array)
        return array


@pytest.mark.parametrize(
    "combine",
    [
        lambda backbone, head: Divisible(backbone, head),
        lambda backbone, head: Divisible(chainer.Sequential(backbone), head),
        lambda backbone, head: backbone + Divisible(head),
        lambda backbone, head: Divisible(*backbone, head),
        lambda backbone, head: Divisible(backbone, head).flatten(),
        lambda backbone, head: copy.deepcopy(Divisible(backbone, head)),
        lambda backbone, head: Divisible(backbone, head).copy(),
    ],
)
def test_a_part_that_was_loaded_before_it_became_one(tmp_path, combine):
    trained = Divisible(L.Linear(4, 5), F.relu, L.Linear(5, 4))
    chainer.serializers.save_npz(tmp_path / "backbone.npz", trained)
    with deferred_init(0):
        backbone = Divisible(L.Linear(4, 5), F.relu, L.Linear(5, 4))
        chainer.serializers.load_npz(tmp_path / "backbone.npz", backbone)
        model = combine(backbone, L.Linear(4, 3))
    params = list(model.divide(0, len(model) - 1).params())
    assert len(params) == 4
    for param, expected in zip(params, trained.params()):
        np.testing.assert_array_equal(param.array, expected.array)


def test_a_tied_model_that_was_loaded_can_be_copied(tmp_path):
    def build():
        model = Divisible(L.Linear(4, 5), F.relu, L.Linear(5, 4))
        model.tie("/0/W", "/2/W", transpose=True)
        return model

    trained = build()
    chainer.serializers.save_npz(tmp_path / "model.npz", trained)
    with deferred_init(0):
        model = build()
    chainer.serializers.load_npz(tmp_path / "model.npz", model)
    for _ in range(2):
        stage = model.divide(2, 3, mode="copy")
        np.testing.assert_array_equal(
            dict(stage.namedparams())["/0/W"].array, trained[0].W.array
        )
        model = model.copy()


def test_devices_are_visited_when_a_layer_is_made():
    model = build(lambda: Divisible(L.BatchNormalization(4), L.Linear(4, 4)))
    moves = Moves()
    model.device_resident_accept(moves)
    assert not moves.arrays
    model.divide(0, 1)
    assert [type(array) for array in moves.arrays] == [np.ndarray] * 4
    model.to_device("@numpy")
    assert values(model.divide()).keys() == {
        "/0/avg_mean",
        "/0/avg_var",
        "/0/beta",
        "/0/gamma",
        "/1/W",
        "/1/b",
    }


@pytest.mark.gpu
def test_weights_on_a_gpu_are_those_of_the_cpu():
    cupy = pytest.importorskip("cupy")
    if not cupy.is_available():
        pytest.skip("no GPU")
    expected = values(build(ResNet50).divide(3, 6))
    model = build(ResNet50)
    model.to_device("@cupy:0")
    stage = model.divide(3, 6)
    assert stage.device.xp is cupy
    stage.to_device("@numpy")
    assert_equal(values(stage), expected)


@pytest.mark.parametrize(
    ("make", "axis"),
    [
        (lambda: L.Linear(4, 3), 0),
        (lambda: L.Convolution2D(2, 3, 3), 0),
        (lambda: L.Deconvolution2D(2, 3, 3), 1),
    ],
)
def test_a_spectral_norm_with_gamma_is_that_of_the_weights(make, axis):
    def model():
        hook = SpectralNormalization(use_gamma=True)
        return Divisible(L.Linear(2, 2), make().add_hook(hook), F.relu)

    stages = [build(model).divide(1, 2), build(model).divide(), build(model).divide(1)]
    for (link,) in ([layer for layer in s if hasattr(layer, "gamma")] for s in stages):
        weights = np.moveaxis(link.W.array, axis, 0).reshape(link.W.shape[axis], -1)
        expected = np.linalg.svd(weights, compute_uv=False)[0]
        assert link.gamma.shape == () and link.gamma.dtype == np.float32
        np.testing.assert_allclose(link.gamma.array, expected, rtol=1e-5)
        assert link.gamma.array == stages[0][0].gamma.array
        assert "gamma" in link._params
