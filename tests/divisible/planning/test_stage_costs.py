import pytest

from divisible import LayerCost, Network, Profile, simulate
from divisible.planning.stage_costs import stage_costs
from divisible.schedules import one_f_one_b, zero_bubble_v


def profile(times, output_bytes=0):
    layers = [LayerCost(t, t, t, output_bytes=output_bytes) for t in times]
    return Profile(layers, n_samples=4)


def test_a_model_is_cut_for_any_schedule():
    costs = stage_costs(profile([1, 1, 1, 1, 4, 4]), one_f_one_b(3, 2))
    assert costs.forward.tolist() == [[4.0, 4.0]] * 3
    schedule = zero_bubble_v(2, 8)
    timeline = simulate(schedule, stage_costs(profile([1] * 8), schedule))
    # Each rank has four layers of three seconds, for eight microbatches.
    assert timeline.busy.tolist() == [96.0, 96.0]


def test_messages_take_the_time_of_the_links():
    schedule = one_f_one_b(2, 2)
    costs = stage_costs(profile([1, 1], 100), schedule, Network(bandwidth=50.0))
    assert costs.transfer.tolist() == [2.0]


def test_too_few_layers_are_refused():
    with pytest.raises(ValueError, match="2 layers cannot be cut into 3 stages"):
        stage_costs(profile([1, 1]), one_f_one_b(3, 2))
