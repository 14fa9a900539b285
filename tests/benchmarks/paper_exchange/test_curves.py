"""Curves of small runs, in this process and in others, and their file."""

import pytest

from benchmarks.paper_exchange.curves import Origin, begin, read, train, train_all
from benchmarks.paper_exchange.experiments import CAFFENET, FLOAT, FP8, Job, Scale

#: 40 steps, of which the first 20 are in float32.
SMALLEST = Scale(part=0.01, common=20, seeds=1)


@pytest.mark.matrix
def test_a_curve_of_each_kind():
    base = train(Job(CAFFENET, FLOAT, 0), SMALLEST)
    assert base.steps == [40] and base.gain == 1 and not base.quantiles
    found = train(Job(CAFFENET, FP8, 0), SMALLEST)
    assert 0.4 < found.gain < 0.95
    assert len(found.quantiles) == 16 and found.quantile_steps == [20]
    assert found.best == found.accuracies[0] > 10
    assert found.steps_to(found.best) == 40 and found.steps_to(101) is None


@pytest.mark.matrix
def test_curves_come_back_from_their_file(tmp_path):
    file, origin = tmp_path / "curves", Origin("command", "machine", SMALLEST)
    begin(file, origin)
    assert read(file) == (origin, {})
    todo = [Job(CAFFENET, FLOAT, 1), Job(CAFFENET, FLOAT, 0)]
    trained = list(train_all(todo, SMALLEST, file, 2))
    assert sorted(curve.job for curve in trained) == sorted(todo)
    found, curves = read(file)
    assert found == origin
    # Seeds are in order, and numbers are those of this process.
    first, second = curves[CAFFENET, FLOAT]
    assert (first.job.seed, second.job.seed) == (0, 1)
    assert first == train(Job(CAFFENET, FLOAT, 0), SMALLEST)


def test_a_run_that_was_killed_while_it_wrote_goes_on(tmp_path):
    file, origin = tmp_path / "curves", Origin("command", "machine", SMALLEST)
    begin(file, origin)
    with file.open("a") as lines:
        lines.write('{"job": ["CaffeNet", "flo')
    assert read(file) == (origin, {})
    todo = [Job(CAFFENET, FLOAT, 0)]
    list(train_all(todo, SMALLEST, file, 1))
    assert [curve.job for curve in read(file)[1][CAFFENET, FLOAT]] == todo
