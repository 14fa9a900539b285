"""The closed forms have the seconds that the simulator finds."""

import itertools

import pytest

from divisible import simulate
from divisible.schedules import create
from divisible.schedules.catalogue import CATALOGUE, Placement
from divisible.schedules.costs import equal_layers
from divisible.schedules.formulas import FORMULAS

TIMES = [(1, 1, 1), (1, 2, 1), (3, 4, 2), (1, 1, 3), (1, 6, 4), (2, 3, 5), (2, 5, 1)]


def test_formulas_are_of_schedules_of_the_catalogue():
    assert set(FORMULAS) <= set(CATALOGUE)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_is_what_the_simulator_finds(name):
    entry, formula = CATALOGUE[name], FORMULAS[name]
    several = (2, 3) if entry.placement is Placement.LOOP else (entry.stages_per_rank,)
    n_compared = 0
    for d, v, m in itertools.product((1, 2, 4), several, (1, 4, 6, 8)):
        schedule = create(name, d * v, m, d)
        for times in TIMES:
            seconds = formula.seconds(d, v, m, *times)
            if seconds is not None:
                found = simulate(schedule, equal_layers(schedule, *times)).makespan
                assert found == pytest.approx(seconds), (d, v, m, times)
                n_compared += 1
    assert n_compared >= 5


@pytest.mark.parametrize(
    ("name", "d", "m", "times"),
    [
        ("zb_h1", 4, 3, (1, 1, 1)),
        ("zb_h2", 4, 6, (1, 1, 1)),
        ("interleaved", 4, 6, (1, 1, 1)),
        ("zb_v", 4, 8, (1, 2, 1)),
    ],
)
def test_a_formula_does_not_hold_outside_its_condition(name, d, m, times):
    assert FORMULAS[name].seconds(d, 2, m, *times) is None
    assert FORMULAS[name].holds
