"""Copies in memory outlive hosts, on any number of ranks that go on."""

import os
import shutil
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from mpi4py import MPI

from divisible.free_memory import Claim
from pipeline import SnapshotError
from pipeline.copies.room import held_bytes
from tests.mpi.pipeline.snapshots.test_replicas import (
    FED_BACK,
    losses_of,
    run_on,
    state_of,
)
from tests.support.fault_injection import folder_in_memory
from tests.support.mpiexec import assert_on_ranks
from tests.support.snapshot_training import Run

N_STEPS = 3


def host(folder, number):
    """Returns the memory of an emulated host."""
    path = Path(folder, f"host{number}")
    path.mkdir(parents=True, exist_ok=True)
    return path


def train(comm, folder, layout, ranks_per_host=1):
    """Trains, with a copy and a snapshot after each minibatch; the copies stay."""
    run = Run(comm, layout)
    copies = run.pipe.copies
    copies.open("a run", host(folder / "base", comm.rank // ranks_per_host))
    for step in range(1, N_STEPS + 1):
        run.step(step)
        copies.save(run.optimizers, values={"step": step})
        run.save(folder / "disk" / f"s_{step}")
        has_partner = copies._partners[comm.rank] is not None
        here = {path.name for path in copies.folder.rglob("stage-*.npz")}
        assert len(here) >= 1 + (has_partner and step > 1)
    copies.wait()
    assert len(list(copies.folder.glob("copy_*"))) == 2
    copies.keep()


def go_on(comm, folder, layout, hosts, expected, *, said=None):
    """Starts the run again on some hosts, and compares it with one from a snapshot.

    Args:
        comm: All ranks; the first ones go on.
        folder: Folder of the hosts and of the snapshots.
        layout: Layout of the ranks that go on.
        hosts: Numbers of the hosts that go on, one for each rank.
        expected: Number of minibatches of the state that they find, or ``None``.
        said: Text of a warning, if there must be one.
    """
    some = comm.Split(0 if comm.rank < len(hosts) else MPI.UNDEFINED, comm.rank)
    if comm.rank < len(hosts):
        run = Run(some, layout)
        run.pipe.copies.open("a run", host(folder / "trial", hosts[comm.rank]))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = run.pipe.copies.load(run.optimizers)
        texts = [str(each.message) for each in caught]
        assert expected == (None if found is None else found.values["step"]), texts
        if comm.rank == 0:
            assert any("passed over" in each for each in texts) == (said is not None)
            assert said is None or any(said in each for each in texts), texts
        if found is not None:
            check_like_snapshot(run, some, folder / "disk" / f"s_{expected}", layout)
            # It copies to its partners of now, and needs the old copies no more.
            for step in range(3):
                run.pipe.copies.save(run.optimizers, values={"step": expected + step})
        run.pipe.close()
        some.Barrier()
        # Hosts that are not used any more may have something.
        assert os.listdir(host(folder / "trial", hosts[comm.rank])) == []
        some.Free()
    comm.Barrier()


def check_like_snapshot(run, comm, path, layout):
    other = Run(comm, layout)
    other.load(path)
    for _ in range(2):
        mine, theirs = run.arrays(), other.arrays()
        assert mine.keys() == theirs.keys()
        assert all(np.array_equal(mine[key], theirs[key]) for key in mine)
        assert run.step(run.pipe.n_steps) == other.step(other.pipe.n_steps)
        assert run.pipe.n_steps == other.pipe.n_steps
    other.pipe.close()


def lose(comm, folder, *lost):
    """Gives the hosts back what they had at first; but some have lost everything."""
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(folder / "trial", ignore_errors=True)
        shutil.copytree(folder / "base", folder / "trial")
        for number in lost:
            shutil.rmtree(folder / "trial" / f"host{number}")
    comm.Barrier()


def lose_hosts(comm, folder):
    folder = Path(folder)
    train(comm, folder, "4")
    lose(comm, folder)
    go_on(comm, folder, "4", [0, 1, 2, 3], N_STEPS)
    # Ranks on other hosts than before, and fewer of them.
    for layout, hosts in (("interleaved", [3, 1]), ("1", [2])):
        lose(comm, folder)
        said = None if layout == "interleaved" else "on no host"
        expected = N_STEPS if layout == "interleaved" else None
        go_on(comm, folder, layout, hosts, expected, said=said)
    lose(comm, folder, 1)
    go_on(comm, folder, "4", [0, 1, 2, 3], N_STEPS)
    lose(comm, folder, 1)
    go_on(comm, folder, "3", [0, 2, 3], N_STEPS)
    # Not partners: each file is on one of the others.
    lose(comm, folder, 0, 2)
    go_on(comm, folder, "2", [1, 3], N_STEPS)
    # Partners.
    lose(comm, folder, 1, 2)
    go_on(comm, folder, "2", [0, 3], None, said="stage-1.npz is on no host")


def lose_files(comm, folder):
    """The newest copy has not reached the partner, or is damaged in one place."""
    folder = Path(folder)
    train(comm, folder, "3")
    newest = f"*/*/copy_{N_STEPS}-*/"
    lose(comm, folder, 0)
    if comm.rank == 0:
        for path in (folder / "trial" / "host1").glob(f"{newest}stage-0.npz"):
            path.rename(f"{path}.receiving")
    go_on(comm, folder, "2", [1, 2], N_STEPS - 1, said="stage-0.npz")

    lose(comm, folder)
    if comm.rank == 0:
        damage(folder / "trial" / "host0", f"{newest}stage-0.npz")
        damage(folder / "trial" / "host2", f"{newest}manifest.json")
    # The partner's are whole.
    go_on(comm, folder, "3", [0, 1, 2], N_STEPS, said="manifest.json")

    lose(comm, folder)
    if comm.rank == 0:
        for number in range(3):
            damage(folder / "trial" / f"host{number}", f"{newest}stage-0.npz", 2)
    go_on(comm, folder, "3", [0, 1, 2], N_STEPS - 1, said="damaged; ")


def damage(folder, pattern, most=1):
    paths = list(folder.glob(pattern))
    assert len(paths) <= most
    for path in paths:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


def share_hosts(comm, folder):
    """Two ranks on each host are partners of two on another."""
    folder = Path(folder)
    train(comm, folder, "4", ranks_per_host=2)
    lose(comm, folder, 0)
    go_on(comm, folder, "2", [1, 1], N_STEPS)
    lose(comm, folder, 1)
    go_on(comm, folder, "4", [0, 0, 1, 1], N_STEPS)


def share_one_host(comm, folder):
    folder = Path(folder)
    train(comm, folder, "3", ranks_per_host=3)
    lose(comm, folder)
    go_on(comm, folder, "2", [0, 0], N_STEPS)


def lose_replica(comm, folder):
    """Two replicas of two stages; what later replicas alone have is copied as well."""
    folder = Path(folder)
    _, pipe, optimizer, updater = run_on(comm, 2, FED_BACK)
    pipe.copies.open("a run", host(folder / "base", comm.rank))
    losses_of(updater, 2)
    pipe.copies.save(optimizer, state={"updater": updater})
    expected, state = losses_of(updater, 3), state_of(pipe)
    pipe.copies.keep()
    lose(comm, folder, 3)
    _, other, optimizer, updater = run_on(comm, 2, FED_BACK)
    other.copies.open("a run", host(folder / "trial", comm.rank))
    found = other.copies.load(optimizer, state={"updater": updater})
    assert any(name.startswith("replica-1") for name in found.files), found.files
    assert losses_of(updater, 3) == expected
    now = state_of(other)
    assert all(np.array_equal(now[key], state[key]) for key in state)
    other.close()


@pytest.mark.parametrize(
    ("n", "function"),
    [
        (4, lose_hosts),
        (3, lose_files),
        (4, share_hosts),
        (3, share_one_host),
        (4, lose_replica),
    ],
)
def test_lost(n, function):
    with folder_in_memory() as folder:
        assert_on_ranks(n, function, str(folder), timeout=120)


def take_memory(comm, folder):
    """Copies take the memory that was predicted, and are refused where it is full."""
    run = Run(comm, "3")
    copies = run.pipe.copies
    copies.open("a run", host(folder, comm.rank))
    for step in range(4):
        run.step(step)
        copies.save(run.optimizers)
    # The third copy is under way; its memory is taken.
    n_bytes = held_bytes(copies.folder)
    assert 0.8 * copies.n_bytes <= n_bytes <= copies.n_bytes + 20_000, n_bytes

    limit = Claim("the little machine", 0, n_bytes)
    rooms = {"little": limit} if comm.rank == 1 else {}
    before = sorted(os.listdir(copies.folder))
    state = {"big": Big(100_000)}
    words = "rank 1: .* left of the little machine"
    limited = mock.patch("pipeline.copies.room.room_in", lambda *_: rooms)
    with limited, pytest.raises(SnapshotError, match=words):
        copies.save(run.optimizers, state=state)
    # The one before is whole now; of the new one there is nothing.
    after = sorted(os.listdir(copies.folder))
    assert len(before) == len(after) + 1 == 4, (before, after)
    run.step(4)
    run.pipe.close()
    assert os.listdir(host(folder, comm.rank)) == []


class Big:
    """An object with a large state."""

    def __init__(self, n):
        self.array = np.zeros(n)

    def serialize(self, serializer):
        serializer("array", self.array)


def test_memory_is_as_predicted_and_bounded():
    with folder_in_memory() as folder:
        assert_on_ranks(3, take_memory, str(folder))
