"""Trains on handwritten digits: mpiexec -n 2 python examples/first/train.py."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from mpi4py import MPI
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from divisible import Divisible
from pipeline import Pipeline

np.random.seed(0)  # the same weights, and order of samples, on every rank
x, x_test, t, t_test = train_test_split(*load_digits(return_X_y=True), random_state=0)
model = Divisible(L.Linear(64, 99), F.relu, L.Linear(99, 99), F.relu, L.Linear(99, 10))
pipe = Pipeline(model, MPI.COMM_WORLD, n_microbatches=4)  # keeps this rank's layers
optimizer = pipe.setup(chainer.optimizers.Adam(0.003))
for epoch in range(1, 6):
    for batch in np.array_split(np.random.permutation(len(x)), 20):
        pipe.step(np.float32(x[batch]), t[batch])  # forward and backward
        optimizer.update()
    accuracy = pipe.evaluate(np.float32(x_test), t_test)["accuracy"]
    if pipe.is_first:
        print(f"epoch {epoch}: test accuracy {accuracy:.1%}", flush=True)
