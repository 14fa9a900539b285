"""A multi-layer perceptron that is divided among unequal ranks."""

from __future__ import annotations

import time
from typing import Any, Callable

import chainer
import chainer.functions as F
import numpy as np
from chainer.backends import cuda

from divisible.communication.aborting import abort_on_error
from divisible.communication.agreement import agree
from divisible.communication.collectives import as_mpi
from divisible.communication.communicators import (
    announcement,
    duplicate,
    free_dropped,
)
from divisible.communication.errors import TIMEOUT, check_timeout
from heterogeneous import arguments, remapping
from heterogeneous.calls import Calls
from heterogeneous.messages import Messages
from heterogeneous.moved_units import transfers
from heterogeneous.partition import RectangularPartition
from heterogeneous.step_seconds import StepSeconds
from heterogeneous.sums import (
    column_sum,
    segments,
    sum_between_columns,
    sum_of_columns,
    tell_columns,
)
from heterogeneous.units import Block, initial

_PURPOSE = "to make the network"


class RectangularMLP(chainer.Chain):
    """One hidden layer on unequal ranks: ``h(x) = out_activation(V activation(W x))``.

    Each rank has a rectangle of the partition: it computes some hidden units for some
    samples. Create and call the network on all ranks. ::

        forward    outputs are added up within a column, equation (2) of Ozawa et al.
        backward   gradients of a unit are added up between the columns that compute it

    Sums are made in the same order on all ranks. So copies of a unit stay equal bit for
    bit, if the optimizer treats each element by itself. With hooks that need a whole
    array or draw random numbers, such as gradient clipping by norm, LARS or gradient
    noise, the copies would differ. Losses and weights are those of the network on one
    rank, up to the order of additions.

    Args:
        n_in (int): Number of inputs.
        n_hidden (int): Number of hidden units.
        n_out (int): Number of outputs.
        comm: A ChainerMN communicator or an mpi4py one.
        partition (RectangularPartition): Partition for as many processors as there are
            ranks; processor i is rank i.
        activation: A Chainer function that treats hidden units one by one.
        out_activation: Activation of the outputs; ``chainer.functions.identity`` for
            losses that include one.
        lossfun: Loss ``lossfun(h, t)``, a mean over samples; ``None`` for half the sum
            of squares of each. The paper sums over samples: equations (5) and (6) are
            ``SGD(lr=epsilon * s)``.
        nobias (bool): Whether there are no biases, as in the paper.
        seed (int): Seed of the initial weights, which do not depend on the partition.
        dtype: Dtype of the weights, ``numpy.float32`` or ``numpy.float64``.
        timeout (float): Seconds that a wait for another rank may take.

    Attributes:
        W: Input weights of this rank's units, of shape (units, n_in).
        V: Output weights of this rank's units, of shape (n_out, units).
        b: Biases of this rank's units, of shape (units,), unless ``nobias``.
        c: The outputs' biases, of shape (n_out,), on every rank, unless ``nobias``.
        comm (mpi4py.MPI.Comm): Communicator of the network's own messages.
        partition: The present partition.
        seconds (StepSeconds): Seconds of the parts of the last step.
        sent_bytes (int): Bytes that this rank sent in the last call.

    Raises:
        TypeError, ValueError: If an argument is wrong.
        DisagreementError: If another rank's arguments are wrong, or differ.
        StallError: If another rank does not come.

    Example:
        >>> from mpi4py import MPI
        >>> from heterogeneous import rectangular_partition
        >>> partition = rectangular_partition([1.0], 3, 4, 2, 10)
        >>> mlp = RectangularMLP(3, 4, 2, MPI.COMM_SELF, partition)
        >>> optimizer = chainer.optimizers.SGD(1.0).setup(mlp)
        >>> x, t = np.ones((10, 3), 'f'), np.zeros((10, 2), 'f')
        >>> before = mlp.step(x, t)['loss']
        >>> optimizer.update()
        >>> mlp.step(x, t)['loss'] < before
        True
    """

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        n_out: int,
        comm: Any,
        partition: RectangularPartition,
        *,
        activation: Callable = F.sigmoid,
        out_activation: Callable = F.sigmoid,
        lossfun: Callable | None = None,
        nobias: bool = True,
        seed: int = 0,
        dtype: Any = np.float32,
        timeout: float = TIMEOUT,
    ) -> None:
        super().__init__()
        abort_on_error()
        users_comm = as_mpi(comm)
        refusal, given = None, {}
        try:
            sizes = arguments.check_network(
                n_in, n_hidden, n_out, partition, users_comm.size
            )
            seed, dtype = arguments.check_weights(seed, dtype)
            check_timeout(timeout)
            given = {
                "n_in, n_hidden, n_out": sizes,
                "seed": seed,
                "dtype": dtype.name,
                "nobias": bool(nobias),
                "activation": arguments.name_of(activation),
                "out_activation": arguments.name_of(out_activation),
                "lossfun": lossfun and arguments.name_of(lossfun),
                **arguments.description(partition),
            }
        except (TypeError, ValueError) as error:
            refusal = error
        said = agree(users_comm, given, refusal, timeout, _PURPOSE, announcement())
        self.comm = duplicate(users_comm, timeout, self, free_dropped(said), _PURPOSE)
        self._calls = Calls(self.comm, timeout)
        self._messages = Messages(self.comm, timeout)
        self._activation, self._out_activation = activation, out_activation
        self._lossfun = _half_squares if lossfun is None else lossfun
        self._takes_any_targets = lossfun is not None
        self._place(partition)
        self.sent_bytes = 0
        self.seconds = StepSeconds(0.0, 0.0, 0.0, 0.0)
        drawn = initial(seed, self._rectangle.units, *sizes, dtype)
        with self.init_scope():
            for name, values in drawn.items():
                if name != "b" or not nobias:
                    setattr(self, name, chainer.Parameter(values))
            if not nobias:
                self.c = chainer.Parameter(np.zeros(sizes[-1], dtype))
        self._sizes, self._dtype = sizes, dtype

    @property
    def _rectangle(self) -> Any:
        return self.partition.rectangles[self.comm.rank]

    @property
    def _names(self) -> list[str]:
        """Names of the parameters that are divided among ranks."""
        return ["W", "V"] if self._is_unbiased else ["W", "V", "b"]

    @property
    def _is_unbiased(self) -> bool:
        return not hasattr(self, "c")

    def step(self, x: Any, t: Any) -> dict[str, float]:
        """Computes forward and backward, with all samples; a call of all ranks.

        Args:
            x: All samples, on every rank, of shape (s, n_in). Each rank computes with
                its own samples. If the number of samples is not the partition's, they
                are divided in the same ratio.
            t: All targets, on every rank; of shape (s, n_out) without a ``lossfun``.

        Returns:
            ``'loss'``, the mean over all samples, on every rank. The gradients of that
            mean are left in the parameters; they need not be cleared before.

        Raises:
            TypeError, ValueError: If an argument is wrong.
            DisagreementError: If an argument is wrong on another rank, or the arguments
                differ between ranks.
            StallError: If another rank does not come.
        """
        with self._calls.guarded():
            ranges = self._begin("step", x, t)
            column = self._rectangle.column
            start, stop = ranges[column]
            begin = time.perf_counter()
            partial = self._partial(x[start:stop])
            forward = time.perf_counter() - begin
            self._calls.finish()
            begin = time.perf_counter()
            summed = self._column_sum(partial.array)
            vertical = time.perf_counter() - begin - summed.late
            begin = time.perf_counter()
            outputs = chainer.Variable(self.device.send(summed.total))
            self.cleargrads()
            loss = self._lossfun(self._finish(outputs), self.device.send(t[start:stop]))
            arguments.check_loss(loss)
            loss = loss * ((stop - start) / len(x))
            forward += time.perf_counter() - begin
            begin = time.perf_counter()
            loss.backward()
            partial.grad = outputs.grad
            partial.backward()
            backward = time.perf_counter() - begin
            begin = time.perf_counter()
            mean = self._sum_gradients(loss)
            horizontal = time.perf_counter() - begin
            parts = forward, vertical, backward, horizontal, summed.late
            self.seconds = StepSeconds(*parts)
            self._end()
        return {"loss": mean}

    def predict(self, x: Any) -> Any:
        """Returns the outputs for samples, on every rank; a call of all ranks.

        Args:
            x: The samples, on every rank, of shape (samples, n_in).

        Returns:
            An array of shape (samples, n_out).

        Raises:
            TypeError, ValueError: If ``x`` is wrong.
            DisagreementError: If ``x`` is wrong on another rank, or differs there.
            StallError: If another rank does not come.
        """
        with self._calls.guarded():
            ranges = self._begin("predict", x)
            self._calls.finish()
            start, stop = ranges[self._rectangle.column]
            results = np.empty((len(x), self._sizes[-1]), self._dtype)
            if start < stop:
                with chainer.no_backprop_mode(), chainer.using_config("train", False):
                    partial = self._partial(x[start:stop])
                    total = self._column_sum(partial.array).total
                    own = self._finish(chainer.Variable(self.device.send(total)))
                results[start:stop] = cuda.to_cpu(own.array)
            tell_columns(self._messages, self.partition, results, ranges)
            self._end()
        return self.device.send(results)

    def gather(self) -> dict[str, Any]:
        """Returns all weights, on every rank; a call of all ranks.

        Returns:
            ``'W'`` of shape (n_hidden, n_in), ``'V'`` of (n_out, n_hidden), and with
            biases ``'b'`` of (n_hidden,) and ``'c'`` of (n_out,).

        Raises:
            StallError: If another rank does not come.
        """
        with self._calls.guarded():
            self._calls.begin("gather", [], None)
            self._calls.finish()
            arrays = [getattr(self, name).array for name in self._names]
            found = remapping.gathered(
                self._messages, self.partition, self._names, arrays
            )
            result = dict(zip(self._names, found))
            if not self._is_unbiased:
                result["c"] = self.c.array.copy()
            self._end()
        return result

    def remap(self, partition: RectangularPartition, *, optimizer: Any = None) -> None:
        """Replaces the partition by another one; a call of all ranks.

        Only hidden units that a rank lacks travel, with their optimizer states.
        Gradients are dropped.

        Args:
            partition: New partition, of the same processors and hidden units.
            optimizer: Optimizer of this network, if it has one; see
                :class:`~heterogeneous.Remapper` for the kinds that can be used.

        Raises:
            TypeError, ValueError: If an argument is wrong.
            DisagreementError: If an argument is wrong on another rank, or the arguments
                differ between ranks.
            StallError: If another rank does not come.
        """
        with self._calls.guarded():
            refusal, words, states = None, [], []
            try:
                arguments.check_network(*self._sizes, partition, self.comm.size)
                if optimizer is not None:
                    arguments.check_optimizer(optimizer, self)
                states = remapping.states_of(self, self._names)
                words = [
                    *(f"{k}={v}" for k, v in arguments.description(partition).items()),
                    *(f"{state.name} of {state.of}" for state in states),
                ]
            except (TypeError, ValueError) as error:
                refusal = error
            self._calls.begin("remap", words, refusal)
            self._calls.finish()
            remapping.remap(
                self._messages,
                transfers(self.partition, partition),
                self._rectangle.units,
                partition.rectangles[self.comm.rank].units,
                [*((getattr(self, name), name) for name in self._names)],
                states,
            )
            self._place(partition)
            self._end()

    def close(self) -> None:
        """Frees the communicator; a call of all ranks."""
        self._calls.close()

    def _place(self, partition: RectangularPartition) -> None:
        self.partition, self._segments = partition, segments(partition)
        # Keyed by numbers of samples, which are the same in nearly every step.
        self._ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def _begin(self, call: str, x: Any, *targets: Any) -> list[tuple[int, int]]:
        """Begins a call with samples, and returns the range of each column."""
        refusal, words = None, []
        try:
            arguments.check_samples(x, self._sizes[0], self._dtype)
            least = 0
            if targets:
                shape = None if self._takes_any_targets else self._sizes[-1]
                arguments.check_targets(targets[0], len(x), shape)
                arguments.check_enough(len(x), self.partition)
                least = 1
            words = [f"x of {len(x)} samples"]
        except (TypeError, ValueError) as error:
            refusal = error
        self._calls.begin(call, words, refusal)
        key = len(x), least
        if key not in self._ranges:
            self._ranges = {key: self.partition.samples_of(*key)}
        return self._ranges[key]

    def _end(self) -> None:
        self.sent_bytes, self._messages.sent_bytes = self._messages.sent_bytes, 0

    def _partial(self, x: Any) -> chainer.Variable:
        """Returns this rank's part of the sum in equation (2), for its samples."""
        bias = None if self._is_unbiased else self.b
        hidden = self._activation(F.linear(self.device.send(x), self.W, bias))
        return F.linear(hidden, self.V)

    def _finish(self, outputs: chainer.Variable) -> chainer.Variable:
        """Returns the outputs of the network for sums over a column."""
        if not self._is_unbiased:
            outputs = F.bias(outputs, self.c)
        return self._out_activation(outputs)

    def _column_sum(self, partial: Any) -> Any:
        own = np.ascontiguousarray(cuda.to_cpu(partial))
        return column_sum(self._messages, self.partition, own)

    def _sum_gradients(self, loss: chainer.Variable) -> float:
        """Adds up gradients over the columns, and returns the sum of their losses."""
        grads = [getattr(self, name).grad for name in self._names]
        block = Block(self._names, grads, self._rectangle.units[0])
        sum_between_columns(self._messages, self._segments, block)
        small = np.zeros(1 if self._is_unbiased else 1 + self._sizes[-1])
        small[0] = float(loss.array)
        if not self._is_unbiased:
            small[1:] = cuda.to_cpu(self.c.grad)
        small = sum_of_columns(self._messages, self.partition, small)
        if not self._is_unbiased:
            self.c.grad = self.device.send(small[1:].astype(self._dtype))
        return float(small[0])


def _half_squares(h: chainer.Variable, t: Any) -> chainer.Variable:
    """Returns half of the sum over outputs of squared errors, mean over samples."""
    difference = h - t
    return F.sum(difference * difference) * (0.5 / len(t))
