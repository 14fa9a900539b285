import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible.schedules.actions import Action, Transfer
from divisible.schedules.comparison import CAUSES
from divisible.schedules.costs import Costs
from divisible.schedules.generators import gpipe, one_f_one_b
from divisible.schedules.simulator import simulate
from divisible.schedules.timeline import Timeline
from divisible.schedules.zero_bubble import zero_bubble_h1

PREDICTED = Timeline(
    [(0, "0F0", 0.0, 1.0), (1, "1F0", 1.0, 2.0), (1, "1B0", 2.0, 3.0)]
    + [(0, "0B0", 3.0, 4.0)]
)
MEASURED = Timeline(
    [
        (0, "0F0", 0.0, 1.0),
        (0, Transfer(Action(0, "F", 0), 1, "send"), 1.0, 1.25),
        (0, "1B0<1", 1.25, 5.0, "wait"),
        (0, "1B0<1", 5.0, 5.25),
        (0, "0B0", 5.5, 7.0),
        # Some of it goes on beside the computation.
        (0, "exchange", 6.0, 8.0),
        (1, "0F0<0", 0.0, 1.25, "wait"),
        (1, "1F0", 1.25, 3.0),
        (1, "1B0", 3.0, 5.0),
    ]
)


def by_cause(comparison, rank):
    return dict(zip(CAUSES, comparison.lost[rank].tolist()))


def test_each_moment_has_one_cause():
    comparison = MEASURED.compare(PREDICTED)
    assert by_cause(comparison, 0) == {
        "computing": 0.5,
        "updating": 0.0,
        "other": 1.0,
        "messages": 0.5,
        "waiting": 1.75,
        "between": 0.25,
    }
    # What comes after a rank's last action is a wait for the others.
    assert by_cause(comparison, 1) == {
        "computing": 1.75,
        "updating": 0.0,
        "other": 0.0,
        "messages": 0.0,
        "waiting": 2.25,
        "between": 0.0,
    }


def test_an_update_is_time_that_a_prediction_does_not_have():
    updated = Timeline([*MEASURED, (0, "update", 7.5, 10.0, "update")])
    assert by_cause(updated.compare(PREDICTED), 0) == {
        "computing": 0.5,
        "updating": 2.5,
        # The end of the exchange lies in the update.
        "other": 0.5,
        "messages": 0.5,
        "waiting": 1.75,
        "between": 0.25,
    }


@pytest.mark.parametrize("is_longer", [True, False])
def test_a_line_has_as_many_places_as_its_largest_number(is_longer):
    """The other step is a second longer, and waits for 0.1 ms between its actions."""
    short = Timeline([(0, "0F0", 0.0, 0.5), (0, "0B0", 0.5, 1.0)])
    long = Timeline([(0, "0F0", 0.0, 0.5), (0, "0B0", 0.5001, 2.0)])
    sign = "+" if is_longer else "-"
    comparison = long.compare(short) if is_longer else short.compare(long)
    others = "updating +0, other +0, messages +0, waiting +0, between +0"
    assert str(comparison) == f"{sign}1 s: computing {sign}1, {others}"


@given(
    st.sampled_from([gpipe, one_f_one_b, zero_bubble_h1]),
    st.integers(1, 4),
    st.integers(1, 6),
    st.lists(st.floats(0.01, 5.0), min_size=8, max_size=8),
)
def test_causes_add_up_to_the_difference(make, n_stages, n_microbatches, seconds):
    schedule = make(n_stages, n_microbatches)
    predicted = simulate(schedule, Costs(1.0, 0.5, 0.5))
    measured = simulate(
        schedule,
        Costs(seconds[:n_stages], seconds[-n_stages:], 0.5, transfer=seconds[0]),
    )
    comparison = measured.compare(predicted)
    np.testing.assert_allclose(
        comparison.lost.sum(axis=1),
        measured.makespan - predicted.makespan,
        atol=1e-9,
    )


def test_names_the_slow_stage():
    schedule = one_f_one_b(3, 4)
    predicted = simulate(schedule, Costs(1.0, 1.0, 1.0))
    measured = simulate(schedule, Costs([1.0, 3.0, 1.0], 1.0, 1.0))
    assert [
        (stage, rank, took / expected)
        for stage, rank, took, expected in measured.compare(predicted).stages
    ] == [(0, 0, 1.0), (1, 1, pytest.approx(5 / 3)), (2, 2, 1.0)]


def test_a_step_loses_nothing_against_itself():
    predicted = simulate(zero_bubble_h1(4, 8), Costs(1.0, 1.0, 1.0, transfer=0.1))
    for timeline in predicted, MEASURED:
        assert not timeline.compare(timeline).lost.any()
    assert Timeline().compare(Timeline()).lost.shape == (0, len(CAUSES))


def test_refuses_other_work():
    costs = Costs(1.0, 1.0, 1.0)
    timeline = simulate(gpipe(2, 4), costs)
    with pytest.raises(ValueError, match="2 ranks and the predicted one 3"):
        timeline.compare(simulate(gpipe(3, 4), costs))
    with pytest.raises(ValueError, match="microbatch 3 of stage 0 .* the predicted"):
        timeline.compare(simulate(gpipe(2, 3), costs))
    with pytest.raises(ValueError, match="microbatch 4 of stage 0 .* the measured"):
        timeline.compare(simulate(gpipe(2, 5), costs))


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "both.svg"
    MEASURED.compare(PREDICTED).plot(path)
    assert "<svg" in path.read_text()
