"""Parameters that several layers use, undivided and divided, without a pipeline."""

import threading

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, deferred_init
from divisible.ties import Tie
from tests.support.autoencoder import X, autoencoder


def test_a_tied_parameter_is_updated_once():
    model = Divisible(L.Linear(5, 5), F.tanh, L.Linear(5, 5))
    model.tie("/0/W", "/2/W")
    assert model[0].W is model[2].W
    paths = [path for path, _ in model.namedparams()]
    assert sorted(paths) == ["/0/W", "/0/b", "/2/b"]
    assert len(list(model.params())) == 3
    before = model[0].W.array.copy()
    optimizer = chainer.optimizers.SGD(1.0).setup(model)
    model.cleargrads()
    F.sum(model(X)).backward()
    gradient = model[0].W.grad.copy()
    optimizer.update()
    np.testing.assert_allclose(model[0].W.array, before - gradient, rtol=1e-6)


def test_ties_are_found_however_they_were_made():
    linear = L.Linear(5, 5)
    model = Divisible(linear, L.Linear(5, 5), L.Linear(5, 5), linear, L.Linear(5, 5))
    model[2].W = model[1].W
    model.tie("/1/W", "/4/W", transpose=True)
    assert set(model.ties) == {
        Tie("/0/W", (0, 3)),
        Tie("/0/b", (0, 3)),
        Tie("/1/W", (1, 2, 4)),
    }


def test_links_with_running_averages_in_several_layers_are_found():
    norm = L.BatchNormalization(5, use_gamma=False, use_beta=False)
    model = Divisible(
        norm, chainer.Sequential(F.relu, norm), L.Linear(5, 5), L.BatchNormalization(5)
    )
    (state,) = model.shared_states
    assert state[:2] == ("/0", (0, 1)) and "running averages" in state.reason


@pytest.mark.parametrize("name", ["W", "b"])
def test_copies_with_one_array_are_found(name):
    linear = L.Linear(5, 5, nobias=name == "W")
    model = Divisible(linear, F.tanh, linear.copy(), linear.copy("copy"))
    states = {state[:2] for state in model.shared_states}
    assert (f"/0/{name}", (0, 2)) in states
    assert all("Divisible.tie" in state.reason for state in model.shared_states)
    # A layer that is there twice is no copy, nor are parameters that are tied.
    tied = Divisible(linear, linear, L.Linear(5, 5))
    tied.tie("/0/W", "/2/W")
    assert tied.shared_states == ()


def test_copies_that_get_their_size_later():
    layers = L.Linear(None, 5, nobias=True).repeat(2, "share")
    (state,) = Divisible(*layers, L.Linear(5, 3)).shared_states
    assert state[:2] == ("/0/W", (0, 1))
    lonely = L.Linear(None, 5).repeat(2, "copy")
    assert Divisible(*lonely).shared_states == ()


def test_copies_of_running_averages_are_found():
    norm = L.BatchNormalization(5, use_gamma=False, use_beta=False)
    model = Divisible(norm, F.relu, norm.copy())
    assert {state[:2] for state in model.shared_states} == {
        ("/0/avg_mean", (0, 2)),
        ("/0/avg_var", (0, 2)),
    }


def test_gradients_of_tied_parameters_are_added_once():
    models = [Divisible(L.Linear(5, 5), L.Linear(5, 5)) for _ in range(2)]
    for model in models:
        model.tie("/0/W", "/1/W")
        for param in model.params():
            param.grad = np.ones_like(param.array)
    models[0].addgrads(models[1])
    assert all((param.grad == 2).all() for param in models[0].params())


def links():
    return [L.Linear(5, 5) for _ in range(4)]


def test_ties_of_ties():
    a, b, c, d = links()
    model = Divisible(a, b, c, d)
    model.tie("/2/W", "/3/W")
    model.tie("/0/W", "/2/W")
    assert a.W is c.W is d.W is not b.W
    # A transpose follows what it is the transpose of.
    a, b, c, d = links()
    model = Divisible(a, b, c, d)
    model.tie("/2/W", "/3/W", transpose=True)
    model.tie("/0/W", "/2/W")
    assert a.W is c.W is d.W
    assert model.ties == (Tie("/0/W", (0, 2, 3)),)
    expected = F.linear(c(b(a(X))), a.W.array.T, d.b)
    np.testing.assert_array_equal(model(X).array, expected.array)
    # And the transpose of a transpose is the thing itself.
    a, b, c, d = links()
    model = Divisible(a, b, c, d)
    model.tie("/2/W", "/3/W", transpose=True)
    model.tie("/0/W", "/2/W", transpose=True)
    assert a.W is c.W is d.W
    assert model.ties == (Tie("/0/W", (0, 2, 3)),)
    expected = d(F.linear(b(a(X)), a.W.array.T, c.b))
    np.testing.assert_array_equal(model(X).array, expected.array)
    # All that share a parameter become its transpose.
    a, b, c, d = links()
    model = Divisible(a, b, c, d)
    model.tie("/1/W", "/3/W")
    model.tie("/0/W", "/1/W", transpose=True)
    assert a.W is b.W is d.W
    expected = F.linear(F.linear(a(X), a.W.array.T, b.b), c.W, c.b)
    expected = F.linear(expected, a.W.array.T, d.b)
    np.testing.assert_array_equal(model(X).array, expected.array)


def test_copies_of_the_model_are_tied_too():
    model = Divisible(*links())
    model.tie("/0/W", "/1/W")
    for mode in ("share", "copy", "init"):
        copied = model.copy(mode)
        assert copied[0].W is copied[1].W is not model[0].W


def test_copyparams_reaches_what_a_stage_has_copies_of():
    stage, model = autoencoder().divide(2, 3), autoencoder()
    model[0].W.array += 1
    stage.copyparams(model)
    np.testing.assert_array_equal(
        dict(stage.namedparams())["/0/W"].array, model[0].W.array
    )


def test_what_cannot_be_copied_for_a_stage_is_named():
    linear = L.Linear(5, 5)
    linear.lock = threading.Lock()
    model = Divisible(linear, F.relu, linear)
    with pytest.raises(TypeError, match="Linear shares parameters with a layer before"):
        model.divide(2, 3)


def test_stages_have_copies_under_the_same_path():
    model = autoencoder()
    first, second = model.divide(0, 2), model.divide(2, 3)
    assert sorted(p for p, _ in first.namedparams()) == ["/0/W", "/0/b"]
    assert sorted(p for p, _ in second.namedparams()) == ["/0/W", "/2/b"]
    assert first[0].W is model[0].W
    copy = dict(second.namedparams())["/0/W"]
    assert copy is not first[0].W
    assert not np.shares_memory(copy.array, first[0].W.array)
    np.testing.assert_array_equal(second(first(X)).array, model(X).array)
    # The other layers are the very same.
    assert second[2 - 2].b is model[2].b


def test_layers_of_one_stage_share_one_copy():
    np.random.seed(0)
    linear = L.Linear(5, 5)
    model = Divisible(linear, F.tanh, L.Linear(5, 5), linear, L.Linear(5, 5))
    model[2].W = linear.W
    model.tie("/0/W", "/4/W", transpose=True)
    stage = model.divide(1, 5)
    own = dict(stage.namedparams())
    assert set(own) == {"/0/W", "/0/b", "/2/b", "/4/b"}
    assert stage[1].W is stage[2].W is own["/0/W"]
    assert own["/0/W"] is not linear.W
    np.testing.assert_array_equal(stage(model[0](X)).array, model(X).array)
    # A part of a part is as a part of the whole.
    again = stage.divide(3, 5)
    assert set(dict(again.namedparams())) == {"/0/W", "/0/b", "/4/b"}
    assert again.ties == model.ties


def test_a_part_of_a_stage_finds_the_weight_that_another_layer_holds():
    np.random.seed(0)
    model = Divisible(*[L.Linear(5, 5) for _ in range(3)])
    model.tie("/0/W", "/1/W", transpose=True)
    model.tie("/0/W", "/2/W")
    stage = model.divide(1, 3)
    # The stage has /0/W in its last layer, and nothing at the position 0.
    part = stage.view(1, 2)
    assert set(dict(part.namedparams())) == {"/0/W", "/1/b"}
    assert dict(part.namedparams())["/0/W"] is stage[1].W
    np.testing.assert_array_equal(
        part(X).array, X @ model[0].W.array + model[1].b.array
    )


def test_parameters_inside_of_chains_are_tied():
    def pair():
        return chainer.Sequential(L.Linear(5, 5), F.tanh)

    model = Divisible(pair(), pair())
    model.tie("/0/0/W", "/1/0/W", transpose=True)
    x = F.tanh(model[0][0](X))
    expected = F.tanh(F.linear(x, model[0][0].W.array.T, model[1][0].b))
    np.testing.assert_array_equal(model(X).array, expected.array)
    assert "/0/0/W" in dict(model.divide(1, 2).namedparams())


def test_the_order_of_the_paths_does_not_matter():
    model = Divisible(L.Linear(5, 3), L.Linear(3, 5))
    model.tie("/1/W", "/0/W", transpose=True)
    assert "/0/W" in dict(model.namedparams())


def model():
    return Divisible(L.Linear(5, 3), L.Linear(3, 5), L.Linear(None, 5), L.Linear(5, 3))


WRONG = {
    "shape": (
        ("/0/W", "/1/W"),
        {},
        r"/0/W is \(3, 5\) of float32, and /1/W is \(5, 3\)",
    ),
    "transposed shape": (
        ("/0/W", "/3/W"),
        {"transpose": True},
        r"/3/W transposed is \(5, 3\)",
    ),
    "missing": (("/0/W", "/9/W"), {}, "no parameter '/9/W' of its own"),
    "same": (("/0/W", "/0/W"), {}, "they are one parameter already"),
    "lazy": (("/0/W", "/2/W"), {}, "the shape of /2/W is not known"),
    "vector": (("/0/b", "/3/b"), {"transpose": True}, "only matrices"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_tied_is_refused(name):
    paths, options, words = WRONG[name]
    with pytest.raises(ValueError, match=words):
        model().tie(*paths, **options)


def test_what_is_tied_already_is_refused():
    tied = autoencoder()
    with pytest.raises(ValueError, match="no parameter '/2/W' of its own"):
        tied.tie("/0/W", "/2/W", transpose=True)
    with pytest.raises(TypeError, match="change the list first, then tie"):
        tied.append(F.relu)


def test_a_stage_is_not_tied():
    with pytest.raises(TypeError, match="tie the layers of the model"):
        autoencoder().divide(0, 1).tie("/0/W", "/0/b")


# -- models whose parameters are not made yet ---------------------------------------


def deferred():
    with deferred_init(seed=4):
        linear = L.Linear(5, 5)
        model = Divisible(
            linear,
            chainer.Sequential(L.Linear(5, 3), F.tanh),
            L.Linear(3, 5),
            linear,
            L.Linear(5, 5),
            L.Linear(5, 3),
        )
        model[4].W = linear.W
    model.tie("/1/0/W", "/2/W", transpose=True)
    model.tie("/1/0/W", "/5/W")
    return model


@pytest.mark.parametrize("cuts", [[0, 1, 2, 3, 4, 5, 6], [0, 2, 6], [0, 4, 6]])
def test_tied_parameters_are_made_the_same_in_every_stage(cuts):
    expected = {p: v.array for p, v in deferred().divide().namedparams()}
    y = X
    for start, end in zip(cuts, cuts[1:]):
        stage = deferred().divide(start, end)
        for path, param in stage.namedparams():
            np.testing.assert_array_equal(param.array, expected[path])
        y = stage(y)
    np.testing.assert_array_equal(y.array, deferred().divide()(X).array)


def test_a_file_is_read_into_copies_too(tmp_path):
    model = deferred().divide()
    for param in model.params():
        param.array += 1
    chainer.serializers.save_npz(tmp_path / "model.npz", model)
    later = deferred()
    chainer.serializers.load_npz(tmp_path / "model.npz", later)
    expected = {path: param.array for path, param in model.namedparams()}
    for i in reversed(range(6)):
        for path, param in later.divide(i, i + 1).namedparams():
            np.testing.assert_array_equal(param.array, expected[path])


def test_an_attribute_of_a_stage_is_its_own_layer():
    class Tied(Divisible):
        def __init__(self):
            self.embed = L.EmbedID(5, 4)
            self.out = L.Linear(4, 5)
            self.append(self.embed)
            self.append(F.tanh)
            self.append(self.out)
            self.tie("/0/W", "/2/W")

    model = Tied()
    first, last = model.divide(0, 2), model.divide(2, 3)
    assert first.embed is first[0] is model.embed and not hasattr(first, "out")
    assert last.out is last[0] is not model.out and not hasattr(last, "embed")
