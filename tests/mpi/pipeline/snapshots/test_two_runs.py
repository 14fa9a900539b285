"""Several runs that save into one directory at the same time."""

import warnings

import chainer
import chainer.links as L
import pytest
from mpi4py import MPI

from divisible import Divisible
from pipeline import Pipeline, Snapshot, latest_snapshot, save_snapshot
from tests.support.mpiexec import assert_on_ranks


def save_together(comm, folder, n_rounds):
    """Each rank is a run of its own; the last one looks while the others save."""
    stage = Divisible(L.Linear(64, 64))
    optimizer = chainer.optimizers.SGD().setup(stage)
    pipe = Pipeline(stage, MPI.COMM_SELF, 1)
    # None is damaged, to whoever looks.
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "another run")

    def save(name, **options):
        save_snapshot(f"{folder}/{name}", pipe, optimizer, **options)

    save(f"best_{comm.rank}")
    if comm.rank == 0:
        save("best")
    for i in range(n_rounds):
        comm.Barrier()
        if comm.rank < comm.size - 1:
            save("best", values={"round": i})
            save(f"iter_{comm.size * i + comm.rank}", n_retains=1)
        else:
            for _ in range(3):
                assert latest_snapshot(folder, "best") is not None
        comm.Barrier()
        snapshot = Snapshot.open(latest_snapshot(folder, "best"))
        assert snapshot.path.name == "best" and snapshot.values == {"round": i}
        # Each removes what is older than its own.
        assert latest_snapshot(folder, "iter_*") is not None


@pytest.mark.parametrize("n_rounds", [10, pytest.param(500, marks=pytest.mark.matrix)])
def test_the_same_name_at_once(tmp_path, n_rounds):
    assert_on_ranks(3, save_together, str(tmp_path), n_rounds, timeout=300)
    kept = [path.name for path in tmp_path.glob("best*")]
    assert sorted(kept) == ["best", "best_0", "best_1", "best_2"]
