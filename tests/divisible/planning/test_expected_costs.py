"""The expected costs of a stage are plain numbers."""

import pytest

from divisible.planning.expected_costs import StagePlan


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"seconds": 0.0}, ValueError, "seconds of a stage are 0"),
        ({"seconds": float("nan")}, ValueError, "seconds of a stage is nan"),
        ({"memory": "3"}, TypeError, "memory of a stage is '3'"),
        ({"link_seconds": None}, TypeError, "link_seconds of a stage is None"),
    ],
)
def test_bad_stages_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        StagePlan(**{"seconds": 1.0, "link_seconds": 0.0, "memory": 1, **arguments})
