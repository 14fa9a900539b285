import chainer.links as L
from mpi4py import MPI

from divisible import Divisible, Plan
from pipeline import Pipeline

comm = MPI.COMM_WORLD
model = Divisible(L.Linear(4, 8), L.Linear(8, 8), L.Linear(8, 3))
stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
Pipeline(stage, comm, n_microbatches=2 + comm.rank)
