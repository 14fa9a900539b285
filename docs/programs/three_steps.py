"""The tutorial's program: handwritten digits on any number of ranks."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from mpi4py import MPI
from sklearn.datasets import load_digits

from divisible import Divisible, deferred_init
from pipeline import Pipeline


# Step 1: the model is a list of layers.
class Net(Divisible):
    def __init__(self):
        self.append(L.Convolution2D(1, 16, ksize=3, pad=1))
        self.append(F.relu)
        self.append(lambda x: F.max_pooling_2d(x, ksize=2))
        self.append(L.Convolution2D(16, 32, ksize=3, pad=1))
        self.append(F.relu)
        self.append(lambda x: F.dropout(x, ratio=0.2))
        self.append(L.Linear(4 * 4 * 32, 10))


# Step 2: the pipeline divides the model, and each rank makes its own layers.
comm = MPI.COMM_WORLD
with deferred_init(seed=0):
    model = Net()
pipe = Pipeline(model, comm, n_microbatches=4)
optimizer = pipe.setup(chainer.optimizers.Adam(0.003))

# Step 3: the pipeline runs the stages.
images, classes = load_digits(return_X_y=True)
x = (images / 16).reshape(-1, 1, 8, 8).astype(np.float32)
t = classes.astype(np.int32)
order = np.random.RandomState(0).permutation(len(x))  # the same on every rank
train, test = order[:1500], order[1500:]

for epoch in range(1, 4):
    for i in range(0, len(train), 100):
        batch = train[i : i + 100]
        result = pipe.step(x[batch], t[batch])
        optimizer.update()
    tested = pipe.evaluate(x[test], t[test])
    if comm.rank == 0:
        print(f"epoch {epoch}  loss {result['loss']:.3f}  ", end="")
        print(f"test loss {tested['loss']:.3f}  accuracy {tested['accuracy']:.3f}")
