"""Seconds of a minibatch by what a rank did, and what is usual."""

import numpy as np
import pytest

from divisible.schedules import one_f_one_b
from divisible.schedules.rank_program import RankProgram, Record, Span
from pipeline.watching.process_counters import Counters, ProcessCounters
from pipeline.watching.step_seconds import Columns, History, StepSeconds


def minibatch(computing, between=0.1):
    return StepSeconds(computing, 0, 0, 0, between, computing, computing, 0, 0)


def test_every_second_of_a_minibatch_has_one_name():
    program = RankProgram.of(one_f_one_b(2, 1), 0, False)
    # A forward, a send, a receive and a backward, with a second between any two.
    assert [str(each) for each in program.operations] == [
        *("0F0", "0F0>1", "1B0<1", "0B0")
    ]
    record = Record(program, [10, 12, 13, 13.5, 14.5, 18, 19, 23])
    record = record.followed_by(Span("update", 24.0, 24.25))
    found = Columns(program).seconds(record, 15.0, Counters(6.5, 0.5, 1e6))
    assert found == StepSeconds(
        computing=6.0,
        sending=0.5,
        waiting=3.5,
        updating=0.25,
        between=1.75,
        span=13.0,
        on_cpu=6.5,
        queued=0.5,
        stored=1e6,
    )
    assert found.blocked == 0.0
    assert found._replace(on_cpu=2.0).blocked == 3.5


def test_nothing_is_usual_before_there_are_twenty_minibatches():
    history = History()
    assert (history.now(), history.usual(), history.slowness()) == (None, None, {})
    # The first ones size layers, and do not count.
    for seconds in (50.0, 40.0, 30.0, *[1.0] * 19):
        history.add(minibatch(seconds))
    assert history.usual() is None
    history.add(minibatch(1.0))
    assert history.usual() == minibatch(1.0)
    assert history.slowness() == {"computing": 1.0, "between": 1.0}
    history.clear()
    assert history.now() is None


def test_a_slow_time_does_not_become_usual():
    history = History()
    for _ in range(40):
        history.add(minibatch(1.0))
    for _ in range(1000):
        history.add(minibatch(1.3))
        history.slowness()
    assert history.slowness()["computing"] == pytest.approx(1.3)


def test_a_host_with_other_programs_is_not_slow_now_and_then():
    history, rng = History(), np.random.default_rng(1)
    for _ in range(600):
        # Up to twice as long, at random.
        history.add(minibatch(1.0 + rng.random()))
        slowness = history.slowness()
        assert not [name for name in history.longer() if slowness[name] > 1.15]
    for _ in range(20):
        history.add(minibatch(2.0 + rng.random()))
    assert history.slowness()["computing"] > 1.3
    assert history.longer() == ["computing"]


def test_some_long_minibatches_are_no_slow_time():
    history = History()
    rng = np.random.default_rng(0)
    for i in range(500):
        history.add(minibatch(1.0 if i % 5 < 4 else 5.0, 0.1 * rng.random()))
        assert max(history.slowness().values(), default=1.0) < 1.15


def test_counters_grow_with_what_a_thread_computes():
    counters = ProcessCounters()
    before = counters.read()
    sum(range(300_000))
    assert counters.read().since(before).on_cpu > 0
    counters.close()
    assert counters.read() == Counters(0.0, 0.0, 0.0)
