"""Snapshots of runs on several ranks: any cut to any other, failing disks, disorder."""

import json
import os
import resource
import subprocess
from pathlib import Path

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer.iterators import SerialIterator, ShuffleOrderSampler
from mpi4py import MPI

from divisible import Divisible, Plan
from divisible.schedules import Schedule, one_f_one_b
from pipeline import (
    Pipeline,
    Snapshot,
    SnapshotError,
    latest_snapshot,
    load_snapshot,
    save_snapshot,
    wait_for_snapshot,
)
from tests.support.equivalence import assert_close
from tests.support.mpiexec import assert_on_ranks, refused_on_ranks
from tests.support.snapshot_training import LAYOUTS, Run, adam, names_in, saved_arrays


def repartition_matrix(comm, folder, saved_on, loaded_on):
    """Saves on each of some layouts, and loads each of those on each of others."""
    groups = {}
    for name in {**dict.fromkeys(saved_on), **dict.fromkeys(loaded_on)}:
        takes_part = comm.rank < LAYOUTS[name][0]
        groups[name] = comm.Split(0 if takes_part else MPI.UNDEFINED)
    expected = {}
    for name in saved_on:
        if groups[name] == MPI.COMM_NULL:
            continue
        run = Run(groups[name], name)
        for i in range(3):
            run.step(i)
        run.save(f"{folder}/{name}")
        losses = [run.step(i) for i in (3, 4)]
        expected[name] = losses, run.arrays()
    expected = {k: v for theirs in comm.allgather(expected) for k, v in theirs.items()}
    for saved in saved_on:
        arrays = saved_arrays(f"{folder}/{saved}")
        for name in loaded_on:
            if groups[name] == MPI.COMM_NULL:
                continue
            # Other weights and an optimizer that has run, to see that both go.
            run = Run(groups[name], name, seed=4)
            run.step(0)
            run.load(f"{folder}/{saved}")
            assert run.pipe.n_steps == 3
            mine = run.arrays()
            assert mine and all(np.array_equal(mine[k], arrays[k]) for k in mine)
            losses, after = expected[saved]
            assert run.step(3) == losses[0]
            assert_close(run.step(4), losses[1])
            # Gradients of tied parameters are added up in another order elsewhere.
            for key, array in run.arrays().items():
                if name == saved and key in after:
                    np.testing.assert_array_equal(array, after[key], key)
                elif key in after:
                    assert_close(array, after[key], 1e-3, 1e-5, key)


def test_any_cut_to_any_other(tmp_path):
    saved_on, loaded_on = ["1", "2", "3", "interleaved"], ["1", "2", "3"]
    assert_on_ranks(3, repartition_matrix, str(tmp_path), saved_on, loaded_on)
    check_manifest(tmp_path / "2")


def check_manifest(path):
    snapshot = Snapshot.open(path)
    assert list(snapshot.layer_ranges) == [(0, 4), (4, 8)]
    assert snapshot.n_ranks == 2 and snapshot.n_steps == 3
    assert snapshot.schedule["name"] == "1f1b" and "1F0" in snapshot.schedule["text"]
    assert snapshot.versions["chainer"] == chainer.__version__
    assert set(snapshot.files) == {"common.npz", "stage-0.npz", "stage-1.npz"}
    content = json.loads((path / "manifest.json").read_text())
    content["n_steps"] = 2
    (path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(SnapshotError, match=r"manifest.json was changed"):
        Snapshot.open(path)


def step_all(pipe, optimizers, i):
    rng = np.random.RandomState(i)
    x, t = rng.rand(6, 6).astype("f"), rng.randint(0, 4, 6).astype("i")
    loss = pipe.step(x, t)["loss"]
    for optimizer in optimizers:
        optimizer.update()
    return loss


def loss_with_parameters(comm, folder, ranks):
    """Saves on the first of some numbers of ranks, and goes on with each of them."""
    losses = {}
    for n in ranks:
        group = comm.Split(0 if comm.rank < n else MPI.UNDEFINED)
        if group == MPI.COMM_NULL:
            continue
        np.random.seed(len(losses))
        model = Divisible(*(L.Linear(6, 6) for _ in range(4)))
        loss = L.Classifier(L.Linear(6, 4))
        stage = model.divide(*Plan.uniform(4, n).range(comm.rank))
        pipe = Pipeline(
            stage, group, n_microbatches=2, lossfun=loss, accfun=None, timeout=20
        )
        # As a script does, on every rank; only the last one's loss is trained.
        optimizers = [chainer.optimizers.Adam().setup(link) for link in (stage, loss)]

        if not losses:
            for i in range(2):
                step_all(pipe, optimizers, i)
            save_snapshot(f"{folder}/1", pipe, optimizers)
        else:
            load_snapshot(f"{folder}/1", pipe, optimizers)
        losses[n] = [step_all(pipe, optimizers, i) for i in (2, 3)]
        # Where the loss is not, its copy stays what it was.
        assert all(np.isfinite(param.array).all() for param in loss.params())
    for found in losses.values():
        assert_close(found, losses[ranks[0]])


def test_a_loss_with_parameters(tmp_path):
    assert_on_ranks(3, loss_with_parameters, str(tmp_path), [3, 2, 1])


def one_optimizer_for_several_stages(comm, folder):
    """The paths of its target are not those of the undivided model."""

    def make(comm, layout, seed):
        run = Run(comm, layout, seed)
        run.optimizers = [adam().setup(chainer.ChainList(*run.stages))]
        return run

    run = make(comm, "interleaved", 3)
    for i in range(3):
        run.step(i)
    run.save(f"{folder}/1")
    losses = [run.step(i) for i in (3, 4)]
    alone = comm.Split(0 if comm.rank == 0 else MPI.UNDEFINED)
    for group, layout in ((comm, "interleaved"), (comm, "2"), (alone, "1")):
        if group == MPI.COMM_NULL:
            continue
        run = make(group, layout, 4)
        run.step(0)
        run.load(f"{folder}/1")
        assert run.step(3) == losses[0]
        assert_close(run.step(4), losses[1])


def test_one_optimizer_for_several_stages(tmp_path):
    assert_on_ranks(2, one_optimizer_for_several_stages, str(tmp_path))


def not_a_number(comm, folder):
    """A NaN differs from every other one, but the ranks see the same snapshot."""
    run = Run(comm, "2")
    for name in ("1", "2"):
        run.save(f"{folder}/{name}", values={"loss": float("nan")})
    assert np.isnan(run.load(f"{folder}/1").values["loss"])
    with pytest.raises(SnapshotError, match="ranks 0 and 1 see different ones there"):
        run.load(f"{folder}/{comm.rank + 1}")


def test_values_that_are_not_a_number(tmp_path):
    assert_on_ranks(2, not_a_number, str(tmp_path))


@pytest.mark.matrix
def test_all_cuts_to_all_others(tmp_path):
    names = list(LAYOUTS)
    assert_on_ranks(4, repartition_matrix, str(tmp_path), names, names, timeout=300)


def fail_to_save(comm, folder):
    """On one rank the disk is full, or the directory cannot be written to."""
    run = Run(comm, "3")
    run.step(0)
    run.save(f"{folder}/1")
    weights = run.arrays()
    run.step(1)
    Path(folder, "file").touch()
    for name, rank, limit, expected, background in [
        ("2", 0, 2048, "File too large", False),
        ("2", 2, 2048, "File too large", False),
        ("2", 0, 2048, "File too large", True),
        ("2", 2, 2048, "File too large", True),
        ("file/within/2", 0, None, "Not a directory", True),
    ]:
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit is not None and comm.rank == rank:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, unlimited[1]))
        with pytest.raises(SnapshotError) as caught:
            run.save(f"{folder}/{name}", background=background)
            wait_for_snapshot(run.pipe)
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        messages = comm.allgather(str(caught.value))
        assert len(set(messages)) == 1
        assert f"rank {rank}: " in messages[0] and expected in messages[0], messages
        # Rank 0 removes what was written before it raises, so it is gone by now.
        assert names_in(folder) == ["1", "file"]
        comm.Barrier()

    # Training goes on, the next one is saved, and the previous one still loads.
    run.step(2)
    run.save(f"{folder}/3")
    assert latest_snapshot(folder) == Path(folder, "3")
    run.load(f"{folder}/1")
    after = run.arrays()
    assert all(np.array_equal(after[key], weights[key]) for key in weights)


def test_failing_to_save(tmp_path):
    assert_on_ranks(3, fail_to_save, str(tmp_path))


def fill_disk(comm, folder):
    """The file system itself is full."""
    run = Run(comm, "2")
    run.save(f"{folder}/1")
    if comm.rank == 0:
        with open(f"{folder}/filler", "wb", 0) as file, pytest.raises(OSError):
            while True:
                file.write(bytes(4096))
    comm.Barrier()
    for background in (False, True):
        with pytest.raises(SnapshotError, match="No space left on device"):
            run.save(f"{folder}/2", background=background)
            wait_for_snapshot(run.pipe)
        comm.Barrier()
    if comm.rank == 0:
        os.unlink(f"{folder}/filler")
    run.load(f"{folder}/1")
    run.step(0)
    run.save(f"{folder}/2", background=True)
    wait_for_snapshot(run.pipe)


def test_full_disk(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system takes root")
    try:
        assert_on_ranks(2, fill_disk, str(tmp_path))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def refuse_to_load(comm, folder):
    """All ranks refuse a file that one finds wrong, and name it."""
    run = Run(comm, "2")
    run.step(0)
    run.save(f"{folder}/1")
    before = run.arrays()
    comm.Barrier()
    damaged = Path(folder, "1", "stage-1.npz")
    if comm.rank == 0:
        whole = damaged.read_bytes()
        position = whole.index(b"optimizer")
        damaged.write_bytes(whole[:position] + b"O" + whole[position + 1 :])
    comm.Barrier()
    run.step(1)
    with pytest.raises(SnapshotError, match=r"rank 1: .*stage-1.npz was changed"):
        run.load(f"{folder}/1")
    comm.Barrier()
    if comm.rank == 0:
        damaged.write_bytes(whole[:-1])
        # The one that was being written when a rank was killed is no candidate.
        os.rename(f"{folder}/1", f"{folder}/1.partial")
        assert latest_snapshot(folder) is None
        os.rename(f"{folder}/1.partial", f"{folder}/1")
        with pytest.warns(UserWarning, match="stage-1.npz has"):
            assert latest_snapshot(folder) is None
    comm.Barrier()
    with pytest.raises(SnapshotError, match=r"stage-1.npz has \d+ bytes, not \d+"):
        run.load(f"{folder}/1")
    comm.Barrier()
    if comm.rank == 0:
        damaged.write_bytes(whole)
    comm.Barrier()
    run.load(f"{folder}/1")
    after = run.arrays()
    assert all(np.array_equal(after[key], before[key]) for key in before)


def test_damaged_files_are_refused(tmp_path):
    assert_on_ranks(2, refuse_to_load, str(tmp_path))


def save_while_others_step(comm, folder):
    run = Run(comm, "2")
    if comm.rank == 0:
        run.save(f"{folder}/1")
    else:
        run.step(0)


def test_ranks_that_do_not_save_are_told(tmp_path):
    output = refused_on_ranks(2, save_while_others_step, str(tmp_path)).output
    assert "some ranks call step and others save" in output


def random_states(comm, folder):
    """Each rank's generators; on another number of ranks those of the first stage."""
    run = Run(comm, "3")
    np.random.seed(comm.rank)
    mine = np.random.RandomState(10 + comm.rank)
    run.save(f"{folder}/1", {"mine": mine})
    expected = [np.random.random(), mine.random_sample()]
    run.load(f"{folder}/1", {"mine": mine})
    assert [np.random.random(), mine.random_sample()] == expected
    half = comm.Split(0 if comm.rank < 2 else MPI.UNDEFINED)
    expected = comm.bcast(expected)
    if half != MPI.COMM_NULL:
        Run(half, "2").load(f"{folder}/1", {"mine": mine})
        assert [np.random.random(), mine.random_sample()] == expected


def test_random_states(tmp_path):
    assert_on_ranks(3, random_states, str(tmp_path))


def first_stage_elsewhere(comm, folder):
    """The iterator is on the last rank, which has the first stage."""
    rows = [list(row) for row in one_f_one_b(2, 2).actions]
    schedule = Schedule(rows[::-1], stage_ranks=[1, 0])
    model = Divisible(L.Linear(4, 4), L.Linear(4, 4))
    stage = model.divide(*Plan.uniform(2, 2).range(1 - comm.rank))
    optimizer = chainer.optimizers.SGD().setup(stage)
    pipe = Pipeline(stage, comm, schedule=schedule, timeout=20)
    state = {}
    if pipe.is_first:
        order = ShuffleOrderSampler(np.random.RandomState(3))
        state["iterator"] = SerialIterator(range(9), 4, order_sampler=order)
        state["iterator"].next()
    save_snapshot(f"{folder}/1", pipe, optimizer, state=state)
    if not pipe.is_first:
        load_snapshot(f"{folder}/1", pipe, optimizer, state=state)
        return
    expected = [state["iterator"].next() for _ in range(5)]
    load_snapshot(f"{folder}/1", pipe, optimizer, state=state)
    assert [state["iterator"].next() for _ in range(5)] == expected


def test_the_first_stage_on_another_rank(tmp_path):
    assert_on_ranks(2, first_stage_elsewhere, str(tmp_path))
