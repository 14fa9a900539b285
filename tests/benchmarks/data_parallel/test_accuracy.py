"""Replicas in one process, and what is said of their accuracies."""

from functools import partial

import numpy as np
import pytest

from benchmarks.data_parallel.accuracy import (
    algorithm1,
    paired,
    steps_to,
    train,
    verdict,
)
from benchmarks.data_parallel.digits import SmallNet
from benchmarks.data_parallel.simulated import Replicas, Run, Task, Way

TASK = Task(n_replicas=2, batch=16, common=20, steps=60, make=partial(SmallNet, False))


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


def test_a_policy_sets_the_learning_rate_and_weights_decay():
    task = TASK._replace(
        lr=0.5, policy=lambda done: 1 - done, weight_decay=0.1, are_samples_apart=True
    )
    replicas = Replicas(task, 0)
    replicas.train_common()
    assert replicas.optimizer.lr == pytest.approx(0.5 * (1 - 19 / 60))
    replicas.train(Way(lr_factor=2), stop=50)
    assert replicas.optimizer.lr == pytest.approx(2 * 0.5 * (1 - 49 / 60))
    before = replicas.model.fc1.W.array.copy()
    zeros = {n: np.zeros_like(p.array) for n, p in replicas.model.namedparams()}
    velocity = replicas.model.fc1.W.update_rule.state["v"].copy()
    replicas.update(zeros, 30)
    expected = before + 0.9 * velocity - 0.25 * 0.1 * before
    np.testing.assert_allclose(replicas.model.fc1.W.array, expected, 1e-4, 1e-7)


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
