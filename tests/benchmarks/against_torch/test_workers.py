"""Objects in other processes."""

import fractions
import os

import pytest

from benchmarks.against_torch import workers


def test_a_method_of_another_process():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HERE", "before")
        environment = {"HERE": "there"}
        worker = workers.Worker(
            "a half", fractions.Fraction, 1, 2, environment=environment
        )
        assert os.environ["HERE"] == "before"
    try:
        assert worker.call("limit_denominator", 10) == fractions.Fraction(1, 2)
        with pytest.raises(RuntimeError, match="a half failed:(.|\n)*at least 1"):
            worker.call("limit_denominator", 0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(workers, "DEADLINE", 0.0)
            with pytest.raises(TimeoutError, match="a half takes more than"):
                worker.receive()
    finally:
        worker.close()
