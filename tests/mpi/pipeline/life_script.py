"""A training script that something happens to; see test_life.py."""

import os
import sys
import time

import chainer
import chainer.links as L
import numpy as np
from chainer import training
from chainer.training import extensions
from mpi4py import MPI

from divisible import Divisible, Plan
from pipeline import Pipeline, PipelineUpdater, StopOnSignal, snapshot

comm = MPI.COMM_WORLD
out, event, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
mine = comm.rank == rank


def happen(trainer):
    """Is called after each minibatch on each rank."""
    iteration = trainer.updater.iteration
    if iteration == 3:
        print(f"rank {comm.rank} trains in process {os.getpid()}", flush=True)
    if event in ("wait", "clock"):
        time.sleep(0.02)
    if iteration != 5 or not mine:
        return
    if event.startswith("nan"):
        next(stage.params()).array[...] = np.nan
    if event == "error":
        raise KeyError("the user's own")
    if event == "exit":
        sys.exit("the script has had enough")
    if event == "exit 3":
        sys.exit(3)
    if event == "request":
        trainer.updater.request_stop()
    if event == "end":
        raise SystemExit


def take_snapshot(trainer):
    path = f"snapshot_{comm.rank}_{trainer.updater.iteration}"
    chainer.serializers.save_npz(os.path.join(trainer.out, path), trainer)


def stop_trigger(trainer):
    if event == "clock" and mine:
        return trainer.updater.iteration > 0 and trainer.elapsed_time > 0.3
    return trainer.updater.epoch >= 1_000_000


np.random.seed(0)
model = Divisible(L.Linear(4, 4), L.Linear(4, 4), L.Linear(4, 4), L.Linear(4, 3))
stage = model.divide(*Plan.uniform(4, comm.size).range(comm.rank))
optimizer = chainer.optimizers.SGD(0.01).setup(stage)
samples = [(np.ones(4, np.float32), np.int32(i % 3)) for i in range(12)]
iterator = chainer.iterators.SerialIterator(samples, 4, repeat=event != "samples")
pipe = Pipeline(stage, comm, n_microbatches=2, timeout=1000)
updater = PipelineUpdater(iterator, optimizer, pipe)
trainer = training.Trainer(updater, stop_trigger, out=out)
trainer.extend(happen)
# At once, or one minibatch later, when the other ranks have got it from this one.
iterations = 6 if event == "nan everywhere" else 1
trainer.extend(extensions.FailOnNonNumber(), trigger=(iterations, "iteration"))
trainer.extend(take_snapshot, name="snapshot", trigger=(1000, "epoch"), priority=-100)
if event == "wait":
    stop = StopOnSignal()
    trainer.extend(stop)
    whole = snapshot("whole", background=True)
    trainer.extend(whole, name="snapshot of all", trigger=(1000, "epoch"))
trainer.run()
if event == "wait":
    print(f"rank {comm.rank} stopped by signal {stop.signal}")
print(f"rank {comm.rank} goes on after iteration {updater.iteration}", flush=True)
if mine:
    # As many scripts do, and as others do not.
    sys.exit()
