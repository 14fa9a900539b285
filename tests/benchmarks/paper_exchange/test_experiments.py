"""Policies, and the list of runs."""

import pytest

from benchmarks.data_parallel.simulated import Way
from benchmarks.paper_exchange import experiments
from benchmarks.paper_exchange.experiments import (
    CAFFENET,
    EXPERIMENTS,
    FLOAT,
    FP8,
    SMALL,
    Job,
    Scale,
    jobs,
)


@pytest.mark.parametrize(
    ("policy", "steps", "paper"),
    [
        # Step, all steps, and the factor of the rate there.
        (experiments.every_2_ninths, 7200, {0: 1, 1599: 1, 1601: 0.1, 6401: 1e-4}),
        (experiments.root_of_rest, 38400, {0: 1, 9600: 0.75**0.5, 28800: 0.5}),
        (experiments.every_32nd, 160000, {0: 1, 5119: 1, 5121: 0.96, 10241: 0.96**2}),
    ],
)
def test_policies_are_those_of_the_paper(policy, steps, paper):
    for step, factor in paper.items():
        assert policy(step / steps) == pytest.approx(factor)


def test_all_ways_are_compared_with_float():
    for task, _ in EXPERIMENTS:
        assert EXPERIMENTS[task, FLOAT].way == Way()
    fp8 = EXPERIMENTS[CAFFENET, FP8].way
    assert not fp8.exempts and fp8.ratio
    assert fp8.options == {"strategy": "oyama2017", "epsilon": 1e-5, "local_size": 8}


def test_repeated_experiments_have_all_seeds():
    found = jobs(Scale(seeds=2))
    assert len(found) == len({*found}) == 17
    assert Job(CAFFENET, FP8, 1) in found and Job(CAFFENET, "fp8, 1e-3", 1) not in found
    # The longest run does not begin last.
    assert found[0].way.startswith("fp8, 8 nodes") and found[-1].way == FLOAT
    assert len(jobs(SMALL)) == len(EXPERIMENTS)


def test_a_part_of_the_steps():
    experiment = EXPERIMENTS[CAFFENET, "fp8, 8 nodes"]
    task = Scale(part=0.5, common=60).task(experiment)
    assert (task.steps, task.common, task.n_replicas) == (360, 60, 64)
    # There are always some steps in 8 bits.
    assert Scale(part=0.01).task(experiment).steps == 120
