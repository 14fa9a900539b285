"""Chains of layers of a model that run as one function."""

import copy
import pickle

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chainer_kernels
from divisible import Divisible, RandomKey, keyed_random_state, pop, stash
from divisible.layer_pass import timed_layers
from tests.support.examples import examples
from tests.support.fusion import assert_same_bits

X = np.random.RandomState(0).randn(8, 30).astype("f")


def added(x, y):
    return x + y


@chainer_kernels.fusible
def cubed(x):
    return x**3 + x


@chainer_kernels.fusible
def squared(x):
    return x * x + x


def model(fuse):
    np.random.seed(0)
    layers = Divisible(
        L.Linear(30, 30),
        F.tanh,
        F.dropout,
        stash("s"),
        F.dropout,
        F.relu,
        pop("s"),
        added,
        L.Linear(30, 3),
        F.sigmoid,
        F.tanh,
    )
    if fuse:
        layers.fuse()
        layers._fusion.decide({(1, 3): True, (4, 6): True, (9, 11): True})
    return layers


def block(join, width=8):
    """Returns a block of a network with a shortcut, and layers around it."""
    np.random.seed(0)
    return Divisible(
        L.Convolution2D(3, 8, 3, pad=1),
        stash("s"),
        *(L.Convolution2D(8, width, 3, pad=1), L.BatchNormalization(width)),
        *join,
        F.relu,
        L.Convolution2D(None, 4, 3),
    )


def labels(y):
    found, waiting = [], [y.creator_node]
    while waiting:
        function = waiting.pop()
        if function is not None and function not in found:
            found.append(function)
            waiting += [x.creator_node for x in function.inputs]
    return {f.label for f in found if " > " in f.label}


def results(layers):
    with keyed_random_state(RandomKey(seed=1, step=2)):
        y = layers(chainer.Variable(X))
    layers.cleargrads()
    F.sum(y * y).backward()
    return [y.array, *(param.grad for _, param in sorted(layers.namedparams()))]


def test_values_masks_and_gradients_are_those_of_the_layers():
    layers = model(True)
    y = layers(chainer.Variable(X))
    assert labels(y) == {"Tanh > Dropout", "Dropout > ReLU", "Sigmoid > Tanh"}
    assert_same_bits(results(layers), results(model(False)))


def test_paths_stay():
    assert [p for p, _ in model(True).namedparams()] == [
        p for p, _ in model(False).namedparams()
    ]


def test_stages_fuse_what_lies_within_them():
    whole = model(False)
    layers = model(True)
    first, second = layers.divide(0, 5), layers.divide(5, 11)
    with keyed_random_state(RandomKey(seed=1, step=2)):
        y, left = first.run(chainer.Variable(X), {})
        # Half of the chain 4 to 5 is here, and is no chain.
        assert labels(y) == {"Tanh > Dropout"}
        y, _ = second.run(y, left)
    assert "Dropout > ReLU" not in labels(y)
    assert_same_bits([y.array], results(whole)[:1])


def test_copies_fuse_as_well():
    for layers in (copy.deepcopy(model(True)), pickle.loads(pickle.dumps(model(True)))):
        assert_same_bits(results(layers), results(model(False)))
        assert labels(layers(chainer.Variable(X)))


def test_measurements_choose_and_can_be_taken_back():
    layers = model(False)
    assert layers.fusion_choices == ()
    layers.fuse()
    layers(X)
    spans = {(c.start, c.end) for c in layers.fusion_choices}
    # A linear layer begins a chain; where that is not faster, the rest may be one.
    assert (
        {(0, 3), (4, 6), (8, 11)} <= spans <= {(0, 3), (4, 6), (8, 11), (1, 3), (9, 11)}
    )
    layers.fuse("none")
    assert not labels(layers(chainer.Variable(X)))
    with pytest.raises(ValueError, match="chains must be 'auto', 'none' or pairs"):
        layers.fuse("some")


def test_times_are_of_single_layers():
    with timed_layers() as seconds:
        model(True)(X)
    assert {1, 2, 4, 5, 9, 10} <= set(seconds)


def test_an_error_in_the_backward_names_a_layer_of_the_chain():
    y = model(True)(chainer.Variable(X))
    assert y.creator_node.layer_position == 9


def test_only_what_has_the_same_bits_is_fused():
    layers = Divisible(cubed, F.relu)
    layers.fuse()
    layers(X)
    assert layers.fusion_choices == ()


def test_gradients_of_what_is_stashed_are_added_up_as_before():
    layers = Divisible(F.identity, stash("s"), squared, F.relu, pop("s"), added)
    layers.fuse()
    layers._fusion.decide({(2, 4): True})
    assert not labels(layers(chainer.Variable(X)))


IMAGES = np.random.RandomState(0).randn(4, 3, 9, 8).astype("f")
JOINS = {
    "joined": [pop("s", F.add)],
    "a tuple": [pop("s"), F.add],
    "marked": [pop("s", chainer_kernels.fusible(lambda h, x: h - 0.5 * x))],
}


def trained(layers):
    """Returns what layers compute of images, and what a backward leaves behind."""
    y = layers(chainer.Variable(IMAGES))
    layers.cleargrads()
    F.sum(y * y).backward()
    norm = layers[3]
    found = labels(y)
    return found, [y.array, norm.avg_mean, norm.avg_var] + [
        param.grad for _, param in sorted(layers.namedparams())
    ]


@pytest.mark.parametrize("join", JOINS)
def test_a_chain_takes_what_comes_past_other_layers(join):
    _, expected = trained(block(JOINS[join]))
    layers = block(JOINS[join])
    layers.fuse()
    layers(IMAGES)
    end = 5 + len(JOINS[join])
    spans = {(c.start, c.end) for c in layers.fusion_choices}
    # Where that is not faster, as on a busy machine, the rest is tried.
    assert (3, end) in spans and spans <= {(3, end), (4, end)}
    layers = block(JOINS[join])
    layers.fuse([(3, end)])
    found, values = trained(layers)
    (label,) = found
    assert label.startswith("BatchNormalization > ") and label.endswith(" > ReLU")
    assert_same_bits(values, expected)


def test_what_is_taken_is_taken_once():
    layers = block(JOINS["joined"])
    layers.fuse([(3, 6)])
    _, left = layers.run(chainer.Variable(IMAGES), {})
    assert left == {}
    first, second = layers.divide(0, 4), layers.divide(4, 7)
    y, left = first.run(chainer.Variable(IMAGES), {})
    assert [*left] == ["s"] and not labels(y)
    y, left = second.run(y, left)
    assert left == {} and not labels(y)


def test_what_has_another_shape_ends_a_chain():
    joined = chainer_kernels.fusible(lambda h, x: F.concat([h, x]))
    layers = block([pop("s", joined)], width=5)
    layers.fuse()
    layers(IMAGES)
    assert layers.fusion_choices == ()
    assert layers._fusion.reasons[4] == "it takes an input of another shape"


def test_what_is_added_to_itself_is_added_up_as_before():
    layers = Divisible(F.identity, stash("s"), F.tanh, pop("s", F.add), F.relu)
    layers.fuse([(2, 5)])
    assert not labels(layers(chainer.Variable(X)))


def test_a_transposed_layer_is_called_with_its_own_weights():
    def tied(fuse):
        np.random.seed(0)
        layers = Divisible(L.Linear(30, 30), F.tanh, L.Linear(30, 30), F.relu)
        layers.tie("/0/W", "/2/W", transpose=True)
        if fuse:
            layers.fuse([(0, 2), (2, 4)])
        return layers

    layers = tied(True)
    assert labels(layers(chainer.Variable(X))) == {"Linear > Tanh"}
    assert_same_bits(results(layers), results(tied(False)))


WIDTH = 12
KINDS = "linear", "shared", "norm", "relu", "tanh", "dropout", "marked", "stash", "pop"


def listed(kinds):
    """Returns a model of these kinds of layers, what is stashed popped in turn."""
    np.random.seed(0)
    layers, open_skips, n_skips = Divisible(), [], 0
    shared = L.Linear(WIDTH, WIDTH)
    for kind in kinds:
        if kind == "stash":
            open_skips.append(f"s{n_skips}")
            n_skips += 1
            layers.append(stash(open_skips[-1]))
        elif kind == "pop":
            if open_skips:
                layers.append(pop(open_skips.pop(), F.add))
        else:
            layer = {
                "linear": lambda: L.Linear(WIDTH, WIDTH, initial_bias=0.5),
                "shared": lambda: shared,
                "norm": lambda: L.BatchNormalization(WIDTH),
                "relu": lambda: F.relu,
                "tanh": lambda: F.tanh,
                "dropout": lambda: F.dropout,
                "marked": lambda: squared,
            }[kind]()
            layers.append(layer)
    while open_skips:
        layers.append(pop(open_skips.pop(), F.add))
    layers.append(F.identity)
    return layers


class Looking(chainer.FunctionHook):
    name = "looking"


def several_steps(layers):
    """Returns what steps leave behind, some of them in other circumstances."""
    found = []
    x = np.random.RandomState(1).randn(9, WIDTH).astype("f")
    for step, around in enumerate(
        (
            chainer.using_config("train", True),
            chainer.using_config("train", False),
            Looking(),
            chainer.using_config("train", True),
        )
    ):
        variable = chainer.Variable(x[: 9 - step])
        with around, keyed_random_state(RandomKey(seed=1, step=step)):
            y = layers(variable)
            layers.cleargrads()
            F.sum(y * y).backward()
        for _, param in sorted(layers.namedparams()):
            if param.grad is not None:
                param.array -= np.float32(1e-4) * param.grad
        found += [y.array, variable.grad]
        found += [param.array.copy() for _, param in sorted(layers.namedparams())]
    return found


@examples(20)
@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=9))
def test_any_list_of_layers_has_the_same_bits(kinds):
    layers = listed(kinds)
    n = len(layers)
    layers.fuse([(i, j) for i in range(n) for j in range(i + 2, n + 1)])
    with np.errstate(all="ignore"):
        assert_same_bits(several_steps(layers), several_steps(listed(kinds)))


def test_a_choice_reaches_the_views_that_wait_for_it():
    layers = Divisible(F.tanh, F.relu)
    layers.measure_fusion()
    view = layers.view(0, 2)
    view(X)
    assert not labels(view(chainer.Variable(X)))
    layers.fuse([(0, 2)])
    assert labels(view(chainer.Variable(X))) == {"Tanh > ReLU"}
