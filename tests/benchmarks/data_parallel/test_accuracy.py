"""Replicas in one process, and what is said of their accuracies."""

import pytest

from benchmarks.data_parallel.accuracy import (
    algorithm1,
    paired,
    steps_to,
    train,
    verdict,
)
from benchmarks.data_parallel.simulated import Run, Task, Way

TASK = Task(n_replicas=2, batch=16, common=20, steps=60, normalizes=False)


def test_ways_begin_with_the_same_steps_and_differ_by_the_exchange():
    ways = {"fp32": Way(), "again": Way(), "Algorithm 1": algorithm1()}
    runs = train(TASK, ways, seed=0, gains_of={"lr x gain": "Algorithm 1"})
    assert list(runs) == [*ways, "lr x gain"]
    assert runs["fp32"].accuracies == runs["again"].accuracies
    for run in runs.values():
        assert len(run.accuracies) == 2 and 10 < run.best <= 100
    assert runs["fp32"].gains == pytest.approx([1] * 40)
    assert max(runs["fp32"].errors) < 1e-6
    assert 0.4 < sum(runs["Algorithm 1"].gains) / 40 < 0.9
    assert runs["Algorithm 1"].quantiles


def test_differences_are_those_of_pairs():
    runs = [Run([90, 91]), Run([95, 94])]
    base = [Run([91, 92]), Run([95, 98])]
    assert paired(runs, base) == (-2, 1)
    assert paired(runs[:1], base[:1]) == (-1, 0)
    assert verdict(-2, 1) == "at most 2.00 lost: met"
    assert verdict(-2.1, 1) == "at most 2.00 lost: MISSED"
    assert verdict(-0.4, 0) == "at most 0.50 lost: met"


def test_the_first_test_that_reaches_an_accuracy():
    run = Run([90, 95, 96, 95])
    assert steps_to(run, TASK, 95) == 60
    assert steps_to(run, TASK, 97) is None
