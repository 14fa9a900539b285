"""A rank is killed at a random moment; resumed, the run ends as if nothing had been."""

import os
import random
import re
import shutil
import signal
import time

import chainer
import numpy as np
import pytest

from pipeline import Snapshot, latest_snapshot
from tests.support.loaded_python import loaded_project
from tests.support.mpiexec import assert_on_ranks, worker
from tests.support.processes import launcher, running
from tests.support.snapshot_training import BATCHES, Run, names_in, saved_arrays

N_RANKS = 3
N_STEPS = 30
START_UP = 60


def train(comm, folder):
    """Trains by hand, with a snapshot after each minibatch, from the newest one."""
    run = Run(comm, str(N_RANKS))
    random.seed(5)
    x, t = (np.concatenate(arrays) for arrays in zip(*BATCHES))
    order = chainer.iterators.ShuffleOrderSampler(np.random.RandomState(7))
    iterator = chainer.iterators.SerialIterator(range(len(x)), 15, order_sampler=order)
    state = {"iterator": iterator}
    latest = latest_snapshot(folder, pattern="step_*")
    if latest is not None:
        values = run.load(latest, state).values
        assert values["step"] == run.pipe.n_steps
    print(f"rank {comm.rank} trains in process {os.getpid()}", flush=True)
    while run.pipe.n_steps < N_STEPS:
        batch = iterator.next()
        run.pipe.step(x[batch], t[batch])
        # What the user's own code draws is the same as well.
        scale = 0.9 + 0.05 * np.random.random() + 0.05 * random.random()
        for optimizer in run.optimizers:
            optimizer.alpha = 0.01 * scale
            optimizer.update()
        step = run.pipe.n_steps
        values = {"step": step}
        # At once, and in the background.
        options = {"values": values, "n_retains": 2, "background": step % 3 > 0}
        run.save(f"{folder}/step_{step}", state, **options)
    run.save(f"{folder}/final", state)


def start(folder):
    arguments = [*loaded_project(), *worker(train, str(folder))]
    return running([launcher(), "-n", str(N_RANKS), *arguments])


def wait_for_ranks(program, folder):
    """Waits until all ranks train and have saved; returns their process ids.

    What the first step loads takes longer than many steps: a run that is killed there
    has nothing to go on from.
    """

    def pids():
        found = re.findall(r"rank (\d) trains in process (\d+)", program.output)
        have_saved = len(found) == N_RANKS and any(folder.glob("step_*"))
        return have_saved and {int(r): int(pid) for r, pid in found}

    return program.wait_for(pids, START_UP)


def final_state(folder):
    snapshot = Snapshot.open(folder / "final")
    arrays = saved_arrays(snapshot.path)
    with np.load(snapshot.path / "common.npz") as common:
        arrays.update((key, common[key]) for key in common)
    return arrays


def assert_same(actual, expected):
    assert set(actual) == set(expected)
    different = [k for k in expected if actual[k].tobytes() != expected[k].tobytes()]
    assert not different


@pytest.mark.parametrize("n_kills", [1, pytest.param(50, marks=pytest.mark.matrix)])
def test_killed_and_resumed(tmp_path, n_kills):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    undisturbed.mkdir()
    disturbed.mkdir()
    with start(undisturbed) as program:
        wait_for_ranks(program, undisturbed)
        begin = time.monotonic()
        assert program.wait(120) == 0, program.output
        seconds = time.monotonic() - begin
    expected = final_state(undisturbed)
    done, while_saving = 0, 0
    while done < n_kills:
        with start(disturbed) as program:
            pids = wait_for_ranks(program, disturbed)
            time.sleep(chance.uniform(0, seconds / 3))
            if program.process.poll() is None:
                os.kill(pids[chance.randrange(N_RANKS)], signal.SIGKILL)
            if program.wait(30) != 0:
                assert "Traceback" not in program.output, program.output
                # A busy machine may not have saved any yet.
                done += latest_snapshot(disturbed) is not None
                while_saving += any(disturbed.glob("*.partial"))
                continue
        assert_same(final_state(disturbed), expected)
        shutil.rmtree(disturbed)
        disturbed.mkdir()
    print(f"{while_saving} of {n_kills} while a snapshot was being written")
    assert_on_ranks(N_RANKS, train, str(disturbed), timeout=120)
    assert_same(final_state(disturbed), expected)
    # What the killed ones left is gone.
    assert len(names_in(disturbed)) == 3
