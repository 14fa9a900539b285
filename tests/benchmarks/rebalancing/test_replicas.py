"""Two pipelines on unequal hosts, planned, run and disturbed."""

import pytest

from benchmarks.common.results import Result
from benchmarks.rebalancing import replicas
from benchmarks.rebalancing.changes import n_iterations
from benchmarks.rebalancing.replicas import WAYS, largest_difference, write_table
from tests.support.mpiexec import assert_on_ranks

JOB = {"layers": 6, "width": 8, "batch": 16, "microbatches": 2, "every": 2}


def test_losses_differ_relative_to_the_first_run():
    assert largest_difference([[4.0, 2.0], [4.0, 2.0], [5.0, 2.0]]) == 0.25
    assert largest_difference([[4.0]]) == 0


def run(before, slow, losses=(1.0, 0.5)):
    return {
        "before": before,
        "slow": slow,
        "losses": [*losses],
        "moves": 1,
        "cuts": [0, 2, 4],
        "shares": [0.75, 0.25],
    }


@pytest.mark.parametrize("loss, verdict", [(0.5, "met"), (0.6, "MISSED")])
def test_the_table_compares_with_equal_parts(tmp_path, loss, verdict):
    result = Result("", tmp_path / "table.txt")
    found = {
        "equal": [run(2.0, 4.0)],
        "planned": [run(1.0, 3.0)],
        "rebalanced": [run(1.0, 1.5, (1.0, loss))],
    }
    write_table(result, found)
    result.save()
    text = (tmp_path / "table.txt").read_text()
    assert "planned         1.000   2.00 (2.00..2.00)" in text
    assert "rebalanced      1.500   2.67 (2.67..2.67)" in text
    assert "with Rebalance 2.00 times the throughput of the plan alone" in text
    assert text.rstrip().endswith(verdict)


def works(comm, folder):
    # Without hosts, and for a moment only.
    replicas._SECONDS = 0.05
    answer = replicas.work({**JOB, "changes": 1, "folder": folder})
    assert len(answer["speeds"]) == comm.size
    assert answer["speeds"][0] == 1
    assert "2 replicas" in answer["plan"]
    found = answer["found"]
    *_, end = n_iterations(JOB["every"])
    for way in WAYS:
        (each,) = found[way]
        assert len(each["losses"]) == end
        assert each["before"] > 0
        assert each["slow"] > 0
    runs = [each["losses"] for runs in found.values() for each in runs]
    assert largest_difference(runs) < replicas.TOLERANCE


@pytest.mark.matrix
def test_it_plans_and_trains_in_each_way(tmp_path):
    assert_on_ranks(4, works, str(tmp_path))
    names = {path.name for path in tmp_path.iterdir()}
    assert {f"{what}{run}" for what in ("slow", "fast") for run in range(3)} <= names
