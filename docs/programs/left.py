import chainer.links as L
import numpy as np
from mpi4py import MPI

from divisible import Divisible, Plan
from pipeline import Pipeline

comm = MPI.COMM_WORLD
model = Divisible(L.Linear(4, 8), L.Linear(8, 8), L.Linear(8, 3))
stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
pipe = Pipeline(stage, comm, n_microbatches=2, timeout=60)
x, t = np.ones((6, 4), np.float32), np.zeros(6, np.int32)
pipe.step(x, t)
if comm.rank == 0:
    pipe.step(x, t)  # the other rank has left
