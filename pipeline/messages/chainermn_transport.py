"""ChainerMN's send and receive as a transport, to measure against.

Every send blocks until it is received, each array is described anew in a pickled
message of its own, and float16 travels as float32. It understands what
:class:`divisible.communication.transport.Transport` does: the same schedules run on it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import chainermn
from mpi4py import MPI

from divisible.communication.aborting import abort
from divisible.communication.signatures import Tensor, signature


class ChainerMNTransport:
    """Channels over a ChainerMN communicator.

    Args:
        comm (mpi4py.MPI.Comm): May carry other messages as well, with other tags.
        timeout (float): Seconds a send or receive may block. ChainerMN cannot be
            interrupted, so a longer one ends all ranks.
    """

    rendezvous = True

    def __init__(self, comm: MPI.Comm, timeout: float) -> None:
        self.comm = chainermn.create_communicator("naive", comm)
        self.timeout = timeout
        # ChainerMN cannot look up while it waits.
        self.watch = lambda: None

    def sender(self, channel: int, peer: int) -> _Channel:
        """Returns this rank's end of a channel that leads to rank ``peer``."""
        return _Channel(self, channel, peer)

    receiver = sender

    def look(self) -> None:
        """Does nothing: what is sent is waited for."""

    def flush(self) -> None:
        """Does nothing: what was sent has been received."""


class _Channel:
    def __init__(self, transport: ChainerMNTransport, channel: int, peer: int) -> None:
        self._comm = transport.comm
        self._timeout = transport.timeout
        self._tag = channel
        self._peer = peer

    def send(self, microbatch: int, message: Sequence[Tensor]) -> None:
        with self._deadline(f"rank {self._peer} to receive microbatch {microbatch}"):
            self._comm.send_obj(signature(message), self._peer, self._tag)
            for tensor in message:
                if tensor.array is not None:
                    self._comm.send(tensor.array, self._peer, self._tag)

    def post(self, microbatch: int) -> None:
        pass  # ChainerMN allocates when a message arrives.

    def close(self) -> None:
        pass  # There is nothing to free.

    def receive(self, microbatch: int, waiting: str) -> tuple[Tensor, ...]:
        with self._deadline(f"what rank {self._peer} sends, to run {waiting}"):
            specs = self._comm.recv_obj(self._peer, tag=self._tag)
            return tuple(
                Tensor(
                    None
                    if spec.shape is None
                    else self._comm.recv(self._peer, self._tag)
                    .reshape(spec.shape)
                    .astype(spec.dtype, copy=False),
                    spec.requires_grad,
                )
                for spec in specs
            )

    @contextmanager
    def _deadline(self, waiting_for: str) -> Iterator[None]:
        def give_up() -> None:
            sys.stderr.write(
                f"\nrank {self._comm.rank} waited {self._timeout:.0f} s for"
                f" {waiting_for}, and ends all ranks\n"
            )
            sys.stderr.flush()
            # A rank that waits for this one may have noticed first; the one that
            # waits for the culprit says so as well.
            time.sleep(0.5)
            abort()

        timer = threading.Timer(self._timeout, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
