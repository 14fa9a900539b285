"""Decisions on where to cut, in simulated training."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import partition
from divisible.planning.layer_cost import LayerCost
from divisible.planning.network import Network
from divisible.planning.profile import Profile
from divisible.schedules import interleaved
from pipeline.rebalancing.decisions import decide_cuts
from tests.support.examples import examples

N_MICROBATCHES = 8


def make_profile(n_layers=16):
    layers = [
        LayerCost(0.01, 0.01, 0.01, parameter_bytes=1000, activation_bytes=100)
        for _ in range(n_layers)
    ]
    return Profile(layers, n_samples=8)


def busy(profile, cuts, speeds, rng=None, n=20, noise=0.05):
    """What stages on ranks of such speeds are busy in some minibatches."""
    work = np.add.reduceat(profile.column("forward") * 3, cuts[:-1]) * N_MICROBATCHES
    times = np.tile(work / speeds, (n, 1))
    if rng is not None:
        times *= 1 + noise * rng.standard_normal(times.shape)
    return times


def test_equal_hosts_with_noise_never_move():
    profile, rng = make_profile(), np.random.default_rng(0)
    cuts = [0, 4, 8, 12, 16]
    for _ in range(200):
        times = busy(profile, cuts, np.ones(4), rng)
        decision = decide_cuts(profile, cuts, times, n_microbatches=N_MICROBATCHES)
        assert decision.cuts is None, decision


def test_layers_leave_a_slow_host_and_come_back_without_oscillation():
    profile, rng = make_profile(), np.random.default_rng(1)
    cuts, moves = [0, 4, 8, 12, 16], []
    for check in range(120):
        speeds = np.ones(4)
        if 30 <= check < 80:
            speeds[2] = 0.5
        times = busy(profile, cuts, speeds, rng)
        decision = decide_cuts(profile, cuts, times, n_microbatches=N_MICROBATCHES)
        if decision.cuts is not None:
            moves.append((check, decision))
            cuts = decision.cuts
    assert [check for check, _ in moves] == [30, 80]
    away, back = (decision for _, decision in moves)
    assert back.cuts == [0, 4, 8, 12, 16]
    assert np.diff(away.cuts)[2] <= 3
    assert away.speeds == pytest.approx((1, 1, 0.5, 1), rel=0.05)
    # Half the speed doubles the slowest stage; as many layers as fit leave it.
    assert away.step_seconds > 1.3 * away.new_step_seconds
    assert "rank 2 has 0.5" in away.reason
    assert back.new_step_seconds < back.step_seconds


def test_what_is_found_is_the_cut_for_these_speeds():
    profile, speeds = make_profile(), [1.0, 2.0, 0.5]
    cuts = [0, 5, 10, 16]
    times = busy(profile, cuts, speeds)
    decision = decide_cuts(profile, cuts, times, n_microbatches=N_MICROBATCHES)
    assert decision.cuts == partition(profile, 3, speeds=speeds).cuts
    again = decide_cuts(
        profile,
        decision.cuts,
        busy(profile, decision.cuts, speeds),
        n_microbatches=N_MICROBATCHES,
    )
    assert again.cuts is None
    assert again.step_seconds == pytest.approx(decision.new_step_seconds)


def test_a_move_must_pay():
    profile, cuts = make_profile(), [0, 8, 16]
    times = busy(profile, cuts, [1.0, 0.5])
    options = {"n_microbatches": N_MICROBATCHES, "horizon": 10}
    moved = decide_cuts(profile, cuts, times, **options)
    gain = 10 * (moved.step_seconds - moved.new_step_seconds)
    assert decide_cuts(profile, cuts, times, **options, move_seconds=0.99 * gain).cuts
    stays = decide_cuts(profile, cuts, times, **options, move_seconds=1.01 * gain)
    assert stays.cuts is None
    assert "but moving takes" in stays.reason
    large = decide_cuts(profile, cuts, times, **options, minimum_gain=0.9)
    assert large.cuts is None
    assert "less than 90.0%" in large.reason


def test_memory_and_links_count():
    profile, cuts = make_profile(), [0, 8, 16]
    times = busy(profile, cuts, [1.0, 0.5])
    options = {"n_microbatches": N_MICROBATCHES}
    without = decide_cuts(profile, cuts, times, **options)
    assert without.cuts[1] > 9
    needed = partition(profile, 2, cuts=[0, 9, 16], n_microbatches=N_MICROBATCHES)
    tight = [stage.memory for stage in needed.stages]
    limited = decide_cuts(profile, cuts, times, **options, memory=[tight[0], 1e9])
    assert limited.cuts == [0, 9, 16]
    nowhere = decide_cuts(profile, cuts, times, **options, memory=1)
    assert nowhere.cuts is None
    assert "no other cut fits" in nowhere.reason
    network = Network(latency=10.0)
    assert decide_cuts(profile, cuts, times, **options, network=network).cuts is None


def test_ranks_with_several_stages_have_one_speed():
    profile, cuts = make_profile(), [0, 4, 8, 12, 16]
    schedule = interleaved(2, 2, N_MICROBATCHES)
    speeds = np.array([1.0, 0.5])[list(schedule.stage_ranks)]
    times = busy(profile, cuts, speeds)
    decision = decide_cuts(profile, cuts, times, schedule=schedule)
    assert decision.speeds == pytest.approx((1.0, 0.5))
    sizes = np.diff(decision.cuts)
    assert sizes[0] + sizes[2] > sizes[1] + sizes[3]


def test_one_long_minibatch_moves_nothing():
    profile, cuts = make_profile(), [0, 4, 8, 12, 16]
    times = busy(profile, cuts, np.ones(4))
    times[7, 1] *= 20
    decision = decide_cuts(profile, cuts, times, n_microbatches=N_MICROBATCHES)
    assert decision.cuts is None


@examples(100)
@given(st.lists(st.floats(0.2, 5), min_size=3, max_size=3))
def test_a_decision_never_makes_the_simulated_step_slower(speeds):
    profile, cuts = make_profile(), [0, 5, 10, 16]
    times = busy(profile, cuts, speeds, n=1)
    decision = decide_cuts(profile, cuts, times, n_microbatches=N_MICROBATCHES)
    if decision.cuts is not None:
        assert decision.new_step_seconds <= 0.97 * decision.step_seconds
    assert decision.speeds == pytest.approx(speeds)


@pytest.mark.parametrize(
    "seconds, options, words",
    [
        ([1, 1], {}, "there are 3 stages"),
        ([1, 0, 1], {}, "positive and finite"),
        ([1, 1, 1], {"threshold": 0}, "threshold must be"),
        ([1, 1, 1], {"horizon": 0}, "horizon must be"),
        ([1, 1, 1], {"minimum_gain": 1}, "minimum_gain must be"),
        ([1, 1, 1], {"n_microbatches": None}, "n_microbatches is missing"),
    ],
)
def test_bad_input(seconds, options, words):
    options = {"n_microbatches": 4, **options}
    with pytest.raises(ValueError, match=words):
        decide_cuts(make_profile(), [0, 5, 10, 16], seconds, **options)


def test_another_model():
    with pytest.raises(ValueError, match="are of 5 layers, but the profile is of 16"):
        decide_cuts(make_profile(), [0, 3, 5], [1, 1], n_microbatches=2)
