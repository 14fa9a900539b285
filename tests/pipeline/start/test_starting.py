"""What the start of a pipeline takes."""

import warnings

import chainer.functions as F
import chainer.links as L
import pytest
from mpi4py import MPI

from divisible import Divisible, pop, stash
from pipeline import DisagreementError, Pipeline
from pipeline.start import versions
from pipeline.start.versions import opened


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


@pytest.mark.parametrize(
    "variables, n_stages, message",
    [
        ({"SLURM_NTASKS": "2"}, 1, "SLURM_NTASKS=2, but MPI knows only this rank"),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, 1, "OMPI_COMM_WORLD_SIZE=3, but"),
        # One task of a job with more, as it was asked for.
        ({"PMI_SIZE": "1", "SLURM_NTASKS": "2"}, 1, None),
        ({}, 2, "cut into 2 stages, but this is the only rank: was mpiexec forgotten"),
        ({}, 1, None),
    ],
)
@pytest.mark.parametrize("is_meant", [False, True])
def test_a_rank_that_is_alone_says_so(
    variables, n_stages, message, is_meant, monkeypatch
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    model = Divisible(L.Linear(3, 3), L.Linear(3, 2))
    cuts = [0, 1, 2] if n_stages == 2 else [0, 2]
    stages = [model.divide(*ends) for ends in zip(cuts, cuts[1:])]
    comm = MPI.COMM_SELF if is_meant else MPI.COMM_WORLD
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Pipeline(
            stages,
            comm,
            n_microbatches=2,
            schedule="gpipe" if n_stages == 1 else "interleaved",
        ).close()
    texts = [str(warning.message) for warning in caught]
    if message is None or is_meant:
        assert texts == []
    else:
        (text,) = texts
        assert message in text


def test_a_part_of_a_model_asks_for_the_others():
    stage = Divisible(L.Linear(3, 3), L.Linear(3, 2)).divide(0, 1)
    with pytest.raises(DisagreementError, match="the only one: was mpiexec forgotten"):
        Pipeline(stage, MPI.COMM_WORLD, n_microbatches=2)


def test_a_refusal_takes_one_gather(comm, monkeypatch):
    said = []

    def all_gather(comm, value, timeout, *purpose):
        said.append(value)
        return gather(comm, value, timeout, *purpose)

    gather = versions.all_gather
    monkeypatch.setattr(versions, "all_gather", all_gather)
    with pytest.raises(ValueError, match="timeout must be positive, not 0"):
        Pipeline(Divisible(L.Linear(3, 2)), comm, n_microbatches=2, timeout=0)
    refusal, _ = opened(said)[0]
    assert refusal == "ValueError: timeout must be positive, not 0"
    assert Counting.n_gathers == 1
