"""What the benchmark of rebalancing compares."""

from benchmarks.rebalancing import stages
from benchmarks.rebalancing.changes import PHASE, SETTLED, n_iterations
from benchmarks.rebalancing.stages import WAYS, are_equal
from tests.support.mpiexec import assert_on_ranks


def test_a_run_has_time_to_settle_before_the_host_recovers():
    slow, fast, end = n_iterations(20)
    assert slow % 20 == 0
    assert slow + SETTLED * 20 < fast < end
    assert fast - slow == end - fast == PHASE * 20


def test_runs_are_equal_bit_for_bit_or_not():
    one = {"losses": ["0x1p0"], "digest": "ab"}
    assert are_equal({way: [one, dict(one)] for way in WAYS})
    other = {**one, "digest": "ac"}
    assert not are_equal({"kept": [one], "rebalanced": [other]})
    other = {**one, "losses": ["0x1.1p0"]}
    assert not are_equal({"kept": [one], "rebalanced": [one, other]})


JOB = {"layers": 8, "width": 8, "batch": 8, "microbatches": 2, "every": 2}


def works(comm, folder):
    # Without hosts, on ranks that stay as they are.
    found = stages.work({**JOB, "changes": 1, "folder": folder})
    assert are_equal(found)
    for way in WAYS:
        (each,) = found[way]
        assert each["seconds"] > 0
        assert len(each["losses"]) == n_iterations(JOB["every"])[-1]
        assert bool(each["watching"]) == (way == "rebalanced")


def test_it_trains_in_each_way(tmp_path):
    # All that there are: it runs on the world.
    assert_on_ranks(4, works, str(tmp_path))
    names = {path.name for path in tmp_path.iterdir()}
    assert {f"{what}{run}" for what in ("slow", "fast") for run in range(3)} <= names
