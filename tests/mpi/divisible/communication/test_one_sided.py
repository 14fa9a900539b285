"""Messages that are put into memory of the receiver, and copied once."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from divisible.communication import one_sided, shared_memory, transport
from divisible.communication.collectives import all_gather
from divisible.communication.errors import StallError
from divisible.communication.one_sided import OneSidedTransport
from divisible.communication.shared_memory import SharedMemory
from divisible.communication.signatures import Tensor
from tests.mpi.divisible.communication.test_transport import SIZES, shorter
from tests.support.mpiexec import assert_on_ranks


def array(n, seed=0):
    return np.random.RandomState(seed).normal(size=(n, 5)).astype("f")


def channel(comm, n_slots=2, n_samples=4, timeout=60, has_window=True):
    """Returns a transport and this rank's end, with a window."""
    channels = OneSidedTransport(comm.Dup(), timeout)
    end = channels.sender(0, 1) if comm.rank == 0 else channels.receiver(0, 0)
    for i, n in enumerate(SIZES):
        if comm.rank == 0:
            end.send(i, [Tensor(array(n), True)])
        else:
            end.post(i)
            end.receive(i, "the test")
    channels.flush()
    assert end.find_shapes(SIZES) == ""
    end.expect(4, n_samples)
    channels.make_room(n_slots, comm)
    assert (end._window is not None) == has_window
    return channels, end


def copies(comm):
    """A message is copied once, and MPI sends nothing."""
    channels, end = channel(comm, n_slots=3)
    copied, sent, copyto = [], [], np.copyto

    def counted(target, source):
        copied.append(source)
        copyto(target, source)

    messages = [array(n, n) for n in (4, 4, 2)]
    # Every second column: it is put from where it lies, without another copy.
    messages.append(array(8, 8)[::2])
    with (
        mock.patch.object(one_sided.np, "copyto", counted),
        mock.patch.object(
            transport.Sender, "_isend", lambda *_: sent.append(1) or 1 / 0
        ),
    ):
        if comm.rank == 0:
            for i, message in enumerate(messages):
                end.send(i, [Tensor(message, True)])
        else:
            kept = []
            for i in range(len(messages)):
                end.post(i)
                (tensor,) = end.receive(i, "the test")
                np.testing.assert_array_equal(tensor.array, messages[i])
                if i < 2:
                    kept.append(tensor.array)
                del tensor
            slots = [slot for (slot,) in end._window.slots]
            assert all(
                any(np.shares_memory(mine, slot) for slot in slots) for mine in kept
            )
            # Arrays in use are not overwritten.
            for mine, message in zip(kept, messages):
                np.testing.assert_array_equal(mine, message)
        channels.flush()
    assert not sent
    if comm.rank == 0:
        assert len(copied) == len(messages)
        assert all(a is b for a, b in zip(copied[:3], messages))


def test_a_message_is_copied_once():
    assert_on_ranks(2, copies)


def without_slots(comm):
    """Messages beyond the slots in use come by MPI; then slots are used again."""
    channels, end = channel(comm, n_slots=1)
    if comm.rank == 0:
        for i in range(8):
            end.send(i % 4, [Tensor(array(4, i), True)])
        channels.flush()
        return
    kept, in_slots = [], []
    for i in range(8):
        end.post(i % 4)
        in_slots.append(end._is_in_slot())
        (tensor,) = end.receive(i % 4, "the test")
        np.testing.assert_array_equal(tensor.array, array(4, i))
        if i < 4:
            # A view is enough to keep it.
            kept.append(tensor.array[:1])
        else:
            kept = []
        del tensor
    assert in_slots == [True, False, False, False, False, True, True, True]


def test_no_slot_is_left():
    assert_on_ranks(2, without_slots)


def larger(comm):
    """After messages that are larger than a slot, others come into slots again."""
    channels, end = channel(comm)
    sizes = [4, 8, 8, 4, 4, 8, 3, 3, 4]
    in_slots = []
    for number, n in enumerate(sizes):
        if comm.rank == 0:
            end.send(0, [Tensor(array(n, number), True)])
            continue
        end.post(0)
        in_slots.append(end._is_in_slot())
        (tensor,) = end.receive(0, "the test")
        np.testing.assert_array_equal(tensor.array, array(n, number))
        del tensor
    channels.flush()
    # A slot is offered to the first larger message; the first smaller one gets none.
    expected = [True, True, False, False, True, True, False, True, True]
    assert comm.rank == 0 or in_slots == expected


def test_slots_are_used_after_larger_messages():
    assert_on_ranks(2, larger)


def test_messages_of_fewer_samples_are_not_described():
    assert_on_ranks(2, shorter, "OneSidedTransport")


def late_credits(comm):
    """Messages without credits wait, and leave while the sender polls or waits."""
    channels, end = channel(comm)
    if comm.rank == 0:
        for i in range(4):
            end.send(i, [Tensor(array(4, i), True)])
        assert end._waiting
        all_gather(comm, None, 60)
        while channels.late:
            channels.look()
    else:
        all_gather(comm, None, 60)
        for i in range(4):
            end.post(i)
            (tensor,) = end.receive(i, "the test")
            np.testing.assert_array_equal(tensor.array, array(4, i))
    all_gather(comm, None, 60)


def test_messages_wait_for_credits():
    assert_on_ranks(2, late_credits)


def stalls(comm):
    channels, end = channel(comm, timeout=0.5)
    if comm.rank == 0:
        end.send(0, [Tensor(array(4), True)])
        with pytest.raises(StallError, match="rank 1 to take what was sent to it"):
            channels.flush()
    else:
        all_gather(comm, None, 60)
        end.post(0)
        end.receive(0, "the test")
        end.post(1)
        with pytest.raises(StallError, match="rank 0 sends, for 1F0"):
            end.receive(1, "1F0")
        return
    channels.go_on()
    all_gather(comm, None, 60)
    while channels.late:
        channels.go_on()


def test_waits_end():
    assert_on_ranks(2, stalls)


def elsewhere(comm):
    """Without common memory, messages travel as they do over MPI."""
    error = OSError("it is on another host")
    with mock.patch.object(SharedMemory, "open", side_effect=error):
        channels, end = channel(comm, has_window=False)
    if comm.rank == 0:
        end.send(0, [Tensor(array(4), True)])
    else:
        end.post(0)
        (tensor,) = end.receive(0, "the test")
        np.testing.assert_array_equal(tensor.array, array(4))
    channels.flush()


def test_ranks_without_common_memory():
    assert_on_ranks(2, elsewhere)


def test_memory_outlives_its_owner():
    memory = SharedMemory.make(10)
    with SharedMemory.open(memory.address) as other:
        memory.content[3] = 7
        memory.close()
        mine = other.content
    assert mine[3] == 7
    with pytest.raises(OSError):
        SharedMemory.open(memory.address)


def test_a_failed_map_leaves_no_open_file():
    memory, files = SharedMemory.make(10), Path("/proc/self/fd")
    n_open = len(list(files.iterdir()))
    failing = mock.patch.object(shared_memory.mmap, "mmap", side_effect=OSError)
    with failing, pytest.raises(OSError):
        SharedMemory.open(memory.address)
    assert len(list(files.iterdir())) == n_open
    memory.close()


def lacking(comm):
    """Where memory is scarce, messages travel as they do over MPI, with a warning."""
    with (
        mock.patch.object(one_sided, "refusal", lambda claims: "1 MiB is left"),
        mock.patch.object(one_sided, "warn_user") as warn,
    ):
        channel(comm, has_window=False)
    # The sender needs no memory.
    assert warn.call_count == comm.rank
    assert not comm.rank or "1 MiB is left" in warn.call_args.args[0]


def test_memory_is_scarce():
    assert_on_ranks(2, lacking)


def replicas(comm):
    """Ranks without messages to each other weigh their memory together."""
    alone = OneSidedTransport(comm.Split(comm.rank), 10)
    with mock.patch.object(one_sided, "refusal", return_value=None) as refusal:
        alone.make_room(2, comm)
    (weighed,) = refusal.call_args.args
    assert len(weighed) == 2


def test_replicas_weigh_their_memory_together():
    assert_on_ranks(2, replicas)
