"""What hosts do for the paper's figures, on ranks of this machine."""

import dataclasses
import time

import pytest

import chainer_kernels
from benchmarks.paper_tables import durations, timer, work
from benchmarks.paper_tables.points import FIG4, OURS, Point, to_json
from benchmarks.paper_tables.samples import read
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks

#: Hosts.
N = 3
CUTS = {"1f1b": [0, 20, 41, 63], FIG4: [0, 20, 41, 63], "zb_h1": [0, 30, 63]}


def points(kernels):
    provider = {"on": "blas", "off": "numpy"}[kernels]
    options = {"kernels": kernels, "provider": provider, "update": True}
    whole = Point("mlp", 16, 24, N, 4, **options)
    printed = dataclasses.replace(whole, schedule=FIG4)
    # Ours may leave a host without a stage.
    ours = Point("mlp", 16, 24, N, 2, cut=OURS, schedule="zb_h1", **options)
    alone = Point("mlp", 16, 24, N, 1, **options)
    return [whole.serial, whole, printed, ours, alone]


def measure(comm, file, kernels, quick):
    todo = [
        {
            "point": to_json(point),
            "round": number,
            "cuts": CUTS.get(point.schedule, [0, 63]),
            "done": 1.0,
            "left": 0.0,
        }
        for number in (0, 1)
        for point in points(kernels)
    ]
    job = {"todo": todo, "file": file, "quick": quick, "begun": time.time()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timer, "PAUSE", 0.002)
        patch.setattr(durations, "MANY", 4)
        work.measure_steps(comm, {**job, "share": 0.5})
    # Other tests run on these ranks.
    chainer_kernels.enable()


@pytest.mark.parametrize(
    "kernels, quick", [("on", True), *matrix(("off", True), ("on", False))]
)
def test_hosts_time_steps(kernels, quick, tmp_path):
    file = tmp_path / "samples.jsonl"
    assert_on_ranks(N, measure, str(file), kernels, quick, timeout=120)
    found = read(file)
    assert list(found) == points(kernels)
    for point, samples in found.items():
        assert [sample.round for sample in samples] == [0, 1]
        for sample in samples:
            assert sample.seconds > 0 and sample.pages >= 0 and sample.share == 0.5
            assert sample.cuts == CUTS.get(point.schedule, [0, 63])
            assert (sample.library == "NumPy") == (kernels == "off")
