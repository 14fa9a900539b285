"""Profiles and plans are tables with sums and shares."""

from divisible import LayerCost
from divisible.planning.expected_costs import StagePlan
from divisible.planning.tables import (
    PLAN_COLUMNS,
    PROFILE_COLUMNS,
    plan_rows,
    profile_rows,
)


def test_a_profile_has_a_row_for_each_layer_the_loss_and_the_sums():
    layers = [
        LayerCost(1.0, 0.5, 0.5, activation_bytes=2048, name="a"),
        LayerCost(3.0, 1.0, 1.0, parameter_bytes=1024, name="b" * 60),
    ]
    rows = profile_rows(layers, LayerCost(0.5, 0.5, 0.0, name="loss"))
    assert [len(row) for row in rows] == [len(PROFILE_COLUMNS)] * 4
    assert [row[0] for row in rows] == ["0", "1", "loss", "sum"]
    assert len(rows[1][1]) == 44
    # 2, 5 and 1 of 8 seconds.
    assert [row[5] for row in rows] == ["25.0%", "62.5%", "12.5%", "100.0%"]
    assert rows[3][2].split() == ["4.5", "s"]


def test_a_plan_has_a_row_for_each_stage():
    stages = [StagePlan(1.0, 0.0, 1024), StagePlan(4.0, 0.5, 2048, 2**20)]
    first, second = plan_rows([0, 3, 5], stages)
    assert len(first) == len(second) == len(PLAN_COLUMNS)
    assert (first[1], first[3], first[6]) == ("0..2", "25%", "")
    assert (second[1], second[3]) == ("3..4", "100%")
