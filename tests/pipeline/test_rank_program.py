"""What all ranks did, put together."""

import numpy as np
import pytest

from divisible.schedules import one_f_one_b
from divisible.schedules.actions import Action
from pipeline.rank_program import RankProgram, measured_timeline


def program(schedule, rank, routes=()):
    return RankProgram.of(schedule, rank, rendezvous=False, routes=routes)


def test_a_timeline_begins_with_the_first_operation():
    ranks = []
    for rank, shift in ((0, 0.0), (1, 0.5)):
        operations = program(one_f_one_b(2, 2), rank).operations
        ranks.append((operations, 100.0 + shift + np.arange(2.0 * len(operations))))
    timeline = measured_timeline("measured", ranks)
    assert timeline.start.min() == 0.0
    assert timeline.makespan == pytest.approx(2 * len(ranks[0][0]) - 0.5)
    assert timeline.n_ranks == 2 and timeline.name == "measured"
    waits = {event.what for event in timeline if event.category == "wait"}
    received = [what for what in ranks[0][0] if not isinstance(what, Action)]
    assert {what for what in received if what.direction == "receive"} <= waits
