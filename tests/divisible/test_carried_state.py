"""What can be declared to be carried from minibatch to minibatch."""

import copy

import chainer
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, carry_state
from divisible.carried_state import carrying, declared


@pytest.mark.parametrize(
    "kind, names",
    [
        (L.LSTM, {"c", "h"}),
        (L.StatefulPeepholeLSTM, {"c", "h"}),
        (L.StatefulZoneoutLSTM, {"c", "h"}),
        (L.StatefulGRU, {"h"}),
        (L.StatefulMGU, {"h"}),
    ],
)
def test_the_states_of_chainers_links_are_known(kind, names):
    link = carry_state(kind(3, 4))
    assert set(declared(link)) == names
    assert link._persistent == {f"carried_{name}" for name in names}


def test_others_are_named():
    class Memory(chainer.Link):
        def __init__(self):
            super().__init__()
            self.memory = None

    assert declared(carry_state(Memory(), "memory", axis=1)) == {"memory": 1}
    with pytest.raises(ValueError, match=r"carry_state\(link, \('c', 'h'\)\)"):
        carry_state(Memory())
    with pytest.raises(ValueError, match="no such attribute; set it to None"):
        carry_state(Memory(), "other")
    with pytest.raises(ValueError, match="is a parameter or a persistent value"):
        carry_state(L.Linear(2, 3), "W")
    with pytest.raises(ValueError, match="axis=-1 must be 0 or more"):
        carry_state(Memory(), "memory", axis=-1)
    for axis in ("x", 1.0):
        with pytest.raises(TypeError, match="must be an integer"):
            carry_state(Memory(), "memory", axis=axis)
    with pytest.raises(TypeError, match="expected a link, not a function"):
        carry_state(lambda x: x)


def test_twice_is_once_and_copies_have_their_own():
    link = carry_state(carry_state(L.LSTM(3, 4), "h"))
    other = copy.deepcopy(link)
    link.carried_h = np.ones((2, 4), "f")
    assert other.carried_h is None and set(declared(other)) == {"c", "h"}


def test_stages_know_what_the_model_carries():
    lstm = carry_state(L.LSTM(3, 4))
    model = Divisible(L.Linear(2, 3), chainer.Sequential(lstm), L.Linear(4, 2))
    assert model.divide(0, 1).carried_states == ("/1/0",)
    assert model.divide(0, 1).divide(0, 1).carried_states == ("/1/0",)
    assert [path for path, _ in carrying([lstm, lstm], 5)] == ["/5"]
