"""What the rules of a plan change of a model."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible
from mixed_precision import MixedPrecision
from model_compression import CompressionPlan, Prune, Quantize
from model_compression.compressed_model import CompressedModel

BOTH = CompressionPlan(
    [Prune("l1", layers="/0", to=0.5), Quantize("int8", layers="/2")]
)
CHANNELS = CompressionPlan([Prune("l2", layers="/0", to=0.5, granularity="channel")])


def make_model():
    np.random.seed(0)
    return Divisible(L.Linear(4, 10), F.relu, L.Linear(10, 2))


def compressed(plan=BOTH, goes_back=False, model=None):
    """Returns a compressed model, and the layers that there are."""
    model = make_model() if model is None else model
    optimizer = chainer.optimizers.SGD().setup(model)
    return CompressedModel(plan, [optimizer], goes_back), model, optimizer


def test_each_rule_changes_its_own_layer():
    compression, model, _ = compressed()
    assert compression.measure() == (0, 32)
    compression.take({0: 0.5})
    assert compression.measure() == (0.5, 32)
    compression.take({1: 1.0})
    assert compression.measure() == (0.5, 8)
    assert np.count_nonzero(model[0].W.array == 0) == 20
    assert np.count_nonzero(model[2].W.array == 0) == 0


def test_what_there_is_no_rule_for_is_not_measured():
    compression, _, _ = compressed(CompressionPlan([Quantize("int8", layers="/2")]))
    assert compression.measure() == (None, 32)
    compression, _, _ = compressed(CompressionPlan([Prune("l1", layers="/0", to=0.5)]))
    assert compression.measure() == (0, None)


@pytest.mark.parametrize("number, expected", [(0, (0, 8)), (1, (0.5, 32))])
def test_a_step_of_either_kind_is_taken_back(number, expected):
    compression, model, _ = compressed(goes_back=True)
    before = [param.array.copy() for param in model.params()]
    compression.take({0: 0.5, 1: 1.0})
    compression.take_back([number])
    assert compression.measure() == expected
    compression.take_back([1 - number])
    for param, array in zip(model.params(), before):
        np.testing.assert_array_equal(param.array, array)


def take_away(compression):
    """Takes the channels of the first rule away."""
    assignments, found = compression.taking_away([0])
    for assign in assignments:
        assign()
    return found


def test_channels_are_taken_away_only_where_they_are_pruned():
    compression, model, _ = compressed(CHANNELS)
    assert compression.follows_channels and not compressed()[0].follows_channels
    assert compression.taking_away([0]) == ([], {})
    compression.take({0: 0.5})
    assert take_away(compression) == {"/0": 5}
    assert model[0].W.shape == (5, 4) and model[2].W.shape == (2, 5)


def test_channels_stay_while_gradients_are_under_way():
    compression, model, optimizer = compressed(CHANNELS)
    compression.take({0: 0.5})
    optimizer.double_buffering = True
    with pytest.raises(ValueError, match="double_buffering"):
        compression.taking_away([0])
    assert model[0].W.shape == (10, 4)


def test_what_is_made_changes_nothing_until_it_is_assigned():
    compression, model, _ = compressed(CHANNELS)
    compression.take({0: 0.5})
    before = [param.array.copy() for param in model.params()]
    assignments, found = compression.taking_away([0])
    assert assignments and found == {"/0": 5}
    for param, array in zip(model.params(), before):
        np.testing.assert_array_equal(param.array, array)


def test_a_change_that_does_not_end_is_refused_from_then_on():
    compression, _, _ = compressed(CHANNELS)
    with pytest.raises(KeyError), compression.changing("channels were taken away"):
        raise KeyError
    for use in (compression.check_usable, compression.check_whole):
        with pytest.raises(RuntimeError, match="were taken away in part only: make"):
            use()


def test_a_stage_alone_is_not_usable():
    compression, _, _ = compressed(model=make_model().divide(0, 2))
    assert not compression.is_checked
    with pytest.raises(RuntimeError, match="this rank has a stage of it"):
        compression.check_usable()
    with pytest.raises(ValueError, match="reads a channel may be on another rank"):
        compressed(CHANNELS, model=make_model().divide(0, 2))
    whole, _, _ = compressed()
    assert whole.is_checked
    whole.check_usable()


def test_stages_that_one_optimizer_updates_are_no_whole_model():
    model = Divisible(*(L.Linear(4, 4) for _ in range(4)))
    stages = [model.divide(0, 1), model.divide(2, 3)]
    optimizer = MixedPrecision(chainer.optimizers.SGD()).setup(stages)
    plan = CompressionPlan([Prune("l1", layers="/1", to=0.5)])
    assert not CompressedModel(plan, [optimizer]).is_checked


def test_another_model_gets_the_sizes():
    compression, model, _ = compressed(CHANNELS)
    compression.take({0: 0.5})
    take_away(compression)
    other = make_model()
    compression.prepare(other)
    assert [p.shape for p in other.params()] == [p.shape for p in model.params()]
