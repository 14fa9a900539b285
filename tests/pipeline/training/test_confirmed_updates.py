"""The last update of a training is confirmed when the training ends."""

from types import SimpleNamespace

import pytest

from pipeline.training.confirmed_updates import ConfirmedUpdates


class _Pipeline:
    """Counts the confirmations."""

    n_confirmed = 0

    def confirm_update(self):
        self.n_confirmed += 1


def begun():
    """Returns a pipeline, and its extension in a training that has begun."""
    pipeline = _Pipeline()
    extension = ConfirmedUpdates(pipeline)
    extension.initialize(SimpleNamespace(_extensions={}))
    return pipeline, extension


def test_a_training_within_the_handler_of_an_error_confirms_its_last_update():
    try:
        raise FileNotFoundError("no snapshot")
    except FileNotFoundError:
        pipeline, extension = begun()
        extension.finalize()
    assert pipeline.n_confirmed == 1


def test_an_error_of_the_training_confirms_nothing():
    pipeline, extension = begun()
    with pytest.raises(ZeroDivisionError):
        try:
            raise ZeroDivisionError
        finally:
            extension.finalize()
    assert pipeline.n_confirmed == 0
