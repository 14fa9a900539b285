"""What users do with ChainerMN gives what it should, and no warning."""

import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import numpy as np
import pytest
from chainermn.communicators import flat_communicator, pure_nccl_communicator

from tests.support.mpiexec import assert_on_ranks


def send_and_receive(comm):
    """A ring of tuples, fp16 and fp32."""
    following, previous = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for dtype in "ef":
        data = (np.full((2, 3), comm.rank, dtype), np.full(2, comm.rank, dtype))
        if comm.rank % 2:
            received = comm.recv(previous, 0)
            comm.send(data, following, 0)
        else:
            comm.send(data, following, 0)
            received = comm.recv(previous, 0)
        assert [x.dtype for x in received] == [np.dtype(dtype)] * 2
        assert all((x == previous).all() for x in received)


def differentiable_send(comm):
    """Forward 0 -> 1, backward 1 -> 0."""
    if comm.rank == 0:
        x = chainer.Variable(np.arange(3, dtype="f"))
        chainermn.functions.send(x, comm, rank=1).backward()
        np.testing.assert_array_equal(x.grad, [0, 2, 4])
    elif comm.rank == 1:
        y = chainermn.functions.recv(comm, rank=0)
        F.sum(y * y).backward()


def mean_gradients(comm):
    model = L.Linear(3, 2)
    comm.bcast_data(model)
    for param in model.params():
        param.grad = np.full(param.shape, comm.rank, "f")
    comm.multi_node_mean_grad(model)
    for param in model.params():
        np.testing.assert_allclose(param.grad, (comm.size - 1) / 2)


def iterators(comm):
    data = [(np.full(2, i, "f"), np.int32(i)) for i in range(6)]
    shared = chainermn.iterators.create_multi_node_iterator(
        chainer.iterators.SerialIterator(data, 3, shuffle=True), comm
    )
    labels = comm.gather_obj([int(t) for _ in range(2) for _, t in shared.next()])
    if comm.rank == 0:
        assert all(each == labels[0] for each in labels)
        assert sorted(labels[0]) == list(range(6))
    together = chainermn.iterators.create_synchronized_iterator(
        chainer.iterators.SerialIterator(data, 3, shuffle=True), comm
    )
    labels = comm.gather_obj([int(t) for _, t in together.next()])
    assert comm.rank or all(each == labels[0] for each in labels)


def scatter(comm):
    part = chainermn.scatter_dataset(list(range(12)) if comm.rank == 0 else None, comm)
    parts = comm.gather_obj(list(part))
    assert comm.rank or sorted(sum(parts, [])) == list(range(12))


def batch_normalization(comm):
    """The statistics are those of all ranks' samples."""
    x = np.random.RandomState(0).rand(4 * comm.size, 3).astype("f")
    y = L.BatchNormalization(3)(x).array
    part = slice(4 * comm.rank, 4 * comm.rank + 4)
    link = chainermn.links.MultiNodeBatchNormalization(3, comm)
    np.testing.assert_allclose(link(x[part]).array, y[part], rtol=1e-4, atol=1e-5)


def chain_list(comm):
    """A model over two ranks trains without a hang and gives both gradients."""
    if comm.rank > 1:
        return
    model = chainermn.MultiNodeChainList(comm)
    link = L.Linear(3, 2)
    if comm.rank == 0:
        model.add_link(link, rank_in=None, rank_out=1)
        model(np.ones((4, 3), "f")).backward()
    else:
        model.add_link(L.Linear(2, 2), rank_in=0, rank_out=None)
        F.sum(model()).backward()
    assert all(param.grad is not None for param in model.params())


def observations(comm):
    class Trainer:
        observation = {"loss": chainer.Variable(np.array(comm.rank, "f"))}

    trainer = Trainer()
    aggregator = chainermn.extensions.ObservationAggregator(
        comm, "loss", "mean", comm_trigger=lambda trainer: True
    )
    aggregator(trainer)
    assert float(trainer.observation["mean"].array) == (comm.size - 1) / 2


def communicators(comm):
    assert flat_communicator and pure_nccl_communicator
    assert type(chainermn.create_communicator("naive", comm)).__name__ == (
        "NaiveCommunicator"
    )
    # The names of the paper's Fig. 2, of ChainerMN's first versions, and the default.
    old = ["nccl", "hierarchical", "two_dimensional", "single_node"]
    for name in [*old, "pure_nccl", "non_cuda_aware", "flat", None]:
        given = [] if name is None else [name]
        if chainer.backends.cuda.available:
            continue
        words = f"'{name or 'pure_nccl'}'.*needs a GPU and CuPy.*Write .*'naive'"
        with pytest.raises(RuntimeError, match=words):
            chainermn.create_communicator(*given, mpi_comm=comm)
    with pytest.raises(ValueError, match="Unrecognized communicator"):
        chainermn.create_communicator("nonsense", comm)


def everyday(comm):
    warnings.simplefilter("error")
    communicators(comm)
    communicator = chainermn.create_communicator("naive", comm)
    for step in (
        send_and_receive,
        differentiable_send,
        mean_gradients,
        iterators,
        scatter,
        batch_normalization,
        chain_list,
        observations,
    ):
        step(communicator)
        comm.Barrier()


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_everyday_functions(n_ranks):
    assert_on_ranks(n_ranks, everyday)
