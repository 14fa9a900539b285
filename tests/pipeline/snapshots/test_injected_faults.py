"""Every call of the operating system fails once, in saves and in loads; one rank."""

import os

import pytest
from mpi4py import MPI

from tests.support import fault_injection
from tests.support.fault_injection import folder_in_memory, newest_tag
from tests.support.faulty_files import faulty, lose_unflushed
from tests.support.small_run import SmallRun


def one_of(n):
    return pytest.mark.parametrize(
        "every", [n, pytest.param(1, marks=pytest.mark.matrix)]
    )


def check(function, *args):
    with folder_in_memory() as folder:
        count = function(MPI.COMM_SELF, folder, *args)
    print(f"{function.__name__} on 1 rank: {count}")
    assert count.injected > 5 and not count.broken, str(count)


@one_of(59)
def test_saves(every):
    check(fault_injection.saves, every)


@one_of(31)
def test_loads(every):
    check(fault_injection.loads, every)


@one_of(97)
def test_resumptions(every):
    check(fault_injection.resumptions, every)


@pytest.mark.parametrize("n_places", [1, pytest.param(40, marks=pytest.mark.matrix)])
def test_damages(n_places):
    check(fault_injection.damages, n_places)


@pytest.mark.parametrize("made_before", [False, True])
def test_the_first_in_a_new_folder_outlives_it(made_before):
    """A loss of power; who saves has made the folder, or a trainer has."""
    run = SmallRun(MPI.COMM_SELF)
    with folder_in_memory() as folder:
        out = folder / "results" / "out"
        with faulty(folder) as files:
            if made_before:
                os.makedirs(out)
            run.save(out / "s_1", "first")
        lose_unflushed(files.calls)
        assert newest_tag(out) == "first"


@one_of(29)
def test_deaths(every):
    check(fault_injection.deaths, every)


def test_it_is_seen_that_nobody_dies(monkeypatch):
    monkeypatch.setattr("tests.support.faulty_files.die", lambda: None)
    with folder_in_memory() as folder:
        count = fault_injection.deaths(MPI.COMM_SELF, folder, 150)
    assert len(count.broken) == count.injected > 0
    assert all("nobody died" in each for each in count.broken)
