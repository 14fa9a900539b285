"""What hosts do for the paper's tables, on ranks of this machine."""

import sys

from tests.mpiexec import ROOT, assert_on_ranks

#: Hosts.
N = 3
CUTS = {"1f1b": [0, 20, 41, 63], "zb_h1": [0, 30, 63]}


def points():
    from paper_tables.points import OURS, Point

    whole = Point("mlp", 16, 24, N, 4)
    # Ours may leave a host without a stage.
    ours = Point("mlp", 16, 24, N, 2, cut=OURS, schedule="zb_h1")
    alone = Point("mlp", 16, 24, N, 1)
    return [whole.serial, whole, ours, alone]


def measure(comm, file):
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from pathlib import Path

    import _hosts
    import _probe

    _hosts.PAUSE, _probe.DELAY_SECONDS = 0.002, 0.02
    from paper_tables import probes, work
    from paper_tables.points import to_json

    probes.LEAST, probes.MOST = 0.05, 0.1
    work.SHORT, work.MANY, work.FEW = 10.0, 6, 2
    todo = [
        {
            "point": to_json(point),
            "round": 0,
            "cuts": CUTS.get(point.schedule, [0, 63]),
            "bandwidth": 1e9,
            "transfer": [1e-6] * (N - 1 if point.schedule == "1f1b" else 1),
        }
        for point in points()
    ]
    work.Steps(comm, Path(file)).measure(todo)


def test_hosts_time_steps_and_probe_before_them(tmp_path):
    from paper_tables.samples import read

    file = tmp_path / "samples.jsonl"
    assert_on_ranks(N, measure, str(file), timeout=120)
    found = read(file)
    assert list(found) == points()
    (serial,), *samples = found.values()
    assert serial.seconds > 0 and serial.probes == 0 and serial.busy == []
    for point, (sample,) in zip(points()[1:], samples):
        n_stages = len(CUTS[point.schedule]) - 1
        assert sample.seconds > 0 and sample.cuts == CUTS[point.schedule]
        assert len(sample.busy) == len(sample.spread) == n_stages
        assert len(sample.alone) == n_stages
        assert min(sample.busy) > 0 and min(sample.alone) > 0
        # Six steps, two after each.
        assert sample.probes == 3
        assert len(sample.delay) == len(sample.idle_delay) == n_stages - 1
        # With one microbatch every sender waits.
        assert (sample.delay == sample.idle_delay) == (point.microbatches == 1)
        shape = [len(each) for each in sample.forward]
        assert shape == [point.microbatches] * n_stages
