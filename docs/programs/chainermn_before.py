import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import numpy as np
from sklearn.datasets import load_digits


class Bottom(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.hidden1 = L.Linear(64, 200)
            self.hidden2 = L.Linear(200, 200)

    def forward(self, x):
        return F.relu(self.hidden2(F.relu(self.hidden1(x))))


class Top(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.output = L.Linear(200, 10)

    def forward(self, h):
        return self.output(h)


class OnRank0(chainermn.MultiNodeChainList):
    def __init__(self, comm, bottom):
        super().__init__(comm)
        self.add_link(bottom, rank_in=None, rank_out=1)


class OnRank1(chainermn.MultiNodeChainList):
    def __init__(self, comm, top):
        super().__init__(comm)
        self.add_link(top, rank_in=0, rank_out=None)


comm = chainermn.create_communicator("naive")
np.random.seed(0)
bottom, top = Bottom(), Top()
if comm.rank == 0:
    model = OnRank0(comm, bottom)
else:
    model = L.Classifier(OnRank1(comm, top))
optimizer = chainer.optimizers.Adam().setup(model)

x, t = load_digits(return_X_y=True)
x, t = (x / 16).astype(np.float32), t.astype(np.int32)
for i in range(101):
    batch = np.random.RandomState(i).randint(0, len(x), 100)
    if comm.rank == 0:
        optimizer.update(model, x[batch])
    else:
        optimizer.update(model, t[batch])
        loss = float(model.loss.array)
        if i % 20 == 0:
            print(f"{i:3d}  loss {loss:.4f}")
