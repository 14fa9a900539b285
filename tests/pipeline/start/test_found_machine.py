"""The machine that ranks find."""

import numpy as np
import pytest
from mpi4py import MPI

from divisible.free_memory import Claim
from pipeline.start import found_machine
from pipeline.start.found_machine import (
    find_machine,
    network_of,
    relative_speeds,
    shared_memory,
)


def test_ranks_share_what_a_place_has_left():
    host, group = Claim("a host", 0, 8000), Claim("a group", 0, 1000)
    everyone = [{"h": host}, {"h": host, "g": group}, {}]
    assert shared_memory(everyone) == [3600.0, 900.0, np.inf]
    assert shared_memory([{}, {}]) is None
    # A place that is full has a byte, which is refused in words later.
    assert shared_memory([{"h": Claim("a host", 0, -5)}]) == [0.9]


def test_links():
    """One number where all are alike."""
    slow, fast = (1e-5, 0.4 + 1e-5), (2e-5, 0.04 + 2e-5)
    assert network_of([slow, slow]).bandwidth == pytest.approx(1e7, rel=0.1)
    network = network_of([slow, fast])
    assert network.bandwidth == [1e7, 1e8] and network.latency == [1e-5, 2e-5]
    assert network_of([]).bandwidth == np.inf


def test_speeds_are_relative_to_the_rank_that_measures():
    assert relative_speeds([0.02, 0.01, 0.05]) == [1.0, 2.0, 0.4]


def test_one_rank(monkeypatch):
    monkeypatch.setattr(found_machine, "_SECONDS", 0.0)
    limits = {"h": Claim("a host", 0, 1000)}
    monkeypatch.setattr(found_machine, "claims", lambda _: limits)
    machine = find_machine(MPI.COMM_SELF, 10)
    assert (machine.ranks, machine.memory, machine.speeds) == (1, 900.0, None)
