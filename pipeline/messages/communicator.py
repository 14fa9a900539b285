"""MPI as the pipeline uses it: waits that yield the core and end, and one way out.

``comm`` is a ChainerMN communicator or an mpi4py one, everywhere.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import socket
import sys
import time
from typing import Any, Callable

import numpy as np
from mpi4py import MPI


class StallError(RuntimeError):
    """A wait for another rank took longer than the timeout, or that rank has left."""


class DisagreementError(ValueError):
    """Ranks were given different things; raised alike on every rank."""


def as_mpi(comm: Any) -> MPI.Comm:
    """Returns the mpi4py communicator of a ChainerMN or mpi4py communicator.

    Raises:
        TypeError: If ``comm`` is neither.
    """
    mpi_comm = getattr(comm, "mpi_comm", comm)
    if not isinstance(mpi_comm, MPI.Comm):
        raise TypeError(
            f"comm must be a ChainerMN communicator or an mpi4py one, not"
            f" {type(comm).__name__}"
        )
    return mpi_comm


# What a pipeline's communicator carries, by tags: MPI has at least those up to 32767.
BROADCAST_TAG = 32767
CLOCK_TAG = 32766
FAREWELL_TAG = 32765
NOTICE_TAG = 32764
#: Of no message.
UNUSED_TAG = 32763
# The channels of a transport have the tags from 0, each three of them.
_TAGS_PER_CHANNEL = 3
#: The last channel, for targets; those before it are for stages.
TARGETS_CHANNEL = UNUSED_TAG // _TAGS_PER_CHANNEL - 1


def channel_tags(channel: int) -> range:
    """Returns the tags of a channel.

    Args:
        channel (int): Its number, from 0.

    Raises:
        ValueError: If there are no tags left for it.
    """
    if not 0 <= channel <= TARGETS_CHANNEL:
        raise ValueError(
            f"there are no tags for channel {channel}: the stages, skip connections and"
            f" ties of a pipeline have {TARGETS_CHANNEL} channels at most"
        )
    start = _TAGS_PER_CHANNEL * channel
    return range(start, start + _TAGS_PER_CHANNEL)


# An MPI library spins while it waits, which starves the other ranks when they
# share a core and wastes the quota of a host that has less than one. So this
# module polls: at first at once, for the latency of messages up to a few megabytes,
# then with sleeps of a share of the time already waited, within bounds.
_SPIN_SECONDS = 200e-6
_SHORTEST_SLEEP = 20e-6
_LONGEST_SLEEP = 1e-3
_SLEEP_SHARE = 0.01
# What counts of the time between two polls. A process that is suspended, as some batch
# systems do with whole jobs, polls nothing meanwhile.
_LONGEST_POLL = 1.0

# What was waited for when a wait ended with an error: MPI may still write into the
# arrays that the requests hold on to. So they are never freed.
_abandoned: list[Callable[[], Any]] = []

# How long an abort may take.
_ABORT_SECONDS = 3

# How long a rank that fails gives a lower one to say the same before it does.
_SECONDS_TO_WAIT_FOR_LOWER_RANKS = 1.0


def wait(
    test: Callable[[], Any], timeout: float, waiting_for: Callable[[], str]
) -> Any:
    """Polls ``test`` until it returns something true, and returns that.

    Args:
        test: The question to repeat, such as an MPI request's ``Test``.
        timeout (float): Seconds after which to give up.
        waiting_for: Says what is awaited and from whom, for the error message.

    Raises:
        StallError: If the time is over. Time in which the process is suspended does not
            count, but for a second.
    """
    try:
        return _poll(test, timeout, waiting_for)
    except BaseException:
        _abandoned.append(test)
        raise


def _poll(
    test: Callable[[], Any], timeout: float, waiting_for: Callable[[], str]
) -> Any:
    answer = test()
    if answer:
        return answer
    now, waited = time.perf_counter(), 0.0
    while True:
        if waited > timeout:
            raise StallError(
                f"waited {waited:.0f} s for {waiting_for()}. That rank is stopped,"
                f" cut off, or does something else; if it is only slow, give a longer"
                f" timeout"
            )
        if waited > _SPIN_SECONDS:
            time.sleep(min(_LONGEST_SLEEP, max(_SHORTEST_SLEEP, waited * _SLEEP_SHARE)))
        answer = test()
        if answer:
            return answer
        last, now = now, time.perf_counter()
        waited += min(now - last, _LONGEST_POLL)


def duplicate(comm: MPI.Comm, timeout: float) -> MPI.Comm:
    """Duplicates a communicator, so that messages cannot mix with the user's."""
    new, request = comm.Idup()
    wait(request.Test, timeout, lambda: _everyone(comm, "to duplicate"))
    return new


def all_gather(
    comm: MPI.Comm,
    value: Any,
    timeout: float,
    purpose: str = "to compare their settings",
) -> list:
    """Returns the ``value`` of every rank, in rank order; any picklable object.

    Args:
        comm (mpi4py.MPI.Comm): Of the ranks.
        value: This rank's.
        timeout (float): Seconds to wait for the other ranks.
        purpose (str): What the ranks are waited for to do, for the error message.

    Raises:
        StallError: If another rank does not come in time.
    """
    mine = np.frombuffer(pickle.dumps(value), dtype=np.uint8)
    sizes = np.empty(comm.size, dtype=np.int64)
    request = comm.Iallgather(np.array([mine.size], dtype=np.int64), sizes)
    wait(request.Test, timeout, lambda: _everyone(comm, purpose))
    everything = np.empty(sizes.sum(), dtype=np.uint8)
    request = comm.Iallgatherv(mine, (everything, sizes))
    wait(request.Test, timeout, lambda: _everyone(comm, purpose))
    ends = np.cumsum(sizes)
    return [
        pickle.loads(everything[end - size : end].tobytes())
        for size, end in zip(sizes, ends)
    ]


def broadcast(comm: MPI.Comm, buffer: np.ndarray, root: int, timeout: float) -> None:
    """Fills ``buffer`` on every rank with ``root``'s."""
    # Not MPI's broadcast, which passes through ranks in between: when one of them is
    # stopped, nobody can tell which. What is broadcast here is small.
    if comm.rank != root:
        request = comm.Irecv(buffer, root, BROADCAST_TAG)
        wait(request.Test, timeout, lambda: f"rank {root} to say the result")
        return
    requests = {
        rank: comm.Isend(buffer, rank, BROADCAST_TAG)
        for rank in range(comm.size)
        if rank != root
    }
    for rank, request in requests.items():
        wait(
            request.Test,
            timeout,
            lambda rank=rank: f"rank {rank} to take the result",
        )


def broadcast_object(comm: MPI.Comm, value: Any, root: int, timeout: float) -> Any:
    """Returns ``root``'s ``value`` on every rank; any picklable object."""
    data = bytearray(pickle.dumps(value) if comm.rank == root else b"")
    size = np.array([len(data)], dtype=np.int64)
    broadcast(comm, size, root, timeout)
    if comm.rank != root:
        data = bytearray(int(size[0]))
    broadcast(comm, np.frombuffer(data, dtype=np.uint8), root, timeout)
    return pickle.loads(data)


def clock_offsets(comm: MPI.Comm, timeout: float) -> list[float]:
    """Returns, for each rank, how far its clock is ahead of rank 0's, in seconds.

    Ranks on one host share ``time.perf_counter``; on several hosts it starts anywhere.
    Each rank's clock is read halfway through a message to it and back; the fastest of
    several exchanges is the one least disturbed.
    """
    n_exchanges = 8
    clock = np.empty(1)

    def receive(source: int) -> float:
        request = comm.Irecv(clock, source, CLOCK_TAG)
        wait(request.Test, timeout, lambda: f"rank {source} to tell its clock")
        return clock[0]

    def send(destination: int) -> None:
        request = comm.Isend(np.array([time.perf_counter()]), destination, CLOCK_TAG)
        wait(request.Test, timeout, lambda: f"rank {destination} to read its clock")

    offsets = np.zeros(comm.size)
    if comm.rank == 0:
        for rank in range(1, comm.size):
            exchanges = []
            for _ in range(n_exchanges):
                start = time.perf_counter()
                send(rank)
                theirs = receive(rank)
                end = time.perf_counter()
                exchanges.append((end - start, theirs - (start + end) / 2))
            offsets[rank] = min(exchanges)[1]
    else:
        for _ in range(n_exchanges):
            receive(0)
            send(0)
    broadcast(comm, offsets, 0, timeout)
    return offsets.tolist()


def _everyone(comm: MPI.Comm, purpose: str) -> str:
    return f"all {comm.size} ranks {purpose} (rank {comm.rank} is here)"


def abort(code: int = 1) -> None:
    """Ends all ranks; at any rate this one.

    Args:
        code (int): The exit code.
    """
    # MPI's abort asks mpiexec to end the ranks, and waits. Behind a link that is cut
    # nobody answers. It holds Python's lock meanwhile, so no thread of Python's own
    # could end this.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    faulthandler.dump_traceback_later(_ABORT_SECONDS, exit=True, file=nowhere)
    MPI.COMM_WORLD.Abort(code)
    os._exit(code)


def let_lower_ranks_speak() -> None:
    """Waits, on other ranks than 0, until lower ones have ended this one, if they do.

    So what goes wrong on every rank alike is said once.
    """
    time.sleep(min(MPI.COMM_WORLD.rank, 2) * _SECONDS_TO_WAIT_FOR_LOWER_RANKS)


def is_world_up() -> bool:
    """Returns whether there are other ranks to end."""
    return MPI.Is_initialized() and not MPI.Is_finalized() and MPI.COMM_WORLD.size > 1


def end_all_ranks(what: str, report: Callable[[], None], code: int = 1) -> None:
    """Says why on this rank, and ends all.

    Args:
        what (str): What this rank does, after its name.
        report: Prints the rest.
        code (int): The exit code.
    """
    world = MPI.COMM_WORLD
    sys.stdout.flush()
    where = f"rank {world.rank} of {world.size} on {socket.gethostname()}"
    sys.stderr.write(f"\n{where} {what} and ends all ranks:\n")
    report()
    sys.stderr.flush()
    # mpiexec drops what it has not read yet when a rank aborts.
    time.sleep(0.5)
    abort(code)


def abort_on_error() -> None:
    """Makes an uncaught exception on one rank end all ranks.

    Without it a rank that fails leaves the others waiting for its messages. The
    traceback is printed with the rank and host it comes from; an error that every
    rank raises alike is printed once. :class:`~pipeline.Pipeline` calls this; call
    it at the top of a script to cover what comes before, or start the script as
    ``python -m pipeline script.py``.

    ``sys.exit`` is no exception in this sense. The other ranks end, with an error, as
    soon as they wait for this one in a later call of a pipeline; under
    ``python -m pipeline`` at once, if the exit code is not 0.

    Example:
        >>> import sys
        >>> from pipeline import abort_on_error
        >>> hook = sys.excepthook
        >>> abort_on_error()
        >>> sys.excepthook = hook
    """
    if MPI.COMM_WORLD.size > 1 and not isinstance(sys.excepthook, _AbortHook):
        sys.excepthook = _AbortHook(sys.excepthook)


class _AbortHook:
    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report

    def __call__(self, kind: type, error: BaseException, trace: Any) -> None:
        # MPI may be finalized already; then there is nobody left to stop.
        if is_world_up():
            # Who waits for a rank in vain says so at once: one that waits for the one
            # that waits has less to say.
            if not isinstance(error, StallError):
                let_lower_ranks_speak()
            end_all_ranks("failed", lambda: self._report(kind, error, trace))
        self._report(kind, error, trace)
