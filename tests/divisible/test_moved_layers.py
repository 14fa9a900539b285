"""Stages that get other layers and stay the same objects."""

import chainer.functions as F
import chainer.links as L
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from divisible import Divisible, deferred_init
from divisible.moved_layers import become, different_stage, entangled, new_layers


class Model(Divisible):
    def __init__(self):
        self.head = L.Linear(2, 2)
        for layer in (self.head, F.relu, L.Linear(2, 2), F.tanh, L.Linear(2, 2)):
            self.append(layer)
        self.append(self[2])
        self.tie("/0/W", "/4/W")


N_LAYERS = 6


def fresh():
    with deferred_init(1):
        return Model()


ranges = st.tuples(st.integers(0, N_LAYERS - 1), st.integers(1, N_LAYERS)).filter(
    lambda pair: pair[0] < pair[1]
)


@given(ranges, ranges)
def test_a_stage_becomes_the_one_of_another_range(before, after):
    stage = fresh().divide(*before)
    links = {path: link for path, link in stage.namedlinks()}
    other = different_stage(fresh(), stage, after)
    new = new_layers(fresh(), stage, after)
    become(stage, other)
    expected = fresh().divide(*after)
    assert stage.layer_range == after
    assert stage.model_layers == expected.model_layers
    assert (stage.ties, stage.skips) == (expected.ties, expected.skips)
    params = dict(stage.namedparams())
    assert params.keys() == dict(expected.namedparams()).keys()
    for path, param in expected.namedparams():
        np.testing.assert_array_equal(params[path].array, param.array)
    for path, link in stage.namedlinks(skipself=True):
        if int(path[1:]) not in new and int(path[1:]) in range(*after):
            assert links[path] is link
    # An attribute beside the list goes with its layer.
    assert hasattr(stage, "head") == (after[0] == 0)


def test_layers_with_something_in_common_are_new():
    assert entangled(fresh()) == {0, 2, 4, 5}
    stage = fresh().divide(0, 4)
    assert new_layers(fresh(), stage, (1, 5)) == [2, 4]


def test_what_has_left_is_known_by_its_path():
    stage = fresh().divide(0, 4)
    left = stage[2].W
    become(stage, different_stage(fresh(), stage, (0, 2)))
    assert stage.path_elsewhere(left) == "/2/W"
