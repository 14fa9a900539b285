"""A link whose messages take longer is named, and no link of a calm run."""

import numpy as np

from pipeline.watching.slow_links import LinkTimes
from pipeline.watching.status_files import Messages
from tests.support.run_folders import USUAL, status


def states(step, seconds, skew=0.0, **changes):
    """Returns two ranks; each message from 0 to 1 is under way for ``seconds``."""
    sent = {f"0>1 0F{i}": 10.0 * step + i for i in range(4)}
    # The receiver is late for the first one, which then has come already.
    received = {
        name: (begin + skew, begin + skew + seconds) for name, begin in sent.items()
    }
    ends = [Messages(step, sent, {}), Messages(step, {}, received)]
    return [
        status(rank, 2, messages=[messages], **changes)
        for rank, messages in enumerate(ends)
    ]


def after(seconds, skew=0.0, **changes):
    times, rng = LinkTimes(), np.random.default_rng(0)
    for step in range(30):
        times.add(states(step, 0.01 * rng.random(), skew))
    now = states(0, 0.0, skew)
    assert times.slow(now) == []
    for step in range(30, 36):
        now = states(step, seconds, skew, **changes)
        times.add(now)
        # The same minibatch counts once.
        times.add(now)
    return times.slow(now)


def test_a_link_that_becomes_slow_is_named():
    (found,) = after(0.1)
    assert (found.source, found.target) == (0, 1)
    assert abs(found.seconds - 0.4) < 0.05
    assert str(found).startswith("the link from rank 0 to rank 1 takes")


def test_clocks_of_hosts_may_differ():
    (found,) = after(0.1, skew=0.02)
    assert (found.source, found.target) == (0, 1)


def test_a_few_milliseconds_are_no_slow_link():
    assert after(0.02) == []


def test_a_receiver_without_a_processor_is_no_slow_link():
    assert after(0.1, now=USUAL._replace(queued=0.5)) == []


def test_ranks_may_have_written_other_minibatches():
    times = LinkTimes()
    for step in range(60):
        # Rank 1 is behind by one.
        times.add([states(step + 1, 0.0)[0], states(step, 0.0)[1]])
    assert times.slow(states(0, 0.0)) == []
