"""Grids that train in several ways, and what is written of them."""

import pytest

from benchmarks.common.results import Result
from benchmarks.data_parallel import grid, grid_ranks
from benchmarks.data_parallel.exchange import Goals
from benchmarks.data_parallel.grid import hidden, write_overlap, write_plans
from benchmarks.data_parallel.grid_ranks import Job, make_profiles, overlap, plans
from tests.support.mpiexec import assert_on_ranks

ROUNDS = 2
SECONDS = {"alone": [2.0, 2.0], "after": [4.0, 4.0], "during": [2.5, 2.5]}


def test_hidden_is_what_the_step_does_not_wait_for():
    assert hidden(SECONDS) == pytest.approx(0.75)
    assert hidden({**SECONDS, "during": [4.0]}) == 0


def lines_of(tmp_path, write, found):
    goals, file = Goals(), tmp_path / "result.txt"
    result = Result("data_parallel_grid", file)
    write(result, found, goals)
    result.save()
    return file.read_text().splitlines(), goals.lines


def test_each_schedule_has_a_line(tmp_path):
    found = {"1f1b": [SECONDS, "during the step: 4 of 4 gradients", 10**6]}
    lines, goals = lines_of(tmp_path, write_overlap, found)
    expected = "1f1b 2000.0 4000.0 2500.0 1.60 (1.60..1.60) 75% 1.0"
    assert lines[1].split() == expected.split()
    assert goals == ["1f1b: after the step over during it: 1.60, wanted 1: met"]


def test_orders_are_compared(tmp_path):
    of_plans = [
        ["4 x 1, fp32", "a plan", 3.0, [4.0]],
        ["1 x 4, fp32", "a plan", 1.0, [2.0]],
        ["4 x 1, int8", "a plan", 1.0, [2.0]],
        ["1 x 4, int8", "a plan", 2.0, [1.0]],
    ]
    found = {"bandwidth": 1e8, "latency": 1e-4, "slower": 2.5, "plans": of_plans}
    lines, goals = lines_of(tmp_path, write_plans, found)
    assert lines[2].split()[:5] == ["4", "x", "1,", "fp32", "3000.0"]
    assert lines[2].endswith(" 4000.0  a plan")
    assert goals == [
        "fp32: the order measured, 1 x 4 < 4 x 1, is predicted: 1, wanted 1: met",
        "int8: the order measured, 1 x 4 < 4 x 1, is predicted: 0, wanted 1: MISSED",
    ]


def trains(comm, folder):
    names = ("ALONE", "AFTER", "DURING")
    assert all(getattr(grid, name) == getattr(grid_ranks, name) for name in names)
    job = Job("overlap", 8, 8, 16, ROUNDS, 2, schedules=("1f1b", "zb_h1"))
    for seconds, report, sent in overlap(comm, job).values():
        assert list(seconds) == [grid.ALONE, grid.AFTER, grid.DURING]
        assert all(len(each) == ROUNDS and min(each) > 0 for each in seconds.values())
        assert report == "during the step: 8 of 8 gradients", report
        assert sent == 0, "all ranks are on one host"
    files = tuple(f"{folder}/{comm.rank}-{n}.json" for n in (4, 16))
    job = job._replace(exchange_dtypes=("fp32",), sizes=(4, 16), files=files, busy=0.1)
    make_profiles(comm, job)
    found = plans(comm, job)
    assert [plan.name for plan in found["plans"]] == [
        "4 x 1, fp32",
        "2 x 2, fp32",
        "1 x 4, fp32",
    ]
    for plan in found["plans"]:
        assert plan.predicted > 0
        assert len(plan.seconds) == ROUNDS


@pytest.mark.matrix
def test_all_ways_train(tmp_path):
    assert_on_ranks(4, trains, str(tmp_path))
