"""Measurements that the hypervisor may disturb."""

import os
import time

import pytest

from benchmarks.common import results


class Alone:
    """A communicator of one rank."""

    def bcast(self, value):
        return value


@pytest.mark.parametrize(
    "parts, tries",
    [([0.01], 1), ([0.2, 0.01], 2), ([0.2, 0.3, 0.4, 0.5], 3)],
    ids=["quiet", "quiet at last", "never quiet"],
)
def test_what_was_disturbed_is_measured_again(monkeypatch, parts, tries):
    now, stolen, done = [0.0], [0.0], []

    def measure():
        # Longer than the patience in two tries.
        now[0] += 70.0
        stolen[0] += 70.0 * os.cpu_count() * parts[len(done)]
        done.append(parts[len(done)])
        return len(done)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(results, "stolen_seconds", lambda: stolen[0])
    found, part = results.undisturbed(Alone(), measure)
    assert found == len(done) == tries
    assert part == pytest.approx(parts[tries - 1])
    # Without patience the first try counts.
    done.clear()
    assert results.undisturbed(Alone(), measure, patient=False)[0] == 1
    assert done == parts[:1]


def test_the_system_says_how_much_was_stolen():
    first = results.stolen_seconds()
    assert 0.0 <= first <= results.stolen_seconds() < 1e9
