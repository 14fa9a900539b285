"""The parameters of a replica."""

import chainer.functions as F
import chainer.links as L
from chainer import Sequential

from data_parallel.parameters import parameters_of
from divisible import Divisible
from mixed_precision.model import LinkGroup


def test_a_copy_stands_for_those_of_all_stages_of_a_rank():
    model = Divisible(L.Linear(4, 4), F.relu, L.Linear(4, 4), L.Linear(4, 4))
    model.tie("/0/W", "/2/W")
    stages = [model.divide(0, 1), model.divide(2, 4)]
    found = parameters_of(LinkGroup(stages))
    names = ["/0/W", "/0/b", "/2/b", "/3/W", "/3/b"]
    assert [each.name for each in found] == names
    assert found[0].param is dict(stages[0].namedparams())["/0/W"]
    assert found[0].param is not dict(stages[1].namedparams())["/0/W"]


def test_a_parameter_of_two_paths_has_the_first():
    link = L.Linear(2, 2)
    layers = Sequential(link, F.relu, link, L.Linear(2, 2))
    # A Sequential counts links.
    names = ["/0/W", "/0/b", "/1/W", "/1/b"]
    assert [each.name for each in parameters_of(layers)] == names
