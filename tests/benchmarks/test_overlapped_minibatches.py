"""The parts of the benchmark that need no emulated hosts."""

import pytest

from benchmarks import overlapped_minibatches as benchmark
from benchmarks.paper_tables.points import Scale
from divisible.schedules import create


@pytest.mark.parametrize("n_hosts", [2, 4, 8])
def test_the_perceptron_has_a_plan_for_each_schedule(n_hosts):
    point = Scale(width=64).of("mlp", n_hosts, 2 * n_hosts)
    plans = benchmark.plans_of(point, benchmark.SCHEDULES, cpu=1.6)
    assert tuple(plans) == benchmark.SCHEDULES
    for name, plan in plans.items():
        schedule = create(name, plan.n_stages, plan.n_microbatches)
        assert len({*schedule.stage_ranks}) == n_hosts
