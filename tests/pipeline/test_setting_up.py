"""What the start of a pipeline takes."""

import chainer.functions as F
import chainer.links as L
import pytest
from mpi4py import MPI

from divisible import Divisible, pop, stash
from pipeline import Pipeline, setting_up


class Counting(MPI.Intracomm):
    """Counts what ranks must all come for; so does what is duplicated from it."""

    n_gathers = 0

    def Iallgather(self, *arguments):
        Counting.n_gathers += 1
        return super().Iallgather(*arguments)


@pytest.fixture
def comm(monkeypatch):
    monkeypatch.setattr(Counting, "n_gathers", 0)
    comm = Counting(MPI.COMM_SELF)
    # Or it would not see what a pipeline does with its own.
    duplicated = comm.Dup()
    assert isinstance(duplicated, Counting)
    duplicated.Free()
    return comm


def test_a_start_takes_one_gather(comm):
    """Whatever there is to be agreed on."""
    layers = stash("a"), L.Linear(3, 3), L.Linear(3, 3), pop("a", F.add), L.Linear(3, 2)
    model = Divisible(*layers)
    model.tie("/1/W", "/2/W")
    stages = [model.divide(0, 2), model.divide(2, 5)]
    for options in ({"schedule": "interleaved"}, {"schedule": "auto", "seed": 3}):
        Counting.n_gathers = 0
        with Pipeline(stages, comm, n_microbatches=2, **options):
            assert Counting.n_gathers == 1


def test_a_refusal_takes_one_gather(comm, monkeypatch):
    said = []

    def all_gather(comm, value, timeout, *purpose):
        said.append(value)
        return gather(comm, value, timeout, *purpose)

    gather = setting_up.all_gather
    monkeypatch.setattr(setting_up, "all_gather", all_gather)
    with pytest.raises(ValueError, match="timeout must be positive, not 0"):
        Pipeline(Divisible(L.Linear(3, 2)), comm, n_microbatches=2, timeout=0)
    assert said == ["ValueError: timeout must be positive, not 0"]
    assert Counting.n_gathers == 1
