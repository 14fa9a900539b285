"""Changes on trial: those that make no step shorter are taken back, and wait."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from divisible import LayerCost, Profile
from divisible.planning.cost_model import CostModel
from divisible.planning.network import Network
from divisible.schedules import one_f_one_b
from pipeline.rebalancing import decide_cuts
from pipeline.rebalancing.trials import ChangesOnTrial

N_LAYERS, N_MICROBATCHES = 16, 8
PROFILE = Profile([LayerCost(0.01, 0.01, 0.01)] * N_LAYERS, n_samples=4)
SCHEDULE = one_f_one_b(4, N_MICROBATCHES)


def train(speed_of, n_checks, trial):
    """Returns cuts and steps' seconds at each check, of hosts with speeds by load."""
    cuts, found = [0, 4, 8, 12, 16], []
    for check in range(n_checks):
        sizes = np.diff(cuts)
        speeds = np.array([speed_of(check, r, n) for r, n in enumerate(sizes)])
        busy = sizes * 0.03 * N_MICROBATCHES / speeds
        links = Network().links(4)
        model = CostModel.of(SCHEDULE, [PROFILE] * N_MICROBATCHES, speeds, links)
        seconds = model.simulate(cuts).makespan
        found.append((cuts, seconds))
        wanted = decide_cuts(PROFILE, cuts, busy, schedule=SCHEDULE).cuts
        cuts = trial(wanted, cuts, seconds) or cuts
    return found


def speed_with_credits(check, rank, n_layers):
    """Host 2 is as fast as others while it has little to do."""
    return 0.3 if rank == 2 and n_layers > 2 else 1.0


def n_moves(found):
    return sum(a != b for (a, _), (b, _) in zip(found, found[1:]))


def test_a_host_that_is_fast_with_little_work_keeps_that_work():
    moves = ChangesOnTrial()
    found = train(speed_with_credits, 60, lambda *args: moves.choose(*args).target)
    for_ever = train(speed_with_credits, 60, lambda wanted, *_: wanted)
    assert n_moves(for_ever) > 50
    # There, and after pauses of 1, 2, 4, 8 and 16 checks there and back.
    assert n_moves(found) <= 13
    mean = np.mean([seconds for _, seconds in found])
    assert mean < 0.75 * np.mean([seconds for _, seconds in for_ever])


def test_a_host_that_becomes_slow_in_a_pause_is_followed_at_once():
    def speed(check, rank, n_layers):
        if check >= 35 and rank == 0:
            return 0.2
        return speed_with_credits(check, rank, n_layers)

    moves, reasons = ChangesOnTrial(), []

    def trial(*args):
        reasons.append(moves.choose(*args))
        return reasons[-1].target

    found = train(speed, 40, trial)
    # Nothing changes when the other host becomes slow.
    assert "nothing changes for" in reasons[34].reason
    assert np.diff(found[36][0])[0] < np.diff(found[35][0])[0]


checks = st.tuples(
    st.one_of(st.none(), st.sampled_from([[0, 1, 4], [0, 2, 4], [0, 3, 4]])),
    st.floats(0.5, 2),
)


@given(st.lists(checks, max_size=80))
def test_no_move_is_kept_that_makes_steps_longer(sequence):
    moves, now, before = ChangesOnTrial(), [0, 2, 4], None
    for wanted, seconds in sequence:
        wanted = None if wanted == now else wanted
        choice = moves.choose(wanted, now, seconds)
        if before is not None:
            origin, there = before
            assert choice.goes_back == (seconds >= there)
            assert choice.target == (origin if choice.goes_back else None)
        else:
            assert not choice.goes_back
            assert choice.target in (None, wanted)
        assert choice.reason is not None or choice.target == wanted
        tried = choice.target is not None and not choice.goes_back
        before = (now, seconds) if tried else None
        now = choice.target or now


def test_a_change_is_not_judged_by_steps_that_do_something_else():
    trial = ChangesOnTrial()
    trial.choose([0, 3, 4], [0, 2, 4], 0.5)
    trial.forget()
    assert not trial.is_open
    # Longer than before the change, which nobody takes back; nor does anything wait.
    assert trial.choose([0, 1, 4], [0, 3, 4], 0.6).target == [0, 1, 4]
