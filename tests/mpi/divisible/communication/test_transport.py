"""Whatever is sent arrives, whatever its shapes and dtypes and their changes."""

import itertools
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chainer_kernels.layouts import memory_order
from divisible.communication import transport
from divisible.communication.collectives import all_gather, broadcast_object
from divisible.communication.errors import StallError
from divisible.communication.narrowing import arrived
from divisible.communication.transport import Tensor, Transport
from divisible.communication.wire import WIRE
from tests.support import kernels
from tests.support.kernels import in_order
from tests.support.mpiexec import assert_on_ranks

N_MICROBATCHES = 3

tensors = st.fixed_dictionaries(
    {
        "shape": st.none() | st.lists(st.integers(0, 5), max_size=3),
        "dtype": st.sampled_from(["float16", "float32", "float64", "int64", "bool"]),
        "requires_grad": st.sampled_from([True, False, None]),
        "order": kernels.orders,
    }
)
minibatches = st.lists(
    st.lists(tensors, max_size=3),
    min_size=N_MICROBATCHES,
    max_size=N_MICROBATCHES,
)


def make_message(specs, seed):
    rng = np.random.RandomState(seed)
    return tuple(
        Tensor(
            None
            if spec["shape"] is None
            else in_order(
                np.asarray(rng.normal(size=spec["shape"])).astype(spec["dtype"]),
                spec["order"],
            ),
            spec["requires_grad"],
        )
        for spec in specs
    )


def assert_equal(received, sent):
    assert len(received) == len(sent)
    for mine, other in zip(received, sent):
        assert mine.requires_grad == other.requires_grad
        if other.array is None:
            assert mine.array is None
        else:
            assert (mine.array.dtype, mine.array.shape) == (
                other.array.dtype,
                other.array.shape,
            )
            np.testing.assert_array_equal(mine.array, other.array)
            if memory_order(other.array) is not None:
                assert memory_order(mine.array) == memory_order(other.array)


# So that the small arrays of this test travel in pieces, as large ones do.
@mock.patch.object(transport, "PIECE_BYTES", 64)
def exchange(comm, drawn, ahead):
    channels = Transport(comm.Dup(), 10)
    sender = channels.sender(5, 1) if comm.rank == 0 else None
    receiver = channels.receiver(5, 0) if comm.rank == 1 else None
    for step, minibatch in enumerate(np.repeat(np.arange(len(drawn)), 2)):
        messages = [
            make_message(specs, 10 * step + i)
            for i, specs in enumerate(drawn[minibatch])
        ]
        if sender:
            for i, message in enumerate(messages):
                sender.send(i, message)
        else:
            kept = []
            for i in range(ahead):
                receiver.post(i)
            for i in range(N_MICROBATCHES):
                if i + ahead < N_MICROBATCHES:
                    receiver.post(i + ahead)
                kept.append(receiver.receive(i, "the test"))
            # Later messages must not have overwritten earlier ones that are in use.
            for received, message in zip(kept, messages):
                assert_equal(received, message)
    channels.flush()


@settings(
    max_examples=6,
    suppress_health_check=list(HealthCheck),
    database=None,
)
@given(st.lists(minibatches, min_size=8, max_size=8), st.integers(1, 3))
def test_messages_arrive(drawn, ahead):
    assert_on_ranks(2, exchange, drawn, ahead)


def reuse(comm):
    channels = Transport(comm.Dup(), 10)
    message = (Tensor(np.arange(1000.0)),)
    if comm.rank == 0:
        sender = channels.sender(0, 1)
        for _ in range(20):
            sender.send(0, message)
        channels.flush()
        return
    receiver = channels.receiver(0, 0)
    places = set()
    for _ in range(20):
        receiver.post(0)
        (tensor,) = receiver.receive(0, "the test")
        places.add(tensor.array.ctypes.data)
        del tensor
    assert len(places) == 1


def test_arrays_no_longer_used_are_received_into_again():
    assert_on_ranks(2, reuse)


def lengths(comm):
    """Ever new shapes do not pile up arrays."""
    channels = Transport(comm.Dup(), 10)
    sender = channels.sender(0, 1) if comm.rank == 0 else None
    receiver = channels.receiver(0, 0) if comm.rank == 1 else None
    for n in range(1, 50):
        if sender:
            sender.send(0, (Tensor(np.zeros(n)),))
        else:
            receiver.post(0)
            assert receiver.receive(0, "the test")[0].array.shape == (n,)
            assert len(receiver._buffers) == 1
    channels.flush()


def test_ever_new_shapes():
    assert_on_ranks(2, lengths)


def stall(comm):
    channels = Transport(comm.Dup(), 0.5)
    if comm.rank == 1:
        receiver = channels.receiver(0, 0)
        receiver.post(0)
        with pytest.raises(StallError, match="rank 0 sends, for 1F0"):
            receiver.receive(0, "1F0")
    all_gather(comm, None, 10)


def test_a_wait_ends():
    assert_on_ranks(2, stall)


def objects(comm):
    values = all_gather(comm, {"rank": comm.rank, "text": "x" * comm.rank}, 10)
    assert [value["rank"] for value in values] == list(range(comm.size))
    value = broadcast_object(comm, {"from": comm.rank}, 1, 10)
    assert value == {"from": 1}


def test_objects():
    assert_on_ranks(3, objects)


narrow_messages = st.lists(
    st.fixed_dictionaries(
        {
            "shape": st.none() | st.lists(st.integers(0, 40), max_size=2),
            "dtype": st.sampled_from(["float16", "float32", "int64", "bool"]),
            "requires_grad": st.sampled_from([True, None]),
            "order": kernels.orders,
        }
    ),
    max_size=3,
)


@mock.patch.object(transport, "PIECE_BYTES", 64)
def exchange_narrow(comm, drawn):
    """A message of each dtype three times, the second time with infinity."""
    channels = Transport(comm.Dup(), 10)
    for number, (specs, name) in enumerate(itertools.product(drawn, sorted(WIRE))):
        if comm.rank == 0:
            sender = channels.sender(number, 1)
            sender.narrow(name)
        else:
            receiver = channels.receiver(number, 0)
        for step in range(3):
            message = make_message(specs, step)
            for array, _ in message:
                if step == 1 and array is not None and array.dtype.kind == "f":
                    array[(slice(-1, None),) * array.ndim] = np.inf
            if comm.rank == 0:
                sender.send(0, message)
            else:
                receiver.post(0)
                expected = [
                    tensor
                    if tensor.array is None
                    else tensor._replace(array=arrived(tensor.array, name))
                    for tensor in message
                ]
                assert_equal(receiver.receive(0, "the test"), expected)
        if comm.rank == 1:
            receiver.close()
    channels.flush()


@settings(max_examples=4, suppress_health_check=list(HealthCheck), database=None)
@given(st.lists(narrow_messages, min_size=5, max_size=5))
def test_narrow_messages_arrive(drawn):
    assert_on_ranks(2, exchange_narrow, drawn)


def narrow_bytes(comm):
    """In the steady state there are no bytes but scales and codes."""
    channels = Transport(comm.Dup(), 10)
    message = (Tensor(np.arange(2560, dtype="f")), Tensor(np.arange(3)))
    if comm.rank == 0:
        sender = channels.sender(0, 1)
        sender.narrow("int8")
        sent = []
        with (
            mock.patch.object(
                transport.Sender,
                "_isend",
                lambda _, piece, tag: sent.append(piece.size),
            ),
            mock.patch.object(channels, "keep", lambda *_: None),
        ):
            for _ in range(3):
                sender.send(0, message)
        # The signature, once; then scales and codes, and integers.
        assert sent[1:] == [2600, 24] * 3


def test_narrow_messages_have_no_other_bytes():
    assert_on_ranks(2, narrow_bytes)
