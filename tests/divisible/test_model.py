import copy
import gc
import pickle
import weakref
from functools import partial

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible


class Net(Divisible):
    """Written as in the paper's Fig. 3: no call of super().__init__()."""

    def __init__(self, n_units=5):
        self.n_units = n_units
        self.append(L.Linear(4, n_units))
        self.append(F.relu)
        self.append(L.Linear(n_units, n_units))
        self.append(partial(F.dropout, ratio=0.0))
        self.append(L.Linear(n_units, 3))


X = np.random.RandomState(0).rand(6, 4).astype(np.float32)


def paths(model):
    return [path for path, _ in model.namedparams()]


def test_paths_count_every_layer():
    assert paths(Net()) == ["/0/W", "/0/b", "/2/W", "/2/b", "/4/W", "/4/b"]
    assert [link.name for link in Net().children()] == ["0", "2", "4"]


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_stages_compose_to_the_model(cut):
    model = Net()
    a, b = model.divide(None, cut), model.divide(cut, None)
    assert type(a) is Net and b.n_units == 5
    assert (a.layer_range, b.layer_range) == ((0, cut), (cut, 5))
    assert len(a) + len(b) == 5
    np.testing.assert_array_equal(b(a(X)).array, model(X).array)
    assert paths(a) + paths(b) == paths(model)


def test_stage_shares_links_and_renames_nothing():
    model = Net()
    before = [(path, id(param)) for path, param in model.namedparams()]
    stage = model.divide(2, 5)
    assert stage[0] is model[2]
    assert [(path, id(param)) for path, param in model.namedparams()] == before
    assert dict(stage.namedparams())["/4/W"] is model[4].W
    assert [name for name, _ in stage.namedlinks(skipself=True)] == ["/2", "/4"]


def test_another_container_of_the_same_links_renames_nothing():
    model = Net()
    stage = model.divide(2, 5)
    chainer.Sequential(model[4], model[2])
    assert paths(stage) == ["/2/W", "/2/b", "/4/W", "/4/b"]
    assert paths(model)[0] == "/0/W"


def test_stage_keeps_no_other_layer_alive():
    class WithAttributes(Divisible):
        def __init__(self):
            super().__init__()
            self.first = L.Linear(4, 4)
            self.last = L.Linear(4, 4)
            self.append(self.first)
            self.append(self.last)

    model = WithAttributes()
    freed = weakref.ref(model.first)
    stage = model.divide(1, 2)
    del model
    gc.collect()
    assert freed() is None
    assert stage.last is stage[0]


def test_stage_of_a_stage_uses_positions_of_the_model():
    stage = Net().divide(1, 5).divide(2, 4)
    assert stage.layer_range == (2, 4)
    assert paths(stage) == ["/2/W", "/2/b"]


@pytest.mark.parametrize(
    "start, end, words",
    [
        (2, 2, "no layers"),
        (3, 1, "no layers"),
        (0, 6, "out of range"),
        (-1, 3, "out of range"),
        (6, None, "out of range"),
        (5, None, "no layers"),
    ],
)
def test_bad_ranges_are_refused(start, end, words):
    with pytest.raises(IndexError, match=words):
        Net().divide(start, end)


def test_position_must_be_an_integer():
    with pytest.raises(TypeError):
        Net().divide(0.5, 2)


def test_a_stage_cannot_be_changed():
    stage = Net().divide(0, 2)
    for change in (
        lambda: stage.append(F.relu),
        lambda: stage.pop(),
        lambda: stage.clear(),
        lambda: stage.__setitem__(0, F.relu),
    ):
        with pytest.raises(TypeError, match="change the model"):
            change()


def test_what_belongs_to_no_layer_cannot_be_divided():
    class OwnForward(Net):
        def forward(self, x):
            return super().forward(x) * 2

    class OwnParameter(Net):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.scale = chainer.Parameter(np.ones(3, np.float32))

    with pytest.raises(TypeError, match="OwnForward.forward"):
        OwnForward().divide(0, 2)
    with pytest.raises(TypeError, match="scale"):
        OwnParameter().divide(0, 2)


def test_a_layer_must_be_callable():
    with pytest.raises(TypeError, match="not callable"):
        Divisible(3)


def test_repeated_link_is_one_layer():
    linear = L.Linear(4, 4)
    model = Divisible(linear, F.relu, linear)
    assert paths(model) == ["/0/W", "/0/b"]
    assert len(list(model.params())) == 2
    assert paths(model.divide(2, 3)) == ["/0/W", "/0/b"]


def test_nested_models_and_functions_are_layers():
    model = Divisible(
        L.Linear(4, 4), Net(), lambda x: x * 2, Divisible(F.relu, L.Linear(3, 2))
    )
    assert paths(model)[2:4] == ["/1/0/W", "/1/0/b"]
    assert paths(model.divide(3, 4)) == ["/3/1/W", "/3/1/b"]
    assert len(model.flatten()) == 9


def test_lazily_sized_links():
    model = Divisible(L.Linear(None, 5), F.relu, L.Linear(None, 3))
    stage = model.divide(2, 3)
    assert paths(stage) == ["/2/W", "/2/b"]
    model(X)
    assert stage[0].W.shape == (3, 5)


@pytest.mark.parametrize("edit", ["insert", "set", "delete", "pop", "remove", "add"])
def test_edits_renumber(edit):
    model = Net()
    if edit == "insert":
        model.insert(0, F.relu)
        expected = ["/1", "/3", "/5"]
    elif edit == "set":
        model[1] = L.Linear(5, 5)
        expected = ["/0", "/1", "/2", "/4"]
    elif edit == "delete":
        del model[1]
        expected = ["/0", "/1", "/3"]
    elif edit == "pop":
        assert isinstance(model.pop(), L.Linear)
        expected = ["/0", "/2"]
    elif edit == "remove":
        model.remove(F.relu)
        expected = ["/0", "/1", "/3"]
    else:
        model += Divisible(F.relu, L.Linear(3, 3))
        expected = ["/0", "/2", "/4", "/6"]
    assert [path for path, _ in model.namedlinks(skipself=True)] == expected


def test_sum_of_two_models():
    both = Divisible(L.Linear(4, 4)) + Divisible(F.relu, L.Linear(4, 4))
    assert paths(both) == ["/0/W", "/0/b", "/2/W", "/2/b"]


@pytest.mark.parametrize("mode", ["share", "copy", "init"])
def test_copy_keeps_class_and_positions(mode):
    model = Net()
    model.append(lambda x: x)
    stage = model.divide(2, 6)
    other = stage.copy(mode)
    assert type(other) is Net and other.layer_range == (2, 6)
    assert paths(other) == paths(stage)
    assert other[0] is not stage[0]
    same = np.array_equal(other[0].W.array, stage[0].W.array)
    assert same == (mode != "init")
    assert (other[0].W.array is stage[0].W.array) == (mode == "share")
    assert paths(model) == ["/0/W", "/0/b", "/2/W", "/2/b", "/4/W", "/4/b"]


def test_copy_of_a_repeated_link_stays_one_layer():
    linear = L.Linear(4, 4)
    model = Divisible(linear, linear).copy("share")
    assert model[0] is model[1] and model[0] is not linear


def test_deepcopy_with_a_lambda():
    model = Divisible(L.Linear(4, 3), lambda x: x * 2)
    np.testing.assert_array_equal(copy.deepcopy(model)(X).array, model(X).array)


def test_pickle():
    stage = Net().divide(1, 4)
    other = pickle.loads(pickle.dumps(stage))
    assert other.layer_range == (1, 4)
    assert paths(other) == ["/2/W", "/2/b"]
    assert other.model_layers == stage.model_layers
    with pytest.raises(ValueError, match="lambda"):
        pickle.dumps(Divisible(lambda x: x))


def test_snapshot_of_stages_loads_in_the_model(tmp_path):
    source, target = Net(), Net()
    for i, stage in enumerate([source.divide(0, 3), source.divide(3, 5)]):
        chainer.serializers.save_npz(tmp_path / f"{i}.npz", stage)
    for i in range(2):
        chainer.serializers.load_npz(tmp_path / f"{i}.npz", target, strict=False)
    np.testing.assert_array_equal(target(X).array, source(X).array)


def test_copyparams_and_addgrads_by_position():
    source, target = Net(), Net()
    source.cleargrads()
    target.cleargrads()
    F.sum(source(X)).backward()
    stage = target.divide(2, 5)
    stage.copyparams(source)
    stage.addgrads(source)
    np.testing.assert_array_equal(target[4].W.array, source[4].W.array)
    np.testing.assert_array_equal(target[2].W.grad, source[2].W.grad)
    with pytest.raises(ValueError, match="layer 0"):
        target.copyparams(source.divide(2, 5))


def test_text_shows_positions():
    assert repr(Net().divide(3, 5)).splitlines()[-2:] == [
        "  (4): Linear(in_size=5, out_size=3, nobias=False),",
        ")",
    ]
    assert str(Divisible()) == "Divisible()"


def test_model_layers_are_the_same_in_every_process():
    model = Divisible(F.relu, partial(F.dropout, ratio=0.5), Net())
    assert not any("0x" in line for line in model.model_layers)
    assert model.divide(1, 2).model_layers == model.model_layers
    assert Net(5).model_layers != Net(6).model_layers


def test_an_error_names_the_layer():
    model = Divisible(F.relu, Net(), lambda x: x.no_such_attribute)
    with pytest.raises(AttributeError) as caught:
        model.divide(1, 3)(X)
    assert caught.value.layer_position == 2


def positions_of(y):
    found, positions = [y.creator_node], []
    while found:
        function = found.pop()
        positions.append(function.layer_position)
        found += [x.creator_node for x in function.inputs if x.creator_node]
    return positions


def test_functions_of_earlier_passes_keep_their_positions():
    first, second = Divisible(F.relu, F.tanh, F.exp), Divisible(F.sigmoid, F.log)
    x = chainer.Variable(np.ones((2, 3), np.float32))
    assert positions_of(second(first(x))) == [1, 0, 2, 1, 0]
    # A nested model is a layer of the outer one.
    nested = Divisible(F.relu, first)
    assert positions_of(nested(x)) == [1, 1, 1, 0]


def test_a_layer_is_known_by_what_it_was_when_it_came():
    model = Divisible(L.BatchNormalization(axis=0), L.Linear(None, 2))
    before = model.model_layers
    model(np.ones((4, 3), np.float32))
    assert model.model_layers == before
    model[0] = F.relu
    assert model.model_layers == ("relu", before[1])
    del model[0]
    assert model.model_layers == before[1:]
    assert model.copy().divide(0, 1).model_layers == before[1:]


def test_a_model_without_layers():
    with pytest.raises(RuntimeError, match="no layers"):
        Divisible()(X)


def test_optimizer_on_a_stage():
    stage = Net().divide(2, 5)
    optimizer = chainer.optimizers.SGD(0.1).setup(stage)
    before = stage[0].W.array.copy()
    optimizer.update(lambda x: F.sum(stage(x)), np.ones((2, 5), np.float32))
    assert not np.array_equal(stage[0].W.array, before)


def test_marks_to_recompute_survive_combining():
    inner = Divisible(F.tanh)
    inner.append(F.relu, recompute=True)
    model = Divisible(F.sigmoid)
    model += inner
    assert model.recomputed == (False, False, True)
    assert (inner + inner).recomputed == (False, True, False, True)
    nested = Divisible(F.sigmoid, inner)
    nested.append(Divisible(F.tanh, F.tanh), recompute=True)
    assert nested.flatten().recomputed == (False, False, True, True, True)
