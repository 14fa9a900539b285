"""Weights that are prepared once, and noticed if they change all the same."""

import functools
import subprocess
import sys
import threading
import weakref
from importlib import metadata

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.link_hooks import SpectralNormalization

import chainer_kernels
from chainer_kernels import (
    kept_weights,
    prepared_weights,
    providers,
    watched_parameters,
)
from chainer_kernels.providers import blas, onednn, onednn_products
from divisible import Divisible

PROVIDERS = ["blas", "onednn"]


def _has_onednn() -> bool:
    try:
        return bool(metadata.version("onednn-cpu-gomp"))
    except metadata.PackageNotFoundError:
        return False


@pytest.fixture(params=PROVIDERS, autouse=True)
def provider(request, monkeypatch):
    """Computes by each provider, and prepares weights of small layers as well."""
    if request.param == "onednn" and not _has_onednn():
        pytest.skip("needs oneDNN")
    monkeypatch.setenv("CHAINER_KERNELS_PROVIDER", request.param)
    monkeypatch.setattr(onednn_products, "SMALLEST_PRODUCT", 1)
    monkeypatch.setattr(watched_parameters, "SMALLEST", 1)
    providers.active.cache_clear()
    assert providers.active() is {"blas": blas, "onednn": onednn}[request.param]
    yield request.param
    providers.active.cache_clear()


def passes(model, x, n=4):
    """Returns outputs and gradients of forward and backward, again and again."""
    found = []
    model.cleargrads()
    for i in range(n):
        given = chainer.Variable(x + np.float32(i))
        y = model(given)
        F.sum(y * y).backward()
        found += [y.array.copy(), given.grad.copy()]
    return [*found, *(p.grad for p in model.params() if p.grad is not None)]


def check_equal(make, x, n=4, kept=None):
    """Compares passes within a scope with those outside.

    Args:
        make: Makes the model; always the same.
        x: The first input.
        n: How many passes.
        kept: Whether something was kept in the end; ``None`` if that is no matter.
    """
    expected = passes(make(), x, n)
    model = make()
    with chainer_kernels.unchanged_weights():
        found = passes(model, x, n)
        n_bytes = kept_weights.n_bytes()
    assert kept_weights.n_bytes() == 0
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * abs(a).max())
    if kept is not None:
        assert (n_bytes > 0) is kept
    return model


def seeded(make):
    """Makes a model with the same weights in each call."""

    @functools.wraps(make)
    def again():
        np.random.seed(0)
        return make()

    return again


def images(n=3, channels=4, size=4):
    return np.random.RandomState(1).randn(n, channels, size, size).astype("f")


def rows(n=3, width=6):
    return np.random.RandomState(1).randn(n, width).astype("f")


CONVOLUTIONS = {
    "padded": (lambda: L.Convolution2D(4, 6, 3, pad=1), images()),
    "few pixels": (lambda: L.Convolution2D(4, 6, 3, pad=1), images(2, 4, 2)),
    "stride": (lambda: L.Convolution2D(4, 6, 3, stride=2, pad=1), images(3, 4, 7)),
    "narrow": (lambda: L.Convolution2D(4, 6, 2, nobias=True), images(1, 4, 2)),
    "wide pad": (lambda: L.Convolution2D(4, 6, 2, pad=2), images(1, 4, 2)),
    "dilated": (lambda: L.DilatedConvolution2D(4, 6, 3, pad=2, dilate=2), images()),
    "groups": (lambda: L.Convolution2D(32, 32, 3, pad=1, groups=2), images(2, 32)),
    "deconvolution": (lambda: L.Deconvolution2D(4, 6, 3, stride=2), images()),
    "one axis": (lambda: L.Convolution1D(4, 6, 3, pad=1), images()[..., 0]),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    make, x = CONVOLUTIONS[name]
    check_equal(seeded(make), x, kept=True)


def test_products(provider):
    check_equal(seeded(lambda: L.Linear(6, 5)), rows(), kept=provider == "onednn")


def test_the_bits_are_those_of_blas_without_a_scope(provider):
    if provider != "blas":
        pytest.skip("oneDNN has another way for few rows, but the same without room")
    make, x = seeded(CONVOLUTIONS["padded"][0]), images()
    expected = passes(make(), x)
    with chainer_kernels.unchanged_weights():
        found = passes(make(), x)
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)


def set_free_bytes(monkeypatch, n_bytes):
    monkeypatch.setattr(kept_weights, "free_bytes", lambda: n_bytes)
    # What was found a moment ago.
    monkeypatch.setattr(kept_weights, "_lately", kept_weights._Lately())


@pytest.mark.parametrize("name", ["product", *CONVOLUTIONS])
def test_the_bits_do_not_depend_on_room(name, monkeypatch):
    make, x = {"product": (lambda: L.Linear(70, 50), rows(7, 70)), **CONVOLUTIONS}[name]
    with chainer_kernels.unchanged_weights():
        expected = passes(seeded(make)(), x)
    set_free_bytes(monkeypatch, 0)
    with chainer_kernels.unchanged_weights():
        found = passes(seeded(make)(), x)
        assert kept_weights.n_bytes() == 0
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_room_is_bounded(monkeypatch):
    model = seeded(lambda: L.Convolution2D(16, 16, 3, pad=1))()
    set_free_bytes(monkeypatch, 6 * model.W.array.nbytes)
    assert kept_weights.most_bytes() == 1.5 * model.W.array.nbytes
    assert kept_weights.most_bytes(16) == 32
    with chainer_kernels.unchanged_weights():
        passes(model, images(3, 16))
        assert 0 < kept_weights.n_bytes() <= kept_weights.most_bytes()


def test_free_memory_is_not_asked_for_in_each_minibatch(monkeypatch):
    model = seeded(lambda: L.Convolution2D(16, 16, 3, pad=1))()
    set_free_bytes(monkeypatch, 0)
    asked = []
    monkeypatch.setattr(kept_weights, "free_bytes", lambda: asked.append(0) or 1 << 30)
    monkeypatch.setattr(kept_weights._Lately, "SECONDS", 1000.0)
    for _ in range(3):
        with chainer_kernels.unchanged_weights():
            passes(model, images(3, 16))
            assert kept_weights.n_bytes() > 0
    assert len(asked) == 1
    monkeypatch.setattr(kept_weights._Lately, "SECONDS", 0.0)
    with chainer_kernels.unchanged_weights():
        passes(model, images(3, 16))
    assert len(asked) == 2


class Changing(chainer.Chain):
    """A layer whose forward does something to its weights.

    Args:
        change: Gets the layer and how often it was called before.
        link: The layer within.
    """

    def __init__(self, change, link=None):
        super().__init__()
        self.change, self.n_calls = change, 0
        with self.init_scope():
            self.link = link or L.Convolution2D(4, 6, 3, pad=1)

    def forward(self, x):
        self.change(self.link, self.n_calls)
        self.n_calls += 1
        return self.link(x)


def _scale(link, n):
    link.W.array *= 1.5


def _assign_a_part(link, n):
    link.W.data[0] = n


def _replace(link, n):
    link.W.array = link.W.array * np.float32(1.5)


def _replace_parameter(link, n):
    with link.init_scope():
        link.W = chainer.Parameter(link.W.array * np.float32(1.5))


def _copy(link, n):
    link.W.copydata(chainer.Parameter(np.full(link.W.shape, n, np.float32)))


def _later(link, n):
    if n == 2:
        np.copyto(link.W.array, 3)


def _scale_in_a_thread(link, n):
    thread = threading.Thread(target=_scale, args=(link, n))
    thread.start()
    thread.join()


def _update(link, n):
    link.W.grad = np.ones_like(link.W.array)
    link.W.update_rule = chainer.optimizers.SGD(0.5).create_update_rule()
    link.W.update()


@pytest.mark.parametrize(
    "change",
    [
        _scale,
        _assign_a_part,
        _replace,
        _replace_parameter,
        _copy,
        _later,
        _scale_in_a_thread,
        _update,
    ],
)
@pytest.mark.parametrize("link", ["convolution", "linear"])
def test_a_layer_that_changes_its_weights(change, link):
    if link == "linear":
        make, x = lambda: Changing(change, L.Linear(6, 5)), rows()
    else:
        make, x = lambda: Changing(change), images()
    check_equal(seeded(make), x)


def test_noise_that_is_taken_away_again():
    class Noisy(chainer.Chain):
        def __init__(self):
            super().__init__()
            self.random = np.random.RandomState(0)
            with self.init_scope():
                self.link = L.Linear(6, 5)

        def forward(self, x):
            W = self.link.W.array
            saved = W.copy()
            W += self.random.randn(*W.shape).astype("f")
            y = self.link(x)
            W[...] = saved
            return y

    check_equal(seeded(Noisy), rows())


def test_an_array_that_somebody_else_holds():
    class Holding(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.link = L.Linear(6, 5)
            self.row = self.link.W.array[0]

        def forward(self, x):
            self.row += 1
            return self.link(x)

    check_equal(seeded(Holding), rows())


def test_an_array_that_is_part_of_another():
    flat = np.zeros(6 * 5, "f")

    class Flat(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.link = L.Linear(6, 5, initialW=flat.reshape(5, 6))
            flat[...] = 0
            self.link.W.array = flat.reshape(5, 6)

        def forward(self, x):
            flat[...] += 1
            return self.link(x)

    check_equal(seeded(Flat), rows())


def test_a_function_that_writes_to_its_inputs():
    class Writing(chainer.FunctionNode):
        def forward(self, inputs):
            inputs[0][...] *= 1.5
            return (np.zeros((), "f"),)

        def backward(self, indexes, grad_outputs):
            return (None,)

    def change(link, n):
        Writing().apply((link.W,))

    check_equal(seeded(lambda: Changing(change)), images())


def test_a_function_that_keeps_its_input():
    kept = []

    def change(link, n):
        if n == 0:
            kept[:] = [F.transpose(link.W).array]
        else:
            kept[0][...] *= 1.5

    check_equal(seeded(lambda: Changing(change, L.Linear(6, 5))), rows())


@pytest.mark.parametrize("when", ["while it is there", "afterwards"])
def test_a_function_hook_that_ends_before_the_weights_are_used(when):
    class Keeping(chainer.FunctionHook):
        name = "keeping"

        def forward_postprocess(self, function, in_data):
            self.kept = in_data[1]
            if when == "while it is there":
                self.kept[...] *= 1.5

    hook = Keeping()

    def change(link, n):
        if n < 2:
            with hook:
                link(rows())
        elif when == "afterwards":
            hook.kept[...] *= 1.5

    check_equal(seeded(lambda: Changing(change, L.Linear(6, 5))), rows())


def test_a_function_hook_that_writes():
    class Writing(chainer.FunctionHook):
        name = "writing"

        def forward_preprocess(self, function, in_data):
            if len(in_data) > 1 and in_data[1].ndim > 1:
                in_data[1][...] *= 1.5

    def make():
        return L.Linear(6, 5)

    with Writing():
        expected = passes(seeded(make)(), rows())
    with chainer_kernels.unchanged_weights(), Writing():
        found = passes(seeded(make)(), rows())
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


def test_a_link_hook_that_computes_weights():
    def make():
        link = L.Linear(6, 5)
        link.add_hook(SpectralNormalization())
        return link

    check_equal(seeded(make), rows())


def test_ties_and_transposes():
    class Tied(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.first, self.other = L.Linear(6, 6), L.Linear(6, 6)
            self.other.W = self.first.W

        def forward(self, x):
            h = self.other(F.relu(self.first(x)))
            return F.linear(h, F.transpose(self.first.W))

    model = check_equal(seeded(Tied), rows())
    assert model.other.W is model.first.W


def test_recomputation():
    class Recomputed(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.first, self.link = L.Linear(6, 6), L.Linear(6, 5)

        def forward(self, x):
            return F.forget(self.link, self.first(x))

    check_equal(seeded(Recomputed), rows())


def test_pruned_weights():
    mask = np.arange(30).reshape(5, 6) % 3 > 0

    def change(link, n):
        link.W.array[~mask] = 0

    check_equal(seeded(lambda: Changing(change, L.Linear(6, 5))), rows())


def test_an_update_in_a_scope():
    def steps():
        np.random.seed(0)
        model = chainer.Sequential(L.Linear(6, 8), F.relu, L.Linear(8, 5))
        optimizer = chainer.optimizers.Adam(0.1).setup(model)
        found = []
        for _ in range(3):
            found += passes(model, rows(), 2)
            optimizer.update()
        return found

    expected = steps()
    with chainer_kernels.unchanged_weights():
        found = steps()
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_double_backward():
    def run():
        np.random.seed(0)
        link, x = L.Convolution2D(4, 6, 3, pad=1), chainer.Variable(images())
        y = link(x)
        (gx,) = chainer.grad([F.sum(y * y)], [x], enable_double_backprop=True)
        link.cleargrads()
        F.sum(gx * gx).backward()
        return [gx.array, link.W.grad]

    expected = run()
    with chainer_kernels.unchanged_weights():
        found = run()
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)


def fused(end):
    model = Divisible(L.Linear(6, 5), F.tanh, L.Linear(5, 4))
    model.fuse([(0, end)])
    return model


class Sequences(chainer.Chain):
    def __init__(self):
        super().__init__(steps=L.NStepLSTM(1, 6, 5, 0.0))

    def forward(self, x):
        return self.steps(None, None, [x])[2][0]


@pytest.mark.parametrize(
    ("make", "x", "n_weights"),
    [
        (lambda: L.Convolution2D(4, 6, 3, pad=1), images(), (1, 1)),
        (lambda: L.Linear(6, 5), rows(), (0, 1)),
        # So many rows gain nothing.
        (lambda: L.Linear(6, 5), rows(300), (0, 0)),
        (lambda: fused(2), rows(), (0, 2)),
        (lambda: fused(3), rows(), (0, 2)),
        (lambda: L.LSTM(6, 5), rows(), (0, 2)),
        (lambda: L.GRU(6, 5), rows(), (0, 6)),
        # Stacked whatever multiplies them.
        (Sequences, rows(), (8, 8)),
    ],
    ids=[
        *("convolution", "linear", "many rows", "fused", "perceptron", "LSTM", "GRU"),
        "n-step",
    ],
)
def test_unchanged_weights_cost_no_checksum(make, x, n_weights, provider, monkeypatch):
    """Each weight is summed when it is first kept, and not again."""
    sums = []
    checksum = kept_weights._checksum
    monkeypatch.setattr(
        kept_weights, "_checksum", lambda a: sums.append(a) or checksum(a)
    )
    model = make()
    with chainer_kernels.unchanged_weights():
        passes(model, x)
    assert len(sums) == n_weights[PROVIDERS.index(provider)]


def test_replaced_arrays_are_freed():
    freed = []

    def change(link, n):
        _replace(link, n)
        weakref.finalize(link.W.array, freed.append, n)

    model = seeded(lambda: Changing(change))()
    n_kept = set()
    with chainer_kernels.unchanged_weights(), chainer.no_backprop_mode():
        for _ in range(4):
            model(images())
            n_kept.add(kept_weights.n_bytes())
    assert freed == [0, 1, 2]
    assert len(n_kept) == 1 and n_kept != {0}


def test_nothing_is_left_when_a_scope_ends():
    model = seeded(lambda: L.Convolution2D(4, 6, 3, pad=1))()
    with chainer_kernels.unchanged_weights():
        passes(model, images())
        (weights,) = kept_weights.here.scope._weights.values()
        made = [weakref.ref(each) for each in weights._made.values()]
        del weights
    assert made and not any(reference() is not None for reference in made)


@pytest.mark.parametrize(("n_uses", "is_kept"), [(2, False), (4, True)])
def test_what_few_uses_do_not_gain_is_not_kept(n_uses, is_kept, provider):
    if provider == "blas":
        pytest.skip("keeps nothing of a Linear")
    model = L.Linear(6, 5)
    with chainer_kernels.unchanged_weights(n_uses):
        passes(model, rows())
        assert (kept_weights.n_bytes() > 0) is is_kept


def test_a_scope_within_another_ends_nothing():
    model = seeded(lambda: L.Convolution2D(4, 6, 3, pad=1))()
    with chainer_kernels.unchanged_weights():
        with chainer_kernels.unchanged_weights():
            passes(model, images())
            n_bytes = kept_weights.n_bytes()
        assert kept_weights.n_bytes() == n_bytes > 0
    assert kept_weights.n_bytes() == 0
    assert "raw_array" not in vars(chainer.Parameter)


def test_a_scope_ends_with_an_error():
    with pytest.raises(ZeroDivisionError), chainer_kernels.unchanged_weights():
        passes(L.Convolution2D(4, 6, 3, pad=1), images())
        1 / 0  # noqa: B018
    assert kept_weights.n_bytes() == 0
    assert "raw_array" not in vars(chainer.Parameter)


def test_threads_have_scopes_of_their_own():
    model = seeded(lambda: L.Convolution2D(4, 6, 3, pad=1))()
    model.cleargrads()
    found = []

    def elsewhere():
        model(images())
        found.append(kept_weights.n_bytes())

    with chainer_kernels.unchanged_weights():
        passes(model, images())
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert kept_weights.n_bytes() > 0
    assert found == [0]


def test_a_lazy_import_stays_lazy():
    code = (
        "import sys, chainer_kernels; chainer_kernels.is_enabled;"
        " assert 'numba' not in sys.modules and"
        " 'chainer_kernels.prepared_weights' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize("size, is_kept", [(4, False), (64, True), (None, True)])
def test_small_layers_need_no_scope(size, is_kept, monkeypatch):
    monkeypatch.setattr(watched_parameters, "SMALLEST", 1 << 12)
    layer = L.Linear(size, 64)
    scope = prepared_weights.scope_for(layer.params())
    assert (scope is prepared_weights.unchanged_weights) == is_kept
