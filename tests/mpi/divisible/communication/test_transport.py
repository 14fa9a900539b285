"""Whatever is sent arrives, whatever its shapes and dtypes and their changes."""

import itertools
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chainer_kernels.layouts import memory_order
from divisible.communication import one_sided, receive_buffers, transport
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
@mock.patch.object(receive_buffers, "PIECE_BYTES", 64)
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


@mock.patch.object(receive_buffers, "PIECE_BYTES", 64)
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
            for array, *_ in message:
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


def rows(n, seed=0):
    rng = np.random.RandomState(seed + n)
    channels_last = rng.normal(size=(n, 3, 2, 4)).astype("f").transpose(0, 3, 1, 2)
    return (
        Tensor(np.arange(3, dtype="f")),
        Tensor(channels_last, True),
        Tensor(rng.randint(0, 9, n)),
    )


SIZES = (2, 3, 5)
#: Numbers of samples of later messages; 0 for none, 9 for more than expected.
LATER = (4, 3, 1, 0, 4, 0, 2, 9, 9, 4, 0)


def expected_shapes(comm, kind, n_expected, name="fp32", piece_bytes=1 << 30):
    """Sends messages of `LATER`; returns the tags of what is sent."""
    sent = []
    isend = transport.Sender._isend

    def noted(sender, piece, tag):
        sent.append((tag - sender._data_tag, piece.size))
        return isend(sender, piece, tag)

    channels = getattr(one_sided, kind, getattr(transport, kind, None))(comm.Dup(), 10)
    is_sender = comm.rank == 0
    end = channels.sender(2, 1) if is_sender else channels.receiver(2, 0)
    if is_sender:
        end.narrow(name)
    with (
        mock.patch.object(transport.Sender, "_isend", noted),
        mock.patch.object(receive_buffers, "PIECE_BYTES", piece_bytes),
    ):
        for step, n in enumerate([*SIZES, *LATER]):
            if step == len(SIZES):
                channels.flush()
                assert end.find_shapes(SIZES) == ""
                end.expect(2, n_expected)
                if kind == "OneSidedTransport":
                    channels.make_room(2, comm)
                del sent[:]
            microbatch = step if step < len(SIZES) else step % 2
            message = rows(n, step) if n else ()
            if is_sender:
                end.send(microbatch, message)
                continue
            end.post(microbatch)
            received = end.receive(microbatch, "the test")
            expected = [
                tensor._replace(array=arrived(tensor.array, name)) for tensor in message
            ]
            assert_equal(received, expected)
            del received
        channels.flush()
        end.close() if not is_sender else None
    return channels, end, sent


def shorter(comm, kind):
    for name in ("fp32", "int8"):
        _, _, sent = expected_shapes(comm, kind, 4, name)
        if comm.rank == 0:
            # For each microbatch the first message with more samples. With slots, also
            # the next one that fits into a slot again.
            n_described = 3 if kind == "OneSidedTransport" else 2
            assert [tag for tag, _ in sent].count(1) == n_described, sent
        # Nothing is described if as many samples are expected as ever come.
        _, _, sent = expected_shapes(comm, kind, 9, name)
        if comm.rank == 0:
            assert {tag for tag, _ in sent} <= {0}, sent
    # Arrays in several pieces are described, whatever their size.
    expected_shapes(comm, kind, 4, piece_bytes=64)


def test_messages_of_fewer_samples_are_not_described():
    assert_on_ranks(2, shorter, "Transport")
