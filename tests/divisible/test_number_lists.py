"""Wrong numbers are refused in a user's words, not in those of NumPy."""

import re

import numpy as np
import pytest

from divisible import (
    LayerCost,
    Machine,
    Network,
    Plan,
    Profile,
    best_plan,
    partition,
    simulate,
)
from divisible.number_lists import amount, numbers
from divisible.schedules import Costs, list_schedule, one_f_one_b
from heterogeneous import ability

PROFILE = Profile([LayerCost(0.1 * i, 0.1, 0.1, 40) for i in range(1, 6)], 2)
SCHEDULE = one_f_one_b(4, 4)
# Words of NumPy's own errors, shapes, and types as they show by themselves.
OF_NUMPY = re.compile(
    r"shapes? \(|inhomogeneous|array element|could not convert|np\.|array\(|\[\d\. "
)
BAD = [
    *([1, 2], [1, [2]], [[1, 2], [3, 4]], ["a", "b", "c", "d"], "abc", [1, None, 2, 3]),
    *([1, 2, 3, float("nan")], [1, 2, 3, -1], [], (1, 2, 3, 4, 5, 6), {1: 2}, 1j),
    *(object(), -1, 10**400, [1, 2, 3, 10**400], np.ones(3), np.ones((2, 2))),
    *(np.float64(-1), [np.float64(-1)] * 4, np.full(4, -1.0)),
]
CALLS = {
    "speeds": lambda v: partition(PROFILE, 4, speeds=v),
    "memory": lambda v: partition(PROFILE, 4, memory=v),
    "bandwidth": lambda v: partition(PROFILE, 4, network=Network(v)),
    "latency": lambda v: partition(PROFILE, 4, network=Network(1.0, v)),
    "microbatches": lambda v: best_plan(PROFILE, Machine(4), batch=8, microbatches=v),
    "forward": lambda v: simulate(SCHEDULE, Costs(v, 1, 1)),
    "transfer": lambda v: simulate(SCHEDULE, Costs(1, 1, 1, transfer=v)),
    "activation_bytes": lambda v: simulate(
        SCHEDULE, Costs(1, 1, 1, activation_bytes=v)
    ),
    "costs": lambda v: simulate(SCHEDULE, v),
    "memory_limit": lambda v: list_schedule(Costs(1, 1, 1), 4, v, n_stages=4),
    "cuts": Plan,
    "shares": lambda v: Plan([0, 1, 2], replicas=3, shares=v),
    "streamed": lambda v: Plan([0, 1, 5], streamed=v),
    "hold_in": lambda v: Plan([0, 1, 5], hold_in=v),
    "fusion": lambda v: Plan([0, 1, 5], fusion=v),
    "work": lambda v: ability(v, [1, 2, 3]),
    "seconds": lambda v: ability([1, 2, 3], v),
}


@pytest.mark.parametrize("name", CALLS)
def test_words_of_errors(name):
    n_refused = 0
    for value in BAD:
        try:
            CALLS[name](value)
        except (TypeError, ValueError) as error:
            n_refused += 1
            assert not OF_NUMPY.search(str(error)), (value, str(error))
    assert n_refused >= 9


def test_the_message_says_how_many(tmp_path):
    with pytest.raises(ValueError) as caught:
        partition(PROFILE, 4, speeds=[1, 2])
    assert str(caught.value) == (
        "speeds has 2 numbers, but there are 4 ranks: give one number for all or one"
        " for each"
    )


def test_numbers_and_amounts():
    assert numbers("x", 3).shape == () and numbers("x", [[1, 2]]).tolist() == [[1, 2]]
    with pytest.raises(TypeError, match="x must be a number, or a list of .*not 'a'"):
        numbers("x", "a")
    assert amount(np.ones(())) == "1 number"
    assert amount(np.ones(0)) == "0 numbers"
