"""Strategies: what an exchange needs of them, and what counts in the next one."""

import numpy as np
import pytest
from mpi4py import MPI

from data_parallel.arrays import HOST, Spec
from data_parallel.coder import Gradients
from data_parallel.layout import Bucket
from data_parallel.oyama2017_code import Oyama2017Code
from data_parallel.residuals import NOT_LOADED
from data_parallel.settings import Settings
from data_parallel.start import Options
from data_parallel.strategies import strategy_of
from data_parallel.two_roundings import TwoRoundingsCode

SPECS = [Spec("w", (2, 3), "f", False)]
BUCKET = Bucket(0, (0,), (), ())


def strategy(error_feedback=False, **settings):
    options = Options(None, 4096, None, 0, error_feedback, 2, None, 10)
    return strategy_of(Settings(**settings), options, MPI.COMM_SELF, [(0,)])


def oyama2017():
    return strategy(exchange_dtype="fp8", strategy="oyama2017")


def code_of(made, gradient=1, **options):
    """Begins an exchange, and returns its code."""
    make_code = made.begin(SPECS, HOST, **options)
    flat = [np.full(6, gradient, np.float32)]
    return make_code(Gradients(flat, [True], np.float32(1)), None, [made.origin])


def test_two_roundings_keep_nothing_without_error_feedback():
    made = strategy()
    assert (made.residuals, made.quantiles, made.copying) == (None, None, "")
    assert made.origin == NOT_LOADED
    assert isinstance(code_of(made, weights=None), TwoRoundingsCode)
    made.keep(pytest.fail, [True])


@pytest.mark.parametrize("is_finite", [True, False])
def test_what_is_lost_counts_if_all_numbers_are_finite(is_finite):
    made = strategy(error_feedback=True)
    assert made.copying == "error_feedback=True"
    assert isinstance(code_of(made, weights=None), TwoRoundingsCode)
    made.residuals.spare["w"][:] = 3
    made.keep(lambda: is_finite, [True])
    assert made.residuals.by_name["w"].tolist() == [3 * is_finite] * 6


def test_what_was_loaded_of_another_model_is_refused_before_a_code_is_made():
    made = strategy(error_feedback=True)
    made.residuals.by_name["w"] = np.zeros(5, np.float32)
    made.residuals.origin = 1, 0
    with pytest.raises(ValueError, match="5 elements for array w, which has 6"):
        made.begin(SPECS, HOST, None)
    assert made.origin == (1, 0)


@pytest.mark.parametrize("weights", [None, [np.ones((3, 2), "f")]])
def test_oyama2017_needs_weights_of_the_same_shapes(weights):
    with pytest.raises(ValueError, match="weights"):
        oyama2017().begin(SPECS, HOST, weights)


def test_quantiles_hold_for_the_next_exchanges():
    made, weights = oyama2017(), [np.ones((2, 3), "f")]
    assert made.residuals is None and made.origin == NOT_LOADED
    assert made.copying == "strategy='oyama2017'"
    asked = []
    for gradient in (1, 2, 4, 8):
        code = code_of(made, gradient, weights=weights)
        assert isinstance(code, Oyama2017Code)
        found = code.prepare(BUCKET)
        asked.append(None if found is None else round(float(found[0])))
        if found is not None:
            code.agree(BUCKET, found)
        # Those that are kept need no look at the mean.
        made.keep(pytest.fail if found is None else lambda: True, [True])
    # They are taken anew in every second one.
    assert asked == [1, None, 4, None]
