"""ChainerMN: the paper's own functions, and a transport to measure against.

With :func:`send_data` and the three functions after it, the loop of Takisawa et al.
(2022, Fig. 4) runs as printed. :class:`ChainerMNTransport` carries the messages of any
schedule. Every send blocks until it is received, each array is described in a pickled
message of its own, and float16 travels as float32. Dtypes that ChainerMN does not know
are sent as bytes. The transport has the methods of
:class:`divisible.communication.transport.Transport`, so the same schedules run on it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import chainer
import chainermn
import numpy as np
from mpi4py import MPI

from divisible.communication.aborting import end_all_ranks
from divisible.communication.signatures import Tensor, TensorSpec, signature

# Dtypes that ChainerMN sends.
_SENT = tuple(map(np.dtype, ("int32", "int64", "float16", "float32", "float64")))


class ChainerMNTransport:
    """Channels over a ChainerMN communicator.

    Args:
        comm (mpi4py.MPI.Comm): Communicator, which may carry other messages with other
            tags.
        timeout (float): Longest time that a send or receive may block, in seconds. A
            longer one ends all ranks, because ChainerMN cannot be interrupted.
    """

    rendezvous = True

    def __init__(self, comm: MPI.Comm, timeout: float) -> None:
        self.comm = chainermn.create_communicator("naive", comm)
        self.timeout = timeout
        # ChainerMN cannot poll while it waits.
        self.watch = lambda: None

    def sender(self, channel: int, peer: int) -> _Channel:
        """Returns this rank's end of a channel to rank ``peer``."""
        return _Channel(self, channel, peer)

    receiver = sender

    def look(self) -> None:
        """Does nothing, because every send is waited for."""

    def note_size(self, most_bytes: int) -> None:
        """Does nothing, because there are no polls."""

    def flush(self, peers: Container[int] | None = None) -> None:
        """Does nothing, because sent messages have been received."""


class _Channel:
    def __init__(self, transport: ChainerMNTransport, channel: int, peer: int) -> None:
        self._comm = transport.comm
        self._timeout = transport.timeout
        self._tag = channel
        self._peer = peer

    def send(self, microbatch: int, message: Sequence[Tensor]) -> None:
        with self._deadline(f"rank {self._peer} to receive microbatch {microbatch}"):
            specs = signature(message)
            self._comm.send_obj(specs, self._peer, self._tag)
            for tensor, spec in zip(message, specs):
                if tensor.array is not None:
                    packed = _packed(spec.in_memory(tensor.array))
                    self._comm.send(packed, self._peer, self._tag)

    def find_shapes(self, sizes: Sequence[int]) -> str:
        return "ChainerMN describes each message"

    def expect(self, n_microbatches: int, n_samples: int) -> None:
        pass  # Each message is described.

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
                    else _unpacked(self._comm.recv(self._peer, self._tag), spec),
                    spec.requires_grad,
                    spec.key,
                )
                for spec in specs
            )

    @contextmanager
    def _deadline(self, waiting_for: str) -> Iterator[None]:
        def give_up() -> None:
            # A rank that waits for this one may have noticed first. The rank that waits
            # for the slow one reports it as well.
            what = f"waited {self._timeout:.0f} s for {waiting_for}"
            end_all_ranks(what, lambda: None)

        timer = threading.Timer(self._timeout, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _packed(array: np.ndarray) -> np.ndarray:
    """Returns the array, or its bytes in a dtype that ChainerMN sends."""
    if array.dtype in _SENT:
        return array
    content = np.frombuffer(array.tobytes(), np.uint8)
    return np.pad(content, (0, -len(content) % 4)).view(np.int32)


def _unpacked(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Returns the array before :func:`_packed`."""
    dtype = np.dtype(spec.dtype)
    if dtype not in _SENT:
        n_bytes = math.prod(spec.shape) * dtype.itemsize
        array = array.view(np.uint8)[:n_bytes].view(dtype)
    array = array.reshape(spec.shape_in_memory).astype(dtype, copy=False)
    return spec.received(array)


def send_data(comm: Any, y: chainer.Variable, dest: int) -> None:
    """Sends the output of a stage to the rank of the next one.

    The call blocks until the receiver has the output.

    Args:
        comm: A ChainerMN communicator.
        y (chainer.Variable or array or tuple of them): The output.
        dest (int): Rank of the next stage.

    Raises:
        TypeError: If ChainerMN does not send the dtype, or the arrays have several
            dtypes. Nothing is sent then.
    """
    _send(comm, _map(lambda variable: chainer.as_variable(variable).array, y), dest)


def recv_data(comm: Any, x: chainer.Variable | None, source: int) -> chainer.Variable:
    """Receives the input of a stage from the rank of the one before.

    Args:
        comm: A ChainerMN communicator.
        x (chainer.Variable or None): Variable for the input; ``None`` for a new one, as
            in the paper.
        source (int): Rank of the stage before.

    Returns:
        chainer.Variable or tuple of them: The input, a leaf of the stage's graph. An
        input sent as float16 arrives as float32.
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
        dest (int): Rank of the stage before.

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

    _send(comm, _map(gradient, x), dest)


def recv_grad(comm: Any, y: chainer.Variable, source: int) -> chainer.Variable:
    """Receives the gradient of a stage's output from the rank of the next stage.

    Args:
        comm: A ChainerMN communicator.
        y (chainer.Variable or tuple of them): The output that the gradient belongs to.
        source (int): Rank of the next stage.

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


def _send(comm: Any, arrays: Any, dest: int) -> None:
    several = arrays if isinstance(arrays, tuple) else (arrays,)
    dtypes = list({str(array.dtype): array.dtype for array in several}.values())
    if len(dtypes) > 1 or any(dtype not in _SENT for dtype in dtypes):
        names = " and ".join(map(str, dtypes))
        raise TypeError(
            f"rank {comm.rank}: ChainerMN does not send {names} to rank {dest}:"
            f" it sends arrays of one of the dtypes"
            f" {', '.join(map(str, _SENT))}. Convert them with astype, or use a"
            f" Pipeline, which sends all"
        )
    comm.send(arrays, dest, 0)


def _map(function: Any, values: Any) -> Any:
    if isinstance(values, (tuple, list)):
        return tuple(map(function, values))
    return function(values)
