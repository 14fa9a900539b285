import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from divisible import simulate
from divisible.schedules import Costs, gpipe
from divisible.schedules.paper_model import PerformanceModel, T_pipe, t_comm, t_pipe

TIMES = st.floats(1e-5, 10)
MODELS = st.builds(PerformanceModel, st.integers(2, 64), TIMES, TIMES, TIMES)


def test_the_equations_by_hand():
    assert t_comm(bs=10, t_0=3, dsize=8, bw=4) == 23
    # Fig. 1: four stages, four microbatches, seven turns of a sixteenth each.
    assert t_pipe(m=4, d=4, t_comp=16) == 7
    assert T_pipe(m=4, d=4, t_comp=16, t_0=1, transfer=4) == 7 + 6 * (1 + 1)
    # Without parallelism nothing is sent.
    assert T_pipe(m=1, d=1, t_comp=16, t_0=1, transfer=4) == 16


@given(MODELS)
def test_three_points_determine_the_constants(model):
    m = [3, 12, 40]
    seconds = [model(number) for number in m]
    fitted = PerformanceModel.fit(model.d, m, seconds)
    # A constant that hardly contributes is not determined; the steps always are.
    assert fitted.errors(m, seconds) == pytest.approx(0, abs=1e-6)
    between = range(1, 81)
    assert fitted.errors(between, [model(m) for m in between]) == pytest.approx(
        0, abs=1e-4
    )


@given(MODELS, st.integers(0, 2**31 - 1))
def test_least_squares_evens_out_noise(model, seed):
    m = np.arange(1, 81)
    noise = np.random.RandomState(seed).uniform(0.95, 1.05, len(m))
    fitted = PerformanceModel.fit(model.d, m, model(m) * noise)
    # A few microbatches weigh little in the sum of squares.
    assert np.abs(fitted.errors(m, model(m)))[4:].max() < 0.05


@given(MODELS, st.one_of(st.none(), st.integers(1, 200)))
def test_best_m_is_the_least_of_all(model, at_most):
    best = model.best_m(at_most)
    limit = at_most or 4 * best + 10
    assume(limit < 10**5)
    assert model(best) == pytest.approx(min(model(np.arange(1, limit + 1))))


def test_free_messages_want_as_many_microbatches_as_there_may_be():
    model = PerformanceModel(4, 1.0, 0.0, 0.0)
    assert model.best_m(at_most=1200) == 1200
    with pytest.raises(ValueError, match="at_most must be at least 1, not 0"):
        model.best_m(at_most=0)
    with pytest.raises(ValueError, match="at_most"):
        model.best_m()


def test_more_microbatches_are_no_use_to_one_rank():
    assert PerformanceModel(1, 1.0, 0.0, 0.1).best_m() == 1


@pytest.mark.parametrize("m", [1, 2, 5, 20])
def test_equals_the_simulator_on_two_stages(m):
    t_comp, t_0, transfer = 3.0, 0.02, 0.3
    each = t_comp / 2 / m / 2
    # Equation (3) counts one message a turn, forward and backward together.
    costs = Costs(each, each, 0.0, transfer / m / 2, t_0 / 2)
    timeline = simulate(gpipe(2, m), costs, overlap=False)
    assert timeline.makespan == pytest.approx(T_pipe(m, 2, t_comp, t_0, transfer))


@pytest.mark.parametrize("d", [4, 8, 16])
def test_near_the_simulator_on_more_stages(d):
    """With more stages, a rank in the middle has two messages in each turn."""
    t_comp, t_0, transfer = 3.0, 0.001, 0.02
    numbers = [1, 3, 5, 12, 20, 40]
    simulated = []
    for m in numbers:
        each = t_comp / d / m / 2
        costs = Costs(each, each, 0.0, transfer / m / 2, t_0 / 2)
        simulated.append(simulate(gpipe(d, m), costs, overlap=False).makespan)
    model = PerformanceModel(d, t_comp, t_0, transfer)
    # As it stands it sees one of the two messages; fitted, t_0 makes up for that.
    assert np.abs(model.errors(numbers, simulated)).max() < 0.25
    fitted = PerformanceModel.fit(d, numbers, simulated)
    assert np.abs(fitted.errors(numbers, simulated)).max() < 0.03


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, [1, 2, 3], [1, 1, 1]), "d must be at least 2"),
        ((4, [1, 2], [1, 1]), "three different m"),
        ((4, [3, 3, 5], [1, 1, 1]), "three different m"),
        ((4, [1, 2, 3], [1, 1]), "equal length"),
        ((4, [1, 2, 3], [1, 0, 1]), "seconds must be finite and positive"),
        ((4, [1, 2, 3], [1, float("nan"), 1]), "seconds must be finite"),
        ((4, [0, 2, 3], [1, 1, 1]), "m must be finite and positive"),
    ],
)
def test_bad_points(arguments, message):
    with pytest.raises(ValueError, match=message):
        PerformanceModel.fit(*arguments)


@pytest.mark.parametrize(
    "constants", [(0, 1, 1, 1), (2, -1, 1, 1), (2, 1, float("nan"), 1)]
)
def test_bad_constants(constants):
    with pytest.raises(ValueError, match="must be"):
        PerformanceModel(*constants)
