"""Links whose class gets parts are copied and pickled with them."""

import copy
import pickle

import chainer.links as L
import numpy as np
import pytest

from divisible.link_parts import LinkPart, with_part

X = np.ones((1, 3), "f")


class Doubled(LinkPart):
    def forward(self, x):
        return 2 * super().forward(x)


class Raised(LinkPart):
    def forward(self, x):
        return 1 + super().forward(x)


def make(*parts):
    link = L.Linear(3, 2, initialW=1)
    for part in parts:
        link.__class__ = with_part(type(link), part)
    return link


def test_a_part_changes_what_a_link_computes_and_nothing_else():
    link = make(Doubled)
    assert link(X).array.tolist() == [[6, 6]]
    assert isinstance(link, L.Linear) and type(link).plain_kind is L.Linear
    assert type(link).__name__ == "Linear"
    assert type(link) is type(make(Doubled)) and type(link) is not type(make(Raised))


@pytest.mark.parametrize(
    ("parts", "expected"), [((Doubled, Raised), 7), ((Raised, Doubled), 8)]
)
def test_copies_and_pickles_have_all_parts(parts, expected):
    link = make(*parts)
    for again in (copy.deepcopy(link), pickle.loads(pickle.dumps(link))):
        assert type(again) is type(link)
        assert again(X).array.tolist() == [[expected, expected]]
        assert again.W is not link.W
