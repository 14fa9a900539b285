"""ChainerMN: the paper's own means, and a transport to measure against.

:func:`send_data` and the three after it let the loop of Takisawa et al. (2022, Fig. 4)
run as printed. :class:`ChainerMNTransport` carries the messages of any schedule. Every
send blocks until it is received, each array is described anew in a pickled message of
its own, and float16 travels as float32. It understands what
:class:`divisible.communication.transport.Transport` does: the same schedules run on it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import chainer
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


def send_data(comm: Any, y: chainer.Variable, dest: int) -> None:
    """Sends the output of a stage to the rank of the next one.

    Blocks until the receiver has it.

    Args:
        comm: A ChainerMN communicator.
        y (chainer.Variable or array or tuple of them): The output.
        dest (int): The rank of the next stage.
    """
    comm.send(_map(lambda variable: chainer.as_variable(variable).array, y), dest, 0)


def recv_data(comm: Any, x: chainer.Variable | None, source: int) -> chainer.Variable:
    """Receives the input of a stage from the rank of the one before.

    Args:
        comm: A ChainerMN communicator.
        x (chainer.Variable or None): The variable to put it in; ``None`` for a new
            one, as in the paper.
        source (int): The rank of the stage before.

    Returns:
        chainer.Variable or tuple of them: The input, a leaf of the stage's graph.
        What was sent as float16 arrives as float32.
    """
    received = comm.recv(source, 0)
    if x is None:
        return _map(chainer.Variable, received)
    x.array = received
    return x


def send_grad(comm: Any, x: chainer.Variable, dest: int) -> None:
    """Sends the gradient of a stage's input to the rank of the stage before.

    Args:
        comm: A ChainerMN communicator.
        x (chainer.Variable or tuple of them): The input, after ``backward``.
        dest (int): The rank of the stage before.

    Raises:
        ValueError: If ``x`` has no gradient; nothing is sent then.
    """

    def gradient(variable: chainer.Variable) -> Any:
        if variable.grad is None:
            raise ValueError(
                f"rank {comm.rank}: the stage's input of shape {variable.shape} has no"
                f" gradient to send to rank {dest}. Has backward been called, and does"
                f" the stage's output depend on its input?"
            )
        return variable.grad

    comm.send(_map(gradient, x), dest, 0)


def recv_grad(comm: Any, y: chainer.Variable, source: int) -> chainer.Variable:
    """Receives the gradient of a stage's output from the rank of the next stage.

    Args:
        comm: A ChainerMN communicator.
        y (chainer.Variable or tuple of them): The output whose gradient it is.
        source (int): The rank of the next stage.

    Returns:
        ``y``, with its ``grad`` set, ready for ``y.backward()``.
    """
    received = comm.recv(source, 0)
    if isinstance(y, tuple):
        for variable, gradient in zip(y, received):
            variable.grad = gradient.astype(variable.dtype, copy=False)
    else:
        y.grad = received.astype(y.dtype, copy=False)
    return y


def _map(function: Any, values: Any) -> Any:
    if isinstance(values, (tuple, list)):
        return tuple(map(function, values))
    return function(values)
