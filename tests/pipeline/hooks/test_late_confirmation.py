"""A rank knows that its update was wrong as soon as the numbers have come."""

from types import SimpleNamespace

import numpy as np
import pytest

from divisible.unconfirmed_update import UnconfirmedUpdate
from pipeline.hooks.late_confirmation import LateConfirmation


class Reduction:
    """A reduction whose numbers come when the test wants it."""

    numbers = np.zeros(1)

    def __init__(self):
        self.has_come = False

    def test(self):
        return self.has_come

    def result(self):
        return "the outcome"


@pytest.mark.parametrize("is_right", [False, True])
def test_numbers_that_have_come_settle_the_update(is_right):
    ranks = SimpleNamespace(calls=object(), timeout=1, watch=None)
    late, reduction, again = LateConfirmation(ranks), Reduction(), []
    late.begin(UnconfirmedUpdate(reduction, lambda outcome: is_right, again.append))
    assert not late.is_surely_wrong and not again
    reduction.has_come = True
    assert late.is_surely_wrong is not is_right
    assert again == ([] if is_right else ["the outcome"])
    assert late.is_right() is is_right
    assert late.n_taken_back == len(again) == (not is_right)
