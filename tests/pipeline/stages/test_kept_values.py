import chainer
import chainer.functions as F
import chainer.links as L

from pipeline.stages.kept_values import slots


def test_the_links_of_a_list_are_no_state_of_it():
    for layers in (chainer.Sequential(L.Linear(2, 3), F.relu), chainer.ChainList()):
        assert not [slot.path for slot in slots("/0", layers) if slot.is_inside]


def test_a_list_of_a_list_of_links_may_keep_a_state():
    layers = chainer.ChainList(L.Linear(2, 3))
    layers.outputs = []
    assert "/0.outputs" in [slot.path for slot in slots("/0", layers)]
