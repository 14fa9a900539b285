"""What layers cost, when they have become others."""

import time

import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, LayerCost, Profile
from pipeline.rebalancing.layer_costs import LayerCosts, SaidOfLayers

CUTS, RANKS = [0, 2, 4], [0, 1]


def said(forwards=None, changed=()):
    """Returns what two ranks say, each of two layers."""
    forwards = forwards or {}
    return [
        SaidOfLayers(
            {i: forwards[i] for i in at if i in forwards}, sorted({*changed} & {*at})
        )
        for at in ((0, 1), (2, 3))
    ]


def profile(**others):
    layers = [LayerCost(3.0, 2.0, 1.0, activation_bytes=7) for _ in range(4)]
    return Profile(layers, n_samples=2, **others)


def test_layers_of_other_sizes_are_seen_once_by_their_rank():
    model = Divisible(L.Linear(3, 2), F.relu, L.Linear(2, 2, nobias=True))
    costs, stages = LayerCosts(profile()), [model.divide(1, 3)]
    assert not costs.look(stages) and not costs.look(stages)
    assert not costs.are_open
    model[2].W.array = model[2].W.array[:, :1]
    assert costs.look(stages) and not costs.look(stages)
    assert costs.are_open
    # From then on it is watched.
    stages[0](np.ones((1, 1), "f"))
    theirs = costs.said()
    assert theirs.changed == [2] and sorted(theirs.forwards) == [1, 2]
    assert costs.measure_anew([theirs], ()) == [2]
    assert costs.measure_anew([costs.said()], ()) == []


def test_layers_that_come_from_another_rank_are_no_others():
    model = Divisible(L.Linear(3, 2), F.relu, L.Linear(2, 2))
    costs = LayerCosts(profile())
    assert not costs.look([model.divide(1, 3)])
    assert not costs.look([model.divide(0, 3)])


def test_only_stages_with_other_layers_are_measured_anew():
    costs = LayerCosts(profile())
    costs.measure_anew(said(changed=[1]), speeds=[1.0, 0.5])
    times = {0: 1.0, 1: 3.0, 2: 1.0, 3: 1.0}
    # The second rank, which has always been slow, takes twice as long as before.
    costs.measured(said(times, [1]), np.array([2.0, 24.0]), CUTS, RANKS, 2)
    assert [layer.seconds for layer in costs.profile.layers] == pytest.approx(
        [1.0, 3.0, 6.0, 6.0]
    )
    first = costs.profile.layers[0]
    assert first.forward == pytest.approx(0.5) and first.activation_bytes == 7


def test_a_slow_host_stays_one_when_its_layers_become_others():
    costs = LayerCosts(profile())
    costs.measure_anew(said(changed=[2, 3]), speeds=[1.0, 0.5])
    costs.measured(said({2: 1, 3: 1}), np.array([6, 6]), CUTS, RANKS, 2)
    # Both took 6 s for the 2 samples together, which is 3 s on a host of full speed.
    assert [layer.seconds for layer in costs.profile.layers] == pytest.approx(
        [6.0, 6.0, 3.0, 3.0]
    )


def test_the_loss_is_no_part_of_the_last_layer():
    costs = LayerCosts(profile(loss=LayerCost(2.0, 2.0, 0.0)))
    costs.measure_anew(said(changed=[3]), speeds=())
    costs.measured(said({2: 1, 3: 1}), np.array([6, 6]), CUTS, RANKS, 2)
    assert sum(layer.seconds for layer in costs.profile.layers[2:]) == pytest.approx(8)


def test_a_profile_stays_while_no_layer_is_watched():
    given = profile()
    costs = LayerCosts(given)
    costs.measured(said(), np.array([6, 6]), CUTS, RANKS, 2)
    assert costs.profile is given


def test_nobody_watches_after_the_end():
    costs = LayerCosts(None)
    costs.watch()
    # As where layers become others while they are watched.
    costs.watch()
    Divisible(abs)(-1.0)
    costs.close()
    Divisible(abs, abs)(-1.0)
    assert list(costs.said().forwards) == [0]


def test_a_forward_that_takes_long_once_does_not_count():
    """As the first one with other sizes does, where something is compiled."""
    pauses = iter([0.3])
    model = Divisible(lambda x: time.sleep(next(pauses, 0.0)) or x, lambda x: x)
    costs = LayerCosts(None)
    costs.watch()
    for _ in range(3):
        model(1.0)
    assert costs.said().forwards[0] < 0.1
    costs.close()
