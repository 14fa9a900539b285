"""Keywords that a function does not have."""

import inspect

import pytest
from mpi4py import MPI

from data_parallel import Exchange
from divisible import Divisible, best_plan, partition
from divisible.keywords import names_keywords
from pipeline import Pipeline, snapshot


@pytest.mark.parametrize(
    "call, word, right",
    [
        (Pipeline, "checkpoint", "recompute"),
        (Pipeline, "wire_dtype", "message_dtype"),
        (Pipeline, "hold_directory", "hold_in"),
        (Pipeline, "n_microbatch", "n_microbatches"),
        (snapshot, "autoload", "resume"),
        (Exchange, "wire_dtype", "exchange_dtype"),
        (partition, "checkpoint", "recompute"),
        (best_plan, "memory", "machine"),
        (best_plan, "max_replicas", "replicas"),
    ],
)
def test_the_right_word(call, word, right):
    with pytest.raises(TypeError) as caught:
        call(**{word: None})
    name = call.__name__
    assert str(caught.value) == f"{name}() has no argument {word!r}: use {right}"


def test_no_word_like_it():
    with pytest.raises(TypeError, match=r"'colour': see help\(Pipeline\)"):
        Pipeline(colour=3)


def test_too_many_by_position():
    words = r"Pipeline\(\) takes only stage, comm by position: give the rest by keyword"
    with pytest.raises(TypeError, match=words):
        Pipeline(Divisible(abs), MPI.COMM_SELF, 4)


def test_the_signature_stays():
    def function(x, *, y=1):
        """Text."""

    found = names_keywords(function)
    assert inspect.signature(found) == inspect.signature(function)
    assert found.__doc__ == "Text."
    # Python's own error for a missing argument names it.
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        found(y=2)
