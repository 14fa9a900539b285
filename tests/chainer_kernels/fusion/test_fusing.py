"""Chains in a list of layers, found and run."""

import copy
import functools
import pickle
from unittest import mock

import chainer
import chainer.functions as F
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chainer_kernels
from chainer_kernels.fusion import fusing
from chainer_kernels.fusion.fusing import Fusion
from chainer_kernels.fusion.report import run_layers
from tests.support import kernels
from tests.support.fusion import LAYERS, assert_same_bits, gradients, one_by_one

X = kernels.arrays((6, 50), 0)
CHAIN = [F.tanh, F.relu, F.dropout]
SPAN = {(0, 3): True}


def run(fusion, layers=CHAIN):
    """Returns what runs layers, and notes the functions of its outputs."""

    def run_(*inputs):
        y = run_layers(layers, fusion, inputs)
        run_.label = y.creator_node.label if y.creator_node else ""
        return y

    return run_


def is_fused(fusion, x=X, layers=CHAIN):
    call = run(fusion, layers)
    call(chainer.Variable(x))
    return " > " in call.label


def test_a_chain_is_one_function_with_the_same_mask():
    fusion = Fusion(SPAN)
    assert is_fused(fusion)
    assert_same_bits(
        gradients(run(fusion), [X], 7),
        gradients(functools.partial(one_by_one, CHAIN), [X], 7),
    )


def test_a_measurement_decides():
    np.random.seed(2)
    before = np.random.get_state()[1].copy()
    fusion = Fusion()
    is_fused(fusion)
    # Where it is slower on a busy machine, a shorter one is measured as well.
    choice = fusion.choices[0, 3]
    assert (choice.start, choice.end, choice.is_exact) == (0, 3, True)
    assert choice.is_fused == (choice.ms_after < choice.ms_before)
    assert choice.largest_difference == 0
    # Forward 2 reads and a write for 7, backward 3 and a write for as many.
    assert choice.bytes_after < choice.bytes_before
    assert fusion.decisions[0, 3] == choice.is_fused
    np.random.seed(2)
    np.testing.assert_array_equal(np.random.get_state()[1], before)


def test_others_may_decide():
    fusion = Fusion(waits=True)
    assert not is_fused(fusion)
    fusion.decide({})
    assert not is_fused(fusion)
    fusion.decide(SPAN)
    assert is_fused(fusion)


class Hook(chainer.FunctionHook):
    name = "seen"

    def __init__(self):
        self.labels = []

    def forward_preprocess(self, function, in_data):
        self.labels.append(function.label)


class LinkHook(chainer.LinkHook):
    name = "links"


def test_a_hook_sees_every_function():
    fusion, hook = Fusion(SPAN), Hook()
    assert is_fused(fusion)
    with hook:
        assert not is_fused(fusion)
    assert hook.labels == ["Tanh", "ReLU", "Dropout"]
    with LinkHook():
        assert not is_fused(fusion)
    assert is_fused(fusion)


@pytest.mark.parametrize(
    "x",
    [
        X.astype("e"),
        X.astype("d"),
        X[:0],
        kernels.in_order(X, "reversed"),
    ],
    ids=["half", "double", "empty", "reversed"],
)
def test_other_arrays_are_left_to_chainer(x):
    assert not is_fused(Fusion(SPAN), x, [F.tanh, F.relu])


def test_without_kernels_nothing_is_fused():
    with chainer_kernels.disabled():
        assert not is_fused(Fusion(SPAN))
    with chainer.using_config("debug", True):
        assert not is_fused(Fusion(SPAN))
    with chainer.using_config("use_ideep", "auto"):
        assert not is_fused(Fusion(SPAN))


def test_the_configuration_may_change_between_calls():
    fusion = Fusion(SPAN)
    assert is_fused(fusion)
    with chainer.using_config("train", False):
        call = run(fusion)
        assert_same_bits([call(X).array], [F.relu(F.tanh(X)).array])
    assert is_fused(fusion)


def test_layers_of_the_list_may_change():
    fusion, layers = Fusion({(0, 2): True}), [F.tanh, F.relu]
    assert is_fused(fusion, layers=layers)
    layers[1] = F.sigmoid
    assert_same_bits(
        gradients(run(fusion, layers), [X]),
        gradients(functools.partial(one_by_one, layers), [X]),
    )


def test_too_many_shapes_are_not_traced():
    fusion = Fusion(SPAN)
    with mock.patch.object(fusing, "_MOST_SHAPES", 2):
        found = [is_fused(fusion, X[:n]) for n in (1, 2, 3, 1)]
    assert found == [True, True, False, True]


def test_a_layer_that_fails_does_so_by_itself():
    @chainer_kernels.fusible
    def fails(x):
        raise ZeroDivisionError("here")

    with pytest.raises(ZeroDivisionError, match="here"):
        run(Fusion(), [F.relu, fails])(X)


class Scaled(chainer.Link):
    @chainer_kernels.fusible
    def forward(self, x):
        return F.tanh(2 * x)


def test_links_without_parameters_may_be_marked_and_have_hooks():
    link = Scaled()
    fusion = Fusion({(0, 2): True})
    assert is_fused(fusion, layers=[link, F.relu])
    link.add_hook(LinkHook())
    assert not is_fused(fusion, layers=[link, F.relu])


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda x: x, "not marked"),
        (functools.partial(F.dropout, mask=X), "more than numbers"),
        (chainer.links.Scale(W_shape=(50,)), "parameters"),
        (chainer.Link(), "its forward is not marked"),
        (
            chainer.links.BatchNormalization(50, use_gamma=False, use_beta=False),
            "state",
        ),
        (functools.partial(F.sum, axis=0), "Sum is not fused"),
    ],
)
def test_what_ends_a_chain_is_named(layer, reason):
    fusion = Fusion()
    try:
        run_layers([F.relu, F.tanh, layer, F.relu], fusion, (X,))
    except (AttributeError, TypeError):
        assert isinstance(layer, chainer.Link)
    assert reason in fusion.reasons[2]
    assert list(fusion.choices) == [(0, 2)]


def test_copies_decide_alike_and_compile_for_themselves():
    fusion = Fusion(SPAN)
    assert is_fused(fusion)
    for copied in (copy.deepcopy(fusion), pickle.loads(pickle.dumps(fusion))):
        assert copied.decisions == SPAN
        assert is_fused(copied)


NAMES = st.lists(st.sampled_from(sorted(LAYERS)), min_size=2, max_size=5)


def check_random_list(names, seed):
    layers = [LAYERS[name] for name in names]
    fusion = Fusion({(0, len(layers)): True})
    x = kernels.arrays((5, 7), seed)
    assert_same_bits(
        gradients(run(fusion, layers), [x], seed),
        gradients(functools.partial(one_by_one, layers), [x], seed),
    )


@settings(max_examples=4, derandomize=True)
@given(NAMES, kernels.seeds)
def test_lists_of_layers_have_the_same_bits(names, seed):
    check_random_list(names, seed)


@pytest.mark.matrix
@settings(max_examples=150, deadline=None)
@given(NAMES, kernels.seeds)
def test_many_lists_of_layers_have_the_same_bits(names, seed):
    check_random_list(names, seed)
