"""What hosts do for the paper's figures, on ranks of this machine."""

from pathlib import Path

from benchmarks.paper_tables import work
from benchmarks.paper_tables.points import OURS, Point, to_json
from benchmarks.paper_tables.samples import read
from tests.support.mpiexec import assert_on_ranks

#: Hosts.
N = 3
CUTS = {"1f1b": [0, 20, 41, 63], "zb_h1": [0, 30, 63]}


def points():
    whole = Point("mlp", 16, 24, N, 4)
    # Ours may leave a host without a stage.
    ours = Point("mlp", 16, 24, N, 2, cut=OURS, schedule="zb_h1")
    alone = Point("mlp", 16, 24, N, 1)
    return [whole.serial, whole, ours, alone]


def measure(comm, file):
    work.PAUSE, work.MANY = 0.002, 4
    todo = [
        {
            "point": to_json(point),
            "round": 0,
            "cuts": CUTS.get(point.schedule, [0, 63]),
        }
        for point in points()
    ]
    work.Steps(comm, Path(file)).measure(todo)


def test_hosts_time_steps(tmp_path):
    file = tmp_path / "samples.jsonl"
    assert_on_ranks(N, measure, str(file), timeout=120)
    found = read(file)
    assert list(found) == points()
    for point, (sample,) in found.items():
        assert sample.seconds > 0 and sample.pages >= 0 and sample.round == 0
        assert sample.cuts == CUTS.get(point.schedule, [0, 63])
