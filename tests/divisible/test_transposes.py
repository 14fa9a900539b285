"""Parameters that layers use transposed."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import Divisible, deferred_init
from divisible.ties import Tie
from divisible.transposes import Transposes
from tests.support.autoencoder import X, autoencoder


def train(model, n_steps=3):
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(model)
    for _ in range(n_steps):
        loss = F.mean_squared_error(model(X), X)
        model.cleargrads()
        loss.backward()
        optimizer.update()


def test_a_transposed_tie_trains_as_chainer_would():
    model = autoencoder()
    W, b, c = (
        chainer.Parameter(param.array.copy())
        for _, param in sorted(model.namedparams())
    )
    plain = chainer.Link()
    for name, param in (("W", W), ("b", b), ("c", c)):
        with plain.init_scope():
            setattr(plain, name, param)

    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(plain)
    for _ in range(3):
        y = F.linear(F.tanh(F.linear(X, W, b)), F.transpose(W), c)
        loss = F.mean_squared_error(y, X)
        plain.cleargrads()
        loss.backward()
        optimizer.update()
    train(model)
    for (_, actual), expected in zip(sorted(model.namedparams()), (W, b, c)):
        np.testing.assert_allclose(actual.array, expected.array, rtol=1e-6)


def test_files_have_each_weight_as_its_layer_uses_it(tmp_path):
    model = autoencoder()
    train(model)
    chainer.serializers.save_npz(tmp_path / "model.npz", model)
    saved = np.load(tmp_path / "model.npz")
    assert sorted(saved) == ["0/W", "0/b", "2/W", "2/b"]
    np.testing.assert_array_equal(saved["2/W"], saved["0/W"].T)
    stage = autoencoder().divide(2, 3)
    chainer.serializers.load_npz(tmp_path / "model.npz", stage)
    np.testing.assert_array_equal(
        dict(stage.namedparams())["/0/W"].array, model[0].W.array
    )
    chainer.serializers.save_npz(tmp_path / "stage.npz", stage)
    again = np.load(tmp_path / "stage.npz")
    assert sorted(again) == ["2/W", "2/b"]
    np.testing.assert_array_equal(again["2/W"], saved["2/W"])
    untied = Divisible(L.Linear(5, 3), F.tanh, L.Linear(3, 5))
    chainer.serializers.load_npz(tmp_path / "model.npz", untied)
    np.testing.assert_array_equal(untied(X).array, model(X).array)


def test_a_model_that_is_made_later_reads_what_it_uses_transposed(tmp_path):
    model = autoencoder()
    train(model)
    chainer.serializers.save_npz(tmp_path / "model.npz", model)
    with deferred_init(1):
        deferred = autoencoder()
    chainer.serializers.load_npz(tmp_path / "model.npz", deferred)
    stage = deferred.divide(2, 3)
    np.testing.assert_array_equal(stage[0].W.array, model[0].W.array)
    np.testing.assert_array_equal(deferred.divide()(X).array, model(X).array)


def test_layers_of_a_model_with_transposed_ties_are_not_given_away():
    for combine in (
        lambda model: Divisible(F.tanh) + model,
        lambda model: Divisible(F.tanh).extend(model),
        lambda model: Divisible(F.tanh).__iadd__(model),
    ):
        with pytest.raises(TypeError, match="whose positions are fixed"):
            combine(autoencoder())


def test_all_uses_within_a_nested_model_become_the_transpose():
    inner = Divisible(L.Linear(4, 4), F.relu, L.Linear(4, 4))
    inner.tie("/0/W", "/2/W")
    model = Divisible(L.Linear(4, 4), inner)
    model.tie("/0/W", "/1/0/W", transpose=True)
    paths = [path for path, _ in model.namedparams()]
    assert sorted(paths) == ["/0/W", "/0/b", "/1/0/b", "/1/2/b"]
    W = model[0].W.array
    x = np.ones((2, 4), np.float32)
    h = F.relu(F.linear(model[0](x), W.T, inner[0].b))
    np.testing.assert_allclose(
        model(x).array, F.linear(h, W.T, inner[2].b).array, rtol=1e-6
    )


def test_a_tie_within_a_layer_leaves_an_earlier_transpose_its_source():
    layer = chainer.Chain(a=L.Linear(5, 4), b=L.Linear(5, 4))
    layer.forward = lambda x: layer.a(x) + layer.b(x)
    model = Divisible(layer, L.Linear(4, 5))
    model.tie("/0/b/W", "/1/W", transpose=True)
    model.tie("/0/b/W", "/0/a/W")
    assert model.ties == (Tie("/0/a/W", (0, 1)),)
    x = np.ones((2, 5), np.float32)
    expected = layer(x).array @ layer.a.W.array + model[1].b.array
    np.testing.assert_allclose(model(x).array, expected, rtol=1e-5)


paths = st.dictionaries(st.integers(0, 3), st.sets(st.sampled_from(["/W", "/a/W"])))


@given(paths, paths)
def test_the_transpose_of_a_transpose_is_none(paths, more):
    transposes = Transposes(paths)
    both = transposes.toggled(more)
    for position in range(4):
        mine, others = paths.get(position, set()), more.get(position, set())
        assert (position in transposes) == bool(mine)
        assert (position in both) == (mine != others)
    assert bool(transposes) == any(paths.values())
    assert not both.toggled(more).toggled(paths)


def test_a_layer_has_its_parameters_back_after_an_error():
    link = L.Linear(3, 2)
    W = link.W
    with pytest.raises(KeyError), Transposes({5: ["/W"]}).given_to(link, 5):
        assert link.W.shape == (3, 2)
        raise KeyError
    assert link.W is W


def test_other_layers_keep_theirs():
    link = L.Linear(3, 2)
    with Transposes({5: ["/W"]}).given_to(link, 4):
        assert link.W.shape == (2, 3)


def test_a_transpose_of_its_own_is_shared_no_more():
    np.random.seed(0)
    model = Divisible(L.Linear(3, 2), L.Linear(2, 3), L.Linear(3, 4), L.Linear(4, 3))
    model.tie("/0/W", "/1/W", transpose=True)
    model.tie("/2/W", "/3/W", transpose=True)
    x = np.random.randn(4, 3).astype(np.float32)
    before, weight = model(x).array, model[0].W.array.copy()
    model.dissolve_transposes([model[1]])
    np.testing.assert_array_equal(model(x).array, before)
    np.testing.assert_array_equal(model[1].W.array, weight.T)
    assert model[1].W is not model[0].W and model[1].W.name == "W"
    assert [tie.path for tie in model.ties] == ["/2/W"]
    model[1].W.array[...] = 0
    np.testing.assert_array_equal(model[0].W.array, weight)
