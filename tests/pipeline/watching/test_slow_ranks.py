"""A slow rank is named soon, with the cause, and no rank in a calm run."""

import numpy as np
import pytest

from pipeline.watching.slow_ranks import slow_ranks
from pipeline.watching.step_seconds import History, StepSeconds
from tests.support.run_folders import status

COMPUTING = (0.5, 0.6, 0.4, 0.55)
#: Seconds that rank 2 loses in a minibatch: 1.3 times what it computes.
LOST = 0.3 * COMPUTING[2]


class Ranks:
    """Four ranks whose minibatches have told times, with noise of some percent."""

    def __init__(self):
        self.histories = [History() for _ in COMPUTING]
        self._random = np.random.default_rng(7)

    def step(self, **lost):
        """Runs a minibatch, in which rank 2 loses time, for which others wait."""
        whole = sum(lost.get(name, 0.0) for name in ("computing", "between"))
        for rank, (history, computing) in enumerate(zip(self.histories, COMPUTING)):
            noise = 1 + 0.03 * self._random.standard_normal()
            # Now and then a host does something else.
            spike = 2.0 if self._random.random() < 0.02 else 1.0
            computing = computing * noise * spike
            row = StepSeconds(computing, 0.01, 0.3, 0.02, 0.05, 1, computing, 0, 0)
            more = lost if rank == 2 else {"waiting": whole}
            for name, value in more.items():
                row = row._replace(**{name: getattr(row, name) + value})
            history.add(row)

    def slow(self):
        """Returns the ranks that are slow now, and their causes."""
        states = [
            status(
                rank,
                len(COMPUTING),
                now=history.now(),
                usual=history.usual(),
                slowness=history.slowness(),
                longer=history.longer(),
            )
            for rank, history in enumerate(self.histories)
        ]
        return slow_ranks(states)


CAUSES = {
    # The thread ran all the while.
    "computes": {"computing": LOST, "on_cpu": LOST},
    "another program": {"computing": LOST, "queued": LOST},
    # The thread slept, while bytes came from the disk.
    "disk": {"computing": LOST, "stored": 5e6},
    "script": {"between": 2 * LOST, "on_cpu": 2 * LOST},
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_rank_that_becomes_slow_is_named_within_20_minibatches(cause):
    ranks = Ranks()
    for _ in range(60):
        ranks.step()
    assert ranks.slow() == []
    n_slow = 0
    while n_slow < 20:
        n_slow += 1
        ranks.step(**CAUSES[cause])
        if found := ranks.slow():
            break
    assert [(each.rank, each.cause) for each in found] == [(2, cause)]
    assert n_slow >= 5
    assert f"rank 2 on node2 {'takes' if cause == 'script' else 'computes'}" in str(
        found[0]
    )
    for _ in range(300):
        ranks.step(**CAUSES[cause])
        assert [(each.rank, each.cause) for each in ranks.slow()] == [(2, cause)]
    for _ in range(20):
        ranks.step()
    assert ranks.slow() == []


def test_there_is_no_false_alarm_in_1000_calm_minibatches():
    ranks = Ranks()
    for _ in range(1000):
        ranks.step()
        assert ranks.slow() == []


def test_where_all_ranks_take_longer_none_is_slow():
    # As of longer sequences.
    states = [status(rank, 3, slowness={"computing": 1.8}) for rank in range(3)]
    assert slow_ranks(states) == []


def test_ranks_that_wait_between_steps_are_not_slow():
    now = status(0, 3).now._replace(between=0.5)
    slow = {"computing": 1.0, "between": 1.5}
    states = [status(rank, 3, now=now, slowness=slow) for rank in range(2)]
    assert slow_ranks([*states, status(2, 3)]) == []


def test_a_rank_that_is_slow_from_the_beginning_is_unlike_its_plan():
    def state(rank, planned, **changes):
        return status(rank, 3, planned_seconds=planned, usual=None, **changes)

    states = [state(0, 0.5), state(1, 0.3), state(2, 0.45)]
    (found,) = slow_ranks(states)
    assert (found.rank, found.cause, found.against) == (1, "computes", "planned")
    # One minibatch decides nothing, and a plan for faster hosts is none's fault.
    assert slow_ranks([*states[:2], state(2, 0.45, n_counted=1)]) == []
    assert slow_ranks([state(rank, 0.2) for rank in range(3)]) == []


def test_states_without_times_are_no_ranks_to_compare():
    assert slow_ranks([]) == []
    assert slow_ranks([status(0, 2, now=None, usual=None, slowness={})]) == []
