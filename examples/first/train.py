"""Trains on handwritten digits: mpiexec -n 2 python examples/first/train.py."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from mpi4py import MPI
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from divisible import Divisible, Plan
from pipeline import Pipeline

x, t = load_digits(return_X_y=True)
digits = (x / 16).astype(np.float32), t.astype(np.int32)
x, x_test, t, t_test = train_test_split(*digits, random_state=0)

comm = MPI.COMM_WORLD
np.random.seed(0)  # the same weights, and order of samples, on every rank
model = Divisible(L.Linear(64, 200), F.relu, L.Linear(200, 200), F.relu)
model.append(L.Linear(200, 10))
plan = Plan.uniform(len(model), n_stages=comm.size)  # where to cut
stage = model.divide(*plan.range(comm.rank))  # this rank's layers
optimizer = chainer.optimizers.Adam().setup(stage)
pipe = Pipeline(stage, comm, n_microbatches=4)

for epoch in range(1, 6):
    for batch in np.array_split(np.random.permutation(len(x)), 20):
        pipe.step(x[batch], t[batch])  # forward and backward
        optimizer.update()
    accuracy = pipe.evaluate(x_test, t_test)["accuracy"]
    if comm.rank == 0:
        print(f"epoch {epoch}: test accuracy {accuracy:.1%}", flush=True)
