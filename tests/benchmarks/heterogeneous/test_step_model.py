"""Simulated seconds of a step."""

import pytest

from benchmarks.heterogeneous.step_model import step_seconds, unit_seconds
from heterogeneous import RectangularPartition, method_1, rectangular_partition

SHAPE = (203, 80, 26, 1024)
NEVER = float("inf")


def test_without_messages_the_slowest_host_decides():
    p = rectangular_partition([1, 2, 3], *SHAPE)
    work = [r.work for r in p.rectangles]
    for i, ability in enumerate((0.1, 0.2, 0.3)):
        abilities = [10.0] * 3
        abilities[i] = ability
        expected = work[i] / ability * 1e-6
        assert step_seconds(p, abilities, 1e-6, NEVER) == pytest.approx(expected)


def test_one_column_sends_what_equation_8_counts():
    p = method_1(4, 1, *SHAPE)
    messages = step_seconds(p, [1] * 4, 0.0, 1e6)
    assert messages == pytest.approx(p.communication * 4 / 1e6)


def test_columns_send_no_more_than_equation_8_counts():
    """Collectors take turns, so that no host has the messages of all units."""
    for columns in (2, 4):
        p: RectangularPartition = method_1(4, columns, *SHAPE)
        messages = step_seconds(p, [1] * 4, 0.0, 1e6)
        assert 0 < messages <= p.communication * 4 / 1e6


def test_the_unit_is_that_of_a_host_of_ability_1():
    abilities, unit = [1.0, 0.5, 0.25], 2e-9
    alone = [[80 * 1024 * unit / a for a in abilities]] * 3
    alone[1][2] *= 1.2  # A disturbance.
    assert unit_seconds(alone, abilities, SHAPE) == pytest.approx(unit)
