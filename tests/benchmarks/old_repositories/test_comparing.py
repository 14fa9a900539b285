"""Losses with kernels and without, and the words for what a program needed."""

import math

import pytest

from benchmarks.old_repositories import comparing
from benchmarks.old_repositories.program import Change, Program
from benchmarks.old_repositories.trial import Run, Way

PROGRAM = Program("a/b", "0", "GAN", "4", "train.py", change=Change("net.py", 3, "x"))
OLD = PROGRAM._replace(chainer="1.19", command="with_model.py m 'M()' f4:1")


def run(*losses, times=()):
    return Run(list(losses), list(times), "", "")


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ((1.0, 2.0), (1.0, 2.0), 0.0),
        ((1.0, 2.2), (1.0, 2.0), 0.1),
        # A loss around zero is measured by the size of the others.
        ((100.0, 0.01), (100.0, 0.0), 0.01),
        ((math.nan,), (math.nan,), 0.0),
        ((math.nan,), (1.0,), math.inf),
        ((1.0,), (math.nan,), math.inf),
        ((1.0,), (1.0, 2.0), math.inf),
        ((0.0, 1e-9), (0.0, 0.0), math.inf),
    ],
)
def test_the_difference_is_relative_to_the_size_of_losses(ours, theirs, expected):
    assert comparing.difference(run(*ours), run(*theirs)) == pytest.approx(expected)


def test_the_first_quarter_of_steps_is_not_timed():
    times = [0, 10, 11, 12, 13, 14, 15, 16, 17]
    # Nine steps have eight spans, of which two are left out.
    assert comparing.seconds_of_step(run(times=times)) == 1
    assert math.isnan(comparing.seconds_of_step(run(times=[1])))


def test_differences_within_those_of_last_bits_agree():
    assert comparing.agreement(0, None) == "equal"
    assert comparing.agreement(3e-6, None) == "3e-06"
    assert comparing.agreement(2e-3, 5e-4) == "2e-03 (last bits alone 5e-04)"
    more = "2e-03, more than last bits alone"
    assert comparing.agreement(2e-3, 1e-4) == f"{more} (1e-04)"
    assert comparing.agreement(2e-3, None) == more


def test_words_say_what_was_needed():
    words = comparing.help_needed
    assert words(PROGRAM, Way()) == "unchanged"
    assert words(PROGRAM, Way(modes="names")) == "CHAINER_COMPAT=names"
    assert words(PROGRAM, Way(), "<2.4") == "unchanged, NumPy <2.4"
    assert words(PROGRAM, Way(change=True)) == "one changed line, net.py:3"
    assert words(OLD, Way()) == "model unchanged, by a driver"


def test_counts_are_kept_apart_by_version_and_by_driver():
    found = [
        (PROGRAM, "unchanged"),
        (PROGRAM, "CHAINER_COMPAT=names,cupy"),
        (PROGRAM, "one changed line, net.py:3"),
        (PROGRAM._replace(kind="VAE"), "stopped: ValueError: x"),
        (PROGRAM._replace(beyond="Python 2"), "stopped: Python 2"),
        (OLD, "model unchanged, by a driver"),
    ]
    lines = comparing.counts(found)
    assert lines[0].startswith("Chainer 1: 0 of 0 scripts without an edit")
    assert lines[0].endswith("1 of 1 models by a driver")
    assert lines[1].startswith(
        "Chainer 2 and later: 2 of 4 scripts without an edit (50%), 1 of them without"
    )
    assert "1 (Python 2)" in lines[2]
    assert lines[3] == "kinds that ran: 1 (GAN)"
