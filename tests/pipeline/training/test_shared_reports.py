"""What ranks reported, put together."""

import math

import chainer
import numpy as np

from pipeline.training.shared_reports import merge, numbers


def test_what_differs_is_said_for_the_ranks_that_have_it():
    said = [{"nan": math.nan}, {"x": 1, "nan": math.nan}, {}, {"x": 2.5}]
    merged, differing = merge(said)
    assert merged["x"] == 1 and math.isnan(merged["nan"])
    assert differing == {"x": "1 on rank 1, 2.5 on rank 3"}


def test_numbers_are_those_that_a_summary_takes():
    observation = {
        "known": 0.0,
        "float": np.float32(0.5),
        "array": np.array(2),
        "variable": chainer.Variable(np.array(3, np.float32)),
        "weighted": (np.float32(4), 2),
        "vector": np.ones(2),
        "text": "five",
        "bad weight": (1, "two"),
        "none": None,
    }
    assert numbers(observation, {"known"}) == {
        "float": 0.5,
        "array": 2,
        "variable": 3.0,
        "weighted": (4.0, 2),
    }
