"""When a host stops that has a part of a core."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

shares = st.floats(0.05, 1.0)


@given(shares, st.floats(1e-4, 0.5))
def test_a_busy_host_has_its_share_of_a_core(share, core_seconds):
    from paper_tables.quota import repeated

    times = int(max(10, 2 / core_seconds))
    mean, _ = repeated(share, [core_seconds], times=times)
    # But for what it owes in the end.
    assert mean == pytest.approx(core_seconds / share, rel=0.01)


@given(shares, st.floats(1e-4, 0.5), st.integers(0, 99))
def test_a_pause_is_used_later_but_for_a_tick_at_most(share, core_seconds, seed):
    from paper_tables.quota import PERIOD, QUOTA, TICK, Quota

    quota = Quota(share, np.random.RandomState(seed))
    seconds = quota.run(core_seconds)
    assert core_seconds <= seconds + 1e-9
    # It may end just before the tick that would stop it.
    saved = core_seconds / share - seconds
    most = (max(share * PERIOD, QUOTA) / 2 + TICK) / share
    assert -1e-9 <= saved <= most + 1e-9
    # Whoever rests long enough owes nothing.
    quota.rest(10.0)
    assert quota.run(1e-9) == pytest.approx(1e-9)


def test_short_phases_behind_a_pause_have_few_stops():
    from paper_tables.quota import repeated

    busy, spread = repeated(0.1, [0.001, 0.002], times=2000)
    assert busy == pytest.approx(0.015, rel=0.05) and spread > 1
    alone, _ = repeated(0.1, [0.001, 0.002], pause=1.0, times=2000)
    assert 0.0015 <= alone < 0.3 * busy


def test_long_phases_save_as_much_as_short_ones():
    from paper_tables.quota import repeated

    saved = [
        repeated(0.1, [phase])[0] - repeated(0.1, [phase], pause=1.0)[0]
        for phase in (0.02, 0.2, 2.0)
    ]
    assert saved == pytest.approx([np.mean(saved)] * 3, rel=0.25)


def test_a_whole_core_never_stops():
    from paper_tables.quota import repeated

    assert repeated(1.0, [0.3, 0.3]) == pytest.approx((0.3, 0.0))
