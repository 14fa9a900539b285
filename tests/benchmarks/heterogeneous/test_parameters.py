"""The paper's findings on the parameters of DRPM."""

import pytest

from benchmarks.heterogeneous import parameters
from benchmarks.heterogeneous.simulated import PRINTED


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(parameters, "ITERATIONS", 120)
    monkeypatch.setattr(parameters, "TRAININGS", 1)
    monkeypatch.setattr(parameters, "HOSTS", (4, 5))


def test_dynamic_mapping_is_better_than_a_mapping_that_is_kept():
    kept, moves = (PRINTED._replace(whole=0.0, line=line) for line in (0.0, 0.9))
    values = parameters.compare({"kept": kept, "moves": moves}, is_told=True)
    assert 0.5 < values[0] < values[1] < 1


def test_each_finding_has_its_settings():
    thresholds, last, every = parameters.findings()
    assert thresholds.here.startswith("0.4, 0.9: 0.")
    assert last.here.count("L = ") == every.here.count("R = ") == 3


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.90, 0.91, 0.92], True),
        ([0.93, 0.91, 0.92], None),
        ([0.70, 0.80, 0.92], None),
        ([0.70, 0.92, 0.80], False),
    ],
)
def test_the_last_is_the_best_of_similar_ones(monkeypatch, values, verdict):
    monkeypatch.setattr(parameters, "compare", lambda rows, is_told=None: values)
    thresholds, last, _ = parameters.findings()
    assert thresholds.is_reproduced is last.is_reproduced is verdict


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.88, 0.91, 0.92], True),
        ([0.93, 0.91, 0.92], None),
        ([0.70, 0.80, 0.92], None),
        ([0.93, 0.92, 0.80], False),
    ],
)
def test_frequent_checks_are_worse_and_others_alike(monkeypatch, values, verdict):
    monkeypatch.setattr(parameters, "compare", lambda rows, is_told=None: values)
    assert parameters.findings()[-1].is_reproduced is verdict
