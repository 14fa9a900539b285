"""What passes between two graphs of one rank."""

from collections import OrderedDict, namedtuple

import chainer
import numpy as np
import pytest

from divisible.backward.tensors import attached, detached, leaves
from divisible.communication.signatures import Tensor

Pair = namedtuple("Pair", "a b")


class Names(list):
    pass


def test_structures_stay_and_variables_become_leaves():
    x, n = chainer.Variable(np.ones(2, "f")) * 2, np.arange(3)
    fixed = chainer.Variable(n, requires_grad=False)
    y = (x, [None, n, "text", 1.5], OrderedDict(b=Pair(x, fixed), a=Names([True])))
    there = attached(detached(y))
    flat, before = list(leaves(there)), list(leaves(y))
    assert [type(each) for each in flat] == [type(each) for each in before]
    for each, original in zip(flat, before):
        array = chainer.as_array(original)
        assert chainer.as_array(each) is array or each == original
        if isinstance(each, chainer.Variable):
            assert each is not original
            assert each.creator is None
            assert each.requires_grad == original.requires_grad
    assert type(there[2]) is OrderedDict
    assert list(there[2]) == ["b", "a"]
    assert isinstance(there[2]["b"], Pair)
    assert type(there[2]["a"]) is Names


def test_subclasses_stay_what_they_are():
    masked = np.ma.ones(2)
    (there,) = attached(detached((masked,)))
    assert there is masked


def test_other_things_are_refused():
    with pytest.raises(TypeError, match="but not object: mark both layers"):
        detached([object()])


def test_tensors_are_leaves():
    tensor = Tensor(np.ones(1))
    assert list(leaves((tensor, [tensor]))) == [tensor, tensor]
