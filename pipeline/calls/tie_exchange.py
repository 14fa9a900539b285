"""Exchanges gradients of parameters that layers in several stages share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import chainer
import numpy as np
from mpi4py import MPI

from divisible import Divisible
from divisible.communication.busy import free
from divisible.communication.communicators import duplicate
from divisible.communication.signatures import Tensor, TensorSpec
from divisible.communication.transport import Receiver, Sender, Transport


class SharedParameter(NamedTuple):
    """A parameter of which several stages have a copy.

    Attributes:
        path: Path of the parameter in the model.
        stages: Stages with a copy, from first to last.
    """

    path: str
    stages: tuple[int, ...]


class _Tie(NamedTuple):
    """One rank's part in a shared parameter."""

    path: str
    copies: Sequence[chainer.Parameter]
    is_owner: bool
    senders: Sequence[Sender]
    receivers: Sequence[Receiver]


class TieExchange:
    """Adds up the gradients of shared parameters after each minibatch.

    The rank of a parameter's first stage is its owner. It adds the gradients in the
    order of the ranks and sends the sum back, so that all copies get the same bits::

        rank 0 (owner)   g0 -----> g = (g0 + g2) + g3 ---->  g
        rank 2           g2 ----'                     '--->  g
        rank 3           g3 ---'                       '-->  g

    Args:
        shared: The shared parameters.
        stages: This rank's stages, by their position in the pipeline.
        stage_ranks: Rank of each stage.
        comm (mpi4py.MPI.Comm): Communicator of all ranks of the pipeline; it is
            duplicated.
        timeout (float): Longest wait, in seconds.
        watch: Called while this rank waits; may raise an error to end the wait.
        name (str): Name of the pipeline, for the duplicate.
    """

    def __init__(
        self,
        shared: Sequence[SharedParameter],
        stages: Mapping[int, Divisible],
        stage_ranks: Sequence[int],
        comm: MPI.Comm,
        timeout: float,
        watch: Callable[[], None],
        name: str,
    ) -> None:
        self._comm = duplicate(comm, timeout, self, name)
        device = next(iter(stages.values())).device
        self._transport = Transport(self._comm, timeout, device.xp)
        self._transport.watch = watch
        params = {number: dict(part.namedparams()) for number, part in stages.items()}
        self._ties = []
        # Gradients averaged over replicas in this step, as far as they were shared, by
        # path.
        self._means: dict[str, Any] = {}
        for tag, (path, numbers) in enumerate(shared):
            ranks = sorted({stage_ranks[number] for number in numbers})
            owner = stage_ranks[numbers[0]]
            if comm.rank not in ranks:
                continue
            copies = [params[number][path] for number in numbers if number in params]
            others = [rank for rank in ranks if rank != owner]
            peers = others if comm.rank == owner else [owner]
            senders = [self._transport.sender(tag, peer) for peer in peers]
            receivers = [self._transport.receiver(tag, peer) for peer in peers]
            array = copies[0].array
            for end in (*senders, *receivers):
                end.agree((TensorSpec(array.shape, array.dtype.str, None),))
            is_owner = comm.rank == owner
            self._ties.append(_Tie(path, copies, is_owner, senders, receivers))
        with chainer.using_device(device):
            self._share_values()

    def _share_values(self) -> None:
        """Gives every copy the value of the first one, because seeds may differ."""
        for tie in self._ties:
            if tie.is_owner:
                value = tie.copies[0].array
                for sender in tie.senders:
                    sender.send(0, (Tensor(value),))
            else:
                value = _receive(tie.receivers[0], tie.path)
            for copy in tie.copies:
                copy.array[...] = value
        self._transport.flush()

    def params(self) -> Iterator[chainer.Parameter]:
        """Yields this rank's copies of shared parameters."""
        for tie in self._ties:
            yield from tie.copies

    def add_up(self) -> None:
        """Replaces every copy's gradient by the sum over all copies.

        Raises:
            StallError: If another rank does not answer in time.
        """
        self._means.clear()
        for tie in self._ties:
            if not tie.is_owner:
                tie.senders[0].send(0, (Tensor(_sum(tie.copies)),))
        # Not in the same loop: a rank may own one parameter and have a copy of another.
        for tie in self._ties:
            if tie.is_owner:
                total = _sum(tie.copies)
                for receiver in tie.receivers:
                    total = _add(total, _receive(receiver, tie.path))
                for sender in tie.senders:
                    sender.send(0, (Tensor(total),))
                _set(tie.copies, total)
        for tie in self._ties:
            if not tie.is_owner:
                _set(tie.copies, _receive(tie.receivers[0], tie.path))
        # The optimizer may change gradients in place.
        self._transport.flush()

    def share_gradients(self, averaged: Iterable[chainer.Parameter]) -> None:
        """Gives every copy the owner's gradient, once replicas have averaged it.

        Replicas average gradients stage by stage, and the results may differ: codes for
        messages depend on the other gradients of a stage, and the order of a sum
        depends on the stage's hosts.

        This is called for each optimizer, before it changes gradients in place. Each
        gradient is sent once per step: the owner sends it after it has averaged it, and
        the other ranks receive it after they have averaged theirs.

        Args:
            averaged: The parameters of an optimizer.

        Raises:
            StallError: If another rank does not answer in time.
        """
        known = {id(param) for param in averaged}
        waiting = []
        for tie in self._ties:
            here = [copy for copy in tie.copies if id(copy) in known]
            if not here:
                continue
            if tie.path in self._means:
                # Another optimizer of this rank has received the gradient already.
                _set(here, self._means[tie.path])
            elif tie.is_owner:
                gradient = here[0].grad
                for sender in tie.senders:
                    sender.send(0, (Tensor(gradient),))
                self._share(tie, gradient)
            else:
                waiting.append(tie)
        # Not in the same loop: a rank may own one parameter and have a copy of another.
        for tie in waiting:
            self._share(tie, _receive(tie.receivers[0], tie.path))
        self._transport.flush()

    def _share(self, tie: _Tie, gradient: Any) -> None:
        """Gives this rank's copies a mean gradient; keeps it for later optimizers."""
        # An optimizer changes the gradient of its own copy in place.
        several = len(tie.copies) > 1 and gradient is not None
        self._means[tie.path] = gradient.copy() if several else gradient
        others = [copy for copy in tie.copies if copy.grad is not gradient]
        _set(others, self._means[tie.path])

    def close(self) -> None:
        """Frees the communicator."""
        for tie in self._ties:
            for receiver in tie.receivers:
                receiver.close()
        free(self._comm)


def _receive(receiver: Receiver, path: str) -> Any:
    receiver.post(0)
    ((array, *_),) = receiver.receive(0, f"the copies of {path}")
    return array


def _add(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    # Sums of float16 are rounded once, when they are put into a gradient.
    return a + b if a.dtype != np.float16 else a.astype(np.float32) + b


def _sum(copies: Sequence[chainer.Parameter]) -> Any:
    total = None
    for copy in copies:
        total = _add(total, copy.grad)
    return total


def _set(copies: Sequence[chainer.Parameter], gradient: Any) -> None:
    for copy in copies:
        if gradient is None:
            copy.grad = None
        elif copy.grad is None:
            copy.grad = gradient.astype(copy.dtype)
        else:
            # An overflow becomes infinity, which loss scaling looks for.
            with np.errstate(over="ignore"):
                copy.grad[...] = gradient
