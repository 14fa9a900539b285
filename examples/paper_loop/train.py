"""The loop of Takisawa et al. (Fig. 4) as printed, checked against serial training.

    mpiexec -n 2 python examples/paper_loop/train.py

All microbatches go forward, then all go backward, and every rank communicates with the
one before and the one after. Each rank does this with its stage of the model and, to
compare, trains the undivided model as well; then the two must agree. `Pipeline` does
the same faster; see examples/train.
"""

from __future__ import annotations

import sys

import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import numpy as np

from divisible import Divisible, Plan
from pipeline import abort_on_error, recv_data, recv_grad, send_data, send_grad

N_STEPS = 5
# The last microbatch of every minibatch has 12 samples instead of 16.
BATCHSIZE, MBATCHSIZE = 60, 16
TOLERANCE = 1e-4


# Fig. 3
class NN(Divisible):
    """A network of four fully connected layers."""

    def __init__(self):
        for _ in range(3):
            self.append(L.Linear(32, 32))
            self.append(F.relu)
        self.append(L.Linear(32, 10))


def train_minibatch(comm, model, x, t, batchsize, mbatchsize):
    """One minibatch forward and backward: Fig. 4.

    The paper shows the two loops. The names above them, which the paper takes for
    granted, are new, and so are the weights of the microbatches, which a comment marks.
    """
    source = comm.rank - 1
    dest = comm.rank + 1
    xs, ys = [], []
    losses = 0.0

    # forward
    for mb in range(0, batchsize, mbatchsize):
        if comm.rank == 0:
            mx = x[mb : mb + mbatchsize]
        if comm.rank == comm.size - 1:
            mt = t[mb : mb + mbatchsize]
        if comm.rank != 0:
            mx = recv_data(comm, None, source)
        xs.append(mx)
        y = model(mx)
        if comm.rank == comm.size - 1:
            loss = F.softmax_cross_entropy(y, mt)
            # New. Each backward adds to the gradients, so as printed they end up as the
            # *sum* over the microbatches of gradients of mean losses: too large by the
            # number of microbatches. With these weights the sum is the mean over the
            # minibatch, also when the last microbatch is smaller.
            loss *= len(mt) / batchsize
            losses += float(loss.array)
            ys.append(loss)
        else:
            send_data(comm, y, dest)
            ys.append(y)

    # backward
    for x, y in zip(xs, ys):
        if comm.rank != comm.size - 1:
            y = recv_grad(comm, y, dest)
        y.backward()
        if comm.rank != 0:
            send_grad(comm, x, source)

    return losses


def train_serial(model, x, t):
    """Trains the undivided model on the same minibatch."""
    loss = F.softmax_cross_entropy(model(x), t)
    loss.backward()
    return float(loss.array)


def main() -> None:
    """Trains both ways and compares."""
    abort_on_error()
    comm = chainermn.create_communicator("naive")

    np.random.seed(0)
    model = NN()
    serial = model.copy(mode="copy")
    start, end = Plan.uniform(len(model), comm.size).range(comm.rank)
    model = model.divide(start, end)

    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(model)
    serial_optimizer = chainer.optimizers.MomentumSGD(0.1).setup(serial)

    rng = np.random.RandomState(1)
    difference = 0.0
    for step in range(N_STEPS):
        x = rng.normal(size=(BATCHSIZE, 32)).astype(np.float32)
        t = rng.randint(0, 10, BATCHSIZE).astype(np.int32)

        model.cleargrads()
        loss = train_minibatch(comm, model, x, t, BATCHSIZE, MBATCHSIZE)
        optimizer.update()

        serial.cleargrads()
        serial_loss = train_serial(serial, x, t)
        serial_optimizer.update()

        if comm.rank == comm.size - 1:
            print(f"step {step}: loss {loss:.6f}, serial {serial_loss:.6f}", flush=True)
            difference = max(difference, abs(loss - serial_loss))

    # A stage's parameters have the same paths as in the undivided model.
    expected = dict(serial.namedparams())
    for path, param in model.namedparams():
        largest = np.abs(param.array - expected[path].array).max()
        difference = max(difference, float(largest))

    difference = max(comm.mpi_comm.allgather(difference))
    if comm.rank == comm.size - 1:
        print(f"largest difference from serial training: {difference:.1e}", flush=True)
    if not difference <= TOLERANCE:
        sys.exit(1)


if __name__ == "__main__":
    main()
