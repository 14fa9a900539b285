"""ChainerMN's sends and receives, as a transport and by the paper's functions."""

import chainermn
import numpy as np
import pytest

from divisible.communication.signatures import Tensor
from pipeline import recv_data, send_data
from pipeline.chainermn import ChainerMNTransport
from tests.support.mpiexec import assert_on_ranks

DTYPES = "bool int8 uint8 int16 int32 int64 float16 float32 float64 complex64 >f4"
SHAPES = (3, 5), (4,), (), (0, 2)


def make_message(dtype):
    rng = np.random.RandomState(0)
    arrays = [np.asarray(rng.randint(0, 2, size=shape), dtype) for shape in SHAPES]
    arrays.append(arrays[0].T)
    return (*map(Tensor, arrays), Tensor(None), Tensor(arrays[0], True))


def exchange(comm):
    channels = ChainerMNTransport(comm, 10)
    for dtype in DTYPES.split():
        message = make_message(dtype)
        if comm.rank == 0:
            channels.sender(0, 1).send(0, message)
            continue
        received = channels.receiver(0, 0).receive(0, "the test")
        for mine, sent in zip(received, message):
            assert mine.requires_grad == sent.requires_grad
            if sent.array is None:
                assert mine.array is None
                continue
            assert mine.array.dtype == sent.array.dtype, dtype
            assert mine.array.shape == sent.array.shape, dtype
            np.testing.assert_array_equal(mine.array, sent.array, dtype)
            assert mine.array.flags.writeable


def refuse(comm):
    """What ChainerMN does not send is refused, and the next message arrives."""
    comm = chainermn.create_communicator("naive", comm)
    if comm.rank == 1:
        np.testing.assert_array_equal(recv_data(comm, None, 0).array, [1, 2])
        return
    whole, real = np.array([1, 2]), np.array([1.5])
    with pytest.raises(TypeError, match=r"rank 0: .* send bool to rank 1: .* int32"):
        send_data(comm, whole > 1, 1)
    with pytest.raises(TypeError, match="does not send int64 and float64 to rank 1"):
        send_data(comm, (whole, real), 1)
    send_data(comm, whole, 1)


def exchange_and_refuse(comm):
    exchange(comm)
    refuse(comm)


def test_every_dtype_arrives_or_is_refused():
    assert_on_ranks(2, exchange_and_refuse)
