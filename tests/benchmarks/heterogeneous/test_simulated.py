"""DRPM settles, and follows what changes."""

import numpy as np
import pytest

from benchmarks.heterogeneous.settling import TABLES, row
from benchmarks.heterogeneous.simulated import (
    PRINTED,
    Settings,
    drift,
    random_case,
    run,
    settles,
)

# 98 of 100.
ENOUGH = 98.0


@pytest.mark.slow
@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("n", [pytest.param(4, marks=pytest.mark.matrix), 8])
def test_it_settles_within_three_checks(n, is_told):
    first, again, slowest = row(Settings(), n, is_told, cases=100)
    assert first >= ENOUGH and again >= ENOUGH
    assert slowest < 1.05


def test_the_papers_six_iterations_settle_with_less_noise():
    first, again, _ = row(Settings(last=6, noise=0.05), 8, False, cases=60)
    assert first >= ENOUGH and again >= ENOUGH


def test_the_printed_method_counts_a_spike_and_waits():
    """Where ours keeps the mapping, the printed method moves lines by one iteration."""
    random = np.random.RandomState(1)
    abilities, _ = random_case(random, 6)
    told, spike = abilities.tolist(), [(58, 2, 30.0)]
    for settings, moves in ((Settings(), False), (PRINTED, True)):
        checks = run(lambda i: abilities, told, 3, settings, random, spike)
        assert [check.action is not None for check in checks] == [False, False, moves]


def test_waits_hide_how_slow_a_processor_is():
    """By the clock, processors of one column take nearly as long as its slowest."""
    # Each of two columns has a slow one.
    abilities, random = np.array([0.75, 1.0, 0.75, 1.0]), np.random.RandomState(3)
    believed, found = [1.0] * 4, {}
    for waits in (False, True):
        settings = Settings(noise=0.01, waits=waits)
        checks = run(lambda i: abilities, believed, 8, settings, random)
        found[waits] = checks[-1].slowest
    assert found[False] < 1.05 < found[True]


def test_the_papers_rows_are_the_printed_method():
    for title, rows in TABLES.items():
        for settings in rows.values():
            is_printed = (settings.filter, settings.waits) == (False, True)
            assert is_printed == title.startswith("the paper's method")
    *_, (_, last) = TABLES["the paper's method, R"].items()
    assert last == PRINTED


def test_a_drift_is_followed():
    random = np.random.RandomState(0)
    for _ in range(20):
        before, _ = random_case(random, 5)
        after = before * random.permutation([0.4, 1, 1, 1, 1])
        checks = run(
            drift(before, after, 100, 500), before.tolist(), 30, Settings(), random
        )
        assert all(check.slowest < 1.3 for check in checks)
        assert checks[-1].slowest < 1.2
        kept = run(
            drift(before, after, 100, 500),
            before.tolist(),
            30,
            Settings(whole=0, line=0),
            random,
        )
        assert kept[-1].slowest > checks[-1].slowest


@pytest.mark.parametrize("iteration", [45, 59, 60])
def test_a_spike_of_one_iteration_is_ignored(iteration):
    random = np.random.RandomState(1)
    abilities, _ = random_case(random, 6)
    told = abilities.tolist()
    spike = [(iteration, 2, 30.0)]
    checks = run(lambda i: abilities, told, 6, Settings(), random, spike)
    assert settles(checks, 0, within=0)


def test_a_step_is_answered_by_a_remapping():
    random = np.random.RandomState(2)
    abilities, _ = random_case(random, 4)
    slowed = abilities * [1, 0.5, 1, 1]
    checks = run(
        lambda i: abilities if i < 60 else slowed,
        abilities.tolist(),
        8,
        Settings(),
        random,
    )
    assert [check.action is not None for check in checks[:3]] == [False] * 3
    assert checks[3].action in ("line", "whole")
    assert checks[2].slowest > 1.3 and checks[3].slowest < 1.1
