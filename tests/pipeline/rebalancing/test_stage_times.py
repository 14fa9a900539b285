"""Times of stages, by what a runner writes down."""

import numpy as np
import pytest

from divisible.schedules import interleaved
from divisible.schedules.actions import Action
from divisible.schedules.rank_program import RankProgram, Record
from pipeline.rebalancing.stage_times import (
    StageTimes,
    profile_of,
    slowest_ranks,
    together,
    under_load,
)


def record_of(program, seconds):
    """What it would write down, if actions took so long by stage, and messages 1 s."""
    times, now = [], 5.0
    for operation in program.operations:
        took = seconds[operation.stage] if isinstance(operation, Action) else 1.0
        times += [now, now + took]
        now += took + 0.25
    return Record(program, times)


def test_a_stage_is_busy_while_it_computes():
    program = RankProgram.of(interleaved(2, 2, 2), 0, rendezvous=False)
    times = StageTimes(n_kept=2)
    for factor in (9, 1, 2):
        times.note(record_of(program, {0: 0.5 * factor, 2: 0.25 * factor}), n_samples=8)
    assert len(times) == 2
    # Of each stage two microbatches, forward and backward.
    assert times.seen().of_stages == {0: [0.25, 0.5], 2: [0.125, 0.25]}


def test_a_step_lasts_until_its_last_action():
    program = RankProgram.of(interleaved(2, 2, 2), 0, rendezvous=False)
    times = StageTimes(n_kept=5)
    assert times.seen() is None
    for seconds in (1.0, 1.0, 30.0, 1.0):
        times.note(record_of(program, {0: seconds, 2: seconds}), n_samples=4)
    n = len(program.operations)
    assert times.seen().step_seconds == 1.25 * n - 0.25
    assert times.seen().n_samples == 4
    assert times.seen().n_minibatches == 4
    times.keep_last(2)
    assert times.seen().n_minibatches == 2
    assert times.seen().of_stages == {0: [30.0, 1.0], 2: [30.0, 1.0]}
    times.clear()
    assert times.seen() is None


def test_other_layers_begin_anew_and_no_samples_say_nothing():
    program = RankProgram.of(interleaved(2, 2, 2), 1, rendezvous=False)
    other = RankProgram.of(interleaved(2, 2, 2), 1, rendezvous=False)
    times = StageTimes(n_kept=5)
    times.note(record_of(program, {1: 1.0, 3: 1.0}), n_samples=4)
    times.note(record_of(program, {1: 1.0, 3: 1.0}), n_samples=0)
    assert len(times) == 1
    times.note(record_of(other, {1: 2.0, 3: 1.0}), n_samples=4)
    assert times.seen().of_stages == {1: [2.0], 3: [1.0]}


def test_of_replicas_the_slowest_counts():
    said = [{0: [1.0, 2.0, 3.0]}, {1: [1.0, 1.0]}, {0: [2.0, 5.0]}, {1: [0.5, 4.0]}]
    np.testing.assert_array_equal(together(said, 2), [[2, 1], [5, 4]])


def test_a_slow_replica_with_few_samples_does_not_count():
    # Replica 1 has a third of the samples, and needs twice as long for each.
    said = [{0: [1.0]}, {1: [1.5]}, {0: [2.0]}, {1: [6.0]}]
    loaded = under_load(said, [1.0, 1.0, 1 / 3, 1 / 3])
    np.testing.assert_allclose(together(loaded, 2), [[1, 2]])
    assert slowest_ranks(loaded, [0, 1, 0, 1]) == [0, 3]


def test_a_profile_of_training_has_the_stages_times():
    forwards = [{0: 3.0, 1: 1.0}, {3: 2.0, 4: 2.0}]
    profile = profile_of(forwards, np.array([0.2, 0.4]), [0, 2, 5], n_samples=10)
    seconds = [layer.seconds for layer in profile.layers]
    # Layer 2 is one that nothing times, such as the end of a skip.
    assert seconds == pytest.approx([1.5, 0.5, 0, 2, 2], abs=1e-6)
    assert min(seconds) > 0
    assert profile.n_samples == 10
