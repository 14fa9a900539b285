"""NETtalk trained to the paper's criterion."""

import sys

import numpy as np
import pytest

from benchmarks.common.results import Result
from benchmarks.heterogeneous import nettalk
from benchmarks.heterogeneous.learning import Criterion, Learned, learn
from benchmarks.heterogeneous.points import Point
from benchmarks.heterogeneous.training import samples
from heterogeneous.units import initial
from tests.support.mpiexec import assert_on_ranks

POINT = Point("B", 3, factor=1, every=5, with_ours=True)
EPSILON = 3 / 1024


def printed_errors(x, t, n):
    """Equations (1) to (6) in NumPy, with sums over all samples; errors per sample."""
    n_in, m, l, s = POINT.shape  # noqa: E741
    weights = initial(0, (0, m), n_in, m, l, np.dtype(np.float32))
    W, V = (weights[name].astype(np.float64) for name in "WV")
    errors = []
    for _ in range(n):
        f = 1 / (1 + np.exp(-W @ x.T))
        h = 1 / (1 + np.exp(-V @ f))
        errors.append(((h - t.T) ** 2).sum() / 2 / s)
        delta_2 = (h - t.T) * h * (1 - h)
        delta_1 = f * (1 - f) * (V.T @ delta_2)
        V -= EPSILON * delta_2 @ f.T
        W -= EPSILON * delta_1 @ x
    return errors


def trainings(comm):
    x, t = samples(POINT.shape)
    errors = printed_errors(x, t, 12)
    # Between the last two errors.
    criterion = Criterion((errors[-1] + errors[-2]) / 2, 100, EPSILON * len(x), 5)
    found = learn(comm, POINT, criterion, x, t)
    assert list(found["ways"]) == list(POINT.ways)
    assert len(found["alone"]) == 3 and min(found["alone"]) > 0
    for name, way in found["ways"].items():
        assert way.iterations == 12
        assert way.error == pytest.approx(errors[-1], rel=1e-4)
        assert way.curve == [
            (1, pytest.approx(errors[0])),
            (10, pytest.approx(errors[9])),
        ]
        assert way.seconds > 0 and 0 <= way.right <= 1
        assert (way.moved is None) != ("DRPM" in name)
    assert found["ways"]["DRPM, unknown"].moved[0] >= 1


@pytest.mark.matrix
def test_all_ways_follow_the_papers_equations():
    assert_on_ranks(3, trainings)


def no_success(comm):
    x, t = samples(POINT.shape)
    found = learn(comm, POINT, Criterion(1e-6, 3, 1.0, 5), x, t)
    assert {way.iterations for way in found["ways"].values()} == {3}


@pytest.mark.matrix
def test_a_training_ends_without_success():
    assert_on_ranks(3, no_success)


def found(iterations):
    curve = [[1, 3.0], [10, 1.5]]
    return {
        "alone": [0.02, 0.04],
        "ways": {
            "SRPM": [*Learned(1000, 0.0999, 20.0, 0.875, curve, None)],
            "DRPM, given": [*Learned(iterations, 0.1, 16.0, 0.875, curve, (1, 2))],
        },
    }


@pytest.mark.parametrize(
    ("iterations", "verdict"), [(1001, "0.10% at most: the same"), (1100, "NOT THE")]
)
def test_the_table(tmp_path, iterations, verdict):
    result = Result("", tmp_path / "table.txt")
    nettalk.write_table(result, "2 hosts", found(iterations))
    nettalk.write_summary(result, [found(iterations)])
    result.save()
    lines = (tmp_path / "table.txt").read_text().splitlines()
    assert lines[3].split()[:6] == ["SRPM", "1000", "0.0999", "87.5%", "20.0", "0.667"]
    assert lines[4].endswith("1, 2")
    assert "3.000 at 1, 1.500 at 10" in lines[6] and verdict in lines[7]


@pytest.mark.parametrize(
    ("words", "hosts", "threshold"),
    [
        ([], [4], 0.1),
        (["--quick", "--hosts", "2", "8"], [2, 8], 0.4),
        (["--threshold", "0.2"], [4], 0.2),
    ],
)
def test_the_command_line(monkeypatch, words, hosts, threshold):
    monkeypatch.setattr(sys, "argv", ["nettalk", *words])
    arguments = nettalk.parse()
    assert (arguments.hosts, arguments.threshold) == (hosts, threshold)
    # The paper's R and L, in its ratio.
    assert arguments.every / arguments.last == 20 / 6
