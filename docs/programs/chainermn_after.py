import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import numpy as np
from sklearn.datasets import load_digits

from divisible import Divisible, Plan
from pipeline import Pipeline


class Net(Divisible):
    def __init__(self):
        self.append(L.Linear(64, 200))
        self.append(F.relu)
        self.append(L.Linear(200, 200))
        self.append(F.relu)
        self.append(L.Linear(200, 10))


comm = chainermn.create_communicator("naive")
np.random.seed(0)
model = Net()
model = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
optimizer = chainer.optimizers.Adam().setup(model)
pipe = Pipeline(model, comm, n_microbatches=4)

x, t = load_digits(return_X_y=True)
x, t = (x / 16).astype(np.float32), t.astype(np.int32)
for i in range(101):
    batch = np.random.RandomState(i).randint(0, len(x), 100)
    loss = pipe.step(x[batch], t[batch])["loss"]
    optimizer.update()
    if comm.rank == 0 and i % 20 == 0:
        print(f"{i:3d}  loss {loss:.4f}")
