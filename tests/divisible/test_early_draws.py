"""Weights that are drawn before the first minibatch."""

import subprocess
import sys

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible import from_chain
from divisible.early_draws import EarlyDraws, draw_early

X = np.ones((2, 3), np.float32)


def draw(*sizes, seed=0):
    np.random.seed(seed)
    chain = chainer.Sequential(*(L.Linear(None, n) for n in sizes))
    return draw_early(chain.namedparams(), lambda: chain(X))


def test_draws_are_known_by_what_is_drawn_behind_them():
    draws = draw(4, 5)
    assert sorted(draws.paths) == ["/0/W", "/1/W"]
    assert draws.warning() is None
    for move in (np.random.rand, lambda: np.random.permutation(3), np.random.randn):
        draws = draw(4, 5)
        move()
        assert "Make the iterators before from_chain" in draws.warning()


def test_equal_states_are_equal_and_others_are_not():
    assert draw(4, 5) == draw(4, 5)
    assert draw(4, 5).state != draw(4, 5, seed=1).state


def test_what_draws_nothing_is_not_watched():
    np.random.seed(0)
    chain = chainer.Sequential(L.BatchNormalization(axis=0))
    assert draw_early(chain.namedparams(), lambda: chain(X)) is None
    assert from_chain(Net(3), X).early_draws is None
    assert from_chain(Net(None), X).early_draws.paths == ("/fc/W",)


class Net(chainer.Chain):
    def __init__(self, n_in):
        super().__init__(fc=L.Linear(n_in, 2))

    def forward(self, x):
        return self.fc(x)


def test_dropout_draws_between_the_weights_of_a_serial_script():
    np.random.seed(0)
    layers = L.Linear(None, 4), F.dropout, L.Linear(None, 2)
    model = from_chain(chainer.Sequential(*layers), X)
    assert "between the random numbers of dropout" in model.early_draws.warning()
    with_sizes = chainer.Sequential(L.Linear(3, 4), F.dropout, L.Linear(4, 2))
    assert from_chain(with_sizes, X).early_draws is None


def test_a_message_names_three_paths():
    assert EarlyDraws(("/a", "/b"), 0).names == "/a, /b"
    assert EarlyDraws(tuple("abcde"), 0).names == "a, b, c and 2 others"


def test_stages_and_copies_keep_them():
    np.random.seed(0)
    model = from_chain(Net(None), X)
    for other in (model.divide(), model.copy("copy")):
        assert other.early_draws == model.early_draws


UNSEEDED = """
import chainer_compat
import chainer.links as L, numpy as np
from divisible.early_draws import draw_early
link = L.Linear(None, 2)
assert draw_early(link.namedparams(), lambda: link(np.ones((1, 3), 'f'))) is None
assert link.W.array is not None
"""


def test_nobody_is_warned_who_did_not_seed():
    subprocess.run([sys.executable, "-c", UNSEEDED], check=True, timeout=60)
