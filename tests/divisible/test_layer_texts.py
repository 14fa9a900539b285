"""Layers as texts."""

import chainer
import chainer.functions as F
import chainer.links as L
import pytest

from divisible import Divisible
from divisible.layer_texts import describe, differing_titles, title


class Block(chainer.Chain):
    def __init__(self, n):
        super().__init__(linear=L.Linear(4, n))

    def forward(self, x):
        return F.tanh(self.linear(x))


@pytest.mark.parametrize(
    ("layer", "line"),
    [
        (Block(4), "Block"),
        (chainer.Sequential(F.relu), "Sequential"),
        (chainer.ChainList(L.Linear(4, 4)), "ChainList"),
        (Divisible(F.relu), "Divisible"),
        (L.Linear(4, 4), "Linear(in_size=4, out_size=4, nobias=False)"),
        (F.relu, "relu"),
    ],
)
def test_the_title_of_a_layer_is_a_line(layer, line):
    assert title(describe(layer)) == line


def test_what_differs_between_two_layers_is_said_in_a_line():
    assert differing_titles(describe(Block(4)), describe(L.Linear(4, 4)))[0] == "Block"
    one, other = differing_titles(describe(Block(4)), describe(Block(5)))
    assert one == "Block with (linear): Linear(in_size=4, out_size=4, nobias=False)"
    assert other == "Block with (linear): Linear(in_size=4, out_size=5, nobias=False)"
    longer = describe(chainer.Sequential(F.relu, F.relu))
    assert differing_titles(describe(chainer.Sequential(F.relu)), longer) == (
        "Sequential with nothing more",
        "Sequential with (1): <function relu>",
    )
