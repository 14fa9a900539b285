"""The paper's own communication: one array at a time over ChainerMN (its Fig. 4).

These four functions let the loop of Takisawa et al. run as printed. ChainerMN sends
synchronously, describes every message anew, and widens float16 to float32 on the
wire; :class:`~pipeline.Pipeline` does none of this. They are kept as the reference.
"""

from __future__ import annotations

from typing import Any

import chainer


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
