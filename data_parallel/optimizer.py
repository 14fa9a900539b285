"""An optimizer whose gradients are means over replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import chainer
import numpy as np

from data_parallel.exchange import Exchange
from data_parallel.late_gradients import LateGradients, Looks
from data_parallel.parameters import (
    Exempt,
    NamedParameter,
    is_exempt,
    parameters_of,
    specs_of_gradients,
)
from data_parallel.replica_agreement import (
    check_values,
    description,
    differing,
    give_values_of_rank_0,
)
from divisible.optimizer_wrapper import OptimizerWrapper


def create_multi_node_optimizer(
    actual_optimizer: Any,
    communicator: Any,
    double_buffering: bool = False,
    zero_fill: bool = True,
    *,
    wire_dtype: str = "fp32",
    strategy: str = "two_roundings",
    exempt: Exempt = "1d",
    check_every: int = 1000,
    **options: Any,
) -> MultiNodeOptimizer:
    """Wraps an optimizer, so that it follows the mean gradient of all replicas.

    It stands where :func:`chainermn.create_multi_node_optimizer` stood, and gradients
    travel in as few bits as asked for. A call of all ranks.

    Args:
        actual_optimizer (chainer.Optimizer): Any of Chainer's, or a
            :class:`~mixed_precision.MixedPrecision` with the ``comm`` of all ranks.
            Gradients are exchanged as they are, scaled.
        communicator: A ChainerMN communicator or an mpi4py one, of the replicas.
        double_buffering (bool): Whether each update applies the gradients of the one
            before, whose exchange goes on during forward and backward. The first update
            changes nothing.
        zero_fill (bool): Whether zeros stand for a gradient that this rank has not and
            others have. Otherwise such a gradient is an error. What no rank has stays
            ``None``.
        wire_dtype (str): As of :class:`Exchange`; ``'fp32'`` rounds nothing.
        strategy (str): Likewise.
        exempt: Which parameters' gradients keep float32 on the wire: ``'1d'`` for those
            with fewer than two dimensions, as normalizations and biases have; a
            function of a parameter; ``None`` for none.
        check_every (int): After how many updates the replicas' parameters are compared.
        **options: Of :class:`Exchange`: ``local_size``, ``error_feedback``,
            ``timeout`` and others.

    Returns:
        MultiNodeOptimizer: To be set up as the optimizer would be.

    Raises:
        DisagreementError: If the ranks' arguments differ, or those of another rank are
            wrong.
        TypeError, ValueError: If an argument is wrong.

    Example:
        >>> import chainer.links as L
        >>> from mpi4py import MPI
        >>> sgd = chainer.optimizers.MomentumSGD(0.2)
        >>> optimizer = create_multi_node_optimizer(sgd, MPI.COMM_WORLD)
        >>> model = L.Classifier(L.Linear(4, 3))
        >>> optimizer = optimizer.setup(model)
        >>> x, t = np.ones((2, 4), "f"), np.array([0, 2], "i")
        >>> optimizer.update(model, x, t)
        >>> optimizer.t
        1

    See Oyama et al. (2017), Accelerating deep learning by 8-bit gradient exchange.
    """
    return MultiNodeOptimizer(
        actual_optimizer,
        communicator,
        lambda: Exchange(communicator, wire_dtype, strategy=strategy, **options),
        double_buffering,
        zero_fill,
        exempt,
        check_every,
    )


class MultiNodeOptimizer(OptimizerWrapper):
    """An optimizer of a replica; :func:`create_multi_node_optimizer` makes it.

    ::

        param.grad ---exchange---> mean of the replicas ---> actual_optimizer.update()

    Hooks, hyperparameters and the target are those of the optimizer within. Hooks see
    the mean.

    The first update compares the replicas: names, shapes and dtypes of parameters, and
    the numbers that hyperparameters and hooks have. Then it compares the parameters'
    values. If they are equal the gradients are used. If not, all ranks get those of
    rank 0, with a warning, and the gradients, of other values, are dropped: that update
    changes nothing else. The same happens when parameters are initialized later.

    Attributes:
        actual_optimizer (chainer.Optimizer): As given.
        communicator: As given.
        exchange (Exchange): Of the gradients.
        n_samples (int): To be set before an update to the number of samples in this
            rank's minibatch, on all ranks, if they differ; then the mean is that over
            all samples. ``None`` again after the update.
    """

    # Named here because other public names are set in the wrapped optimizer.
    communicator: Any = None
    exchange: Any = None
    n_samples: int | None = None

    def __init__(
        self,
        actual_optimizer: Any,
        communicator: Any,
        make_exchange: Callable[[], Exchange],
        double_buffering: bool,
        zero_fill: bool,
        exempt: Exempt,
        check_every: int,
    ) -> None:
        super().__init__(actual_optimizer)
        self._is_exempt = is_exempt(exempt)
        if check_every < 1:
            raise ValueError(f"check_every must be 1 or more, not {check_every}")
        self._check_every, self._zero_fill = check_every, zero_fill
        self.communicator = communicator
        self.exchange = make_exchange()
        self._late = LateGradients() if double_buffering else None
        # Of the parameters that the replicas have agreed on, and the updates since.
        self._agreed: set[str] = set()
        self._n_updates = 0
        self._scale_of_residuals = 1.0

    @property
    def _loss_scale(self) -> float | None:
        return self.actual_optimizer._loss_scale

    def setup(self, link: Any) -> MultiNodeOptimizer:
        """Sets the target.

        Args:
            link (chainer.Link): This rank's replica of the model.

        Returns:
            MultiNodeOptimizer: Itself.
        """
        self.actual_optimizer.setup(link)
        self._agreed = set()
        if self._late is not None:
            self._late = LateGradients()
        return self

    def update(self, lossfun: Callable | None = None, *args: Any, **kwds: Any) -> None:
        """Updates the parameters by the mean of all ranks' gradients.

        Args:
            lossfun: If given, it is called and backward runs from the loss it returns;
                otherwise the gradients are there.
            *args: Arguments of ``lossfun``.
            **kwds: Keyword arguments of ``lossfun``.

        Raises:
            DisagreementError: If the replicas have different parameters,
                hyperparameters or numbers of updates; or values have drifted apart.
            StallError: If another rank does not come.
        """
        self._check_set_up()
        if lossfun is not None:
            self._backward(lossfun, args, kwds)
        n_samples, self.n_samples = self.n_samples, None
        parameters = parameters_of(self.target)
        if self._agree(parameters):
            self._rescale_residuals()
            if self._late is None:
                self._average(parameters, n_samples)
                self.actual_optimizer.update(None)
            else:
                self._average_late(self._late, parameters, n_samples)

    def serialize(self, serializer: Any) -> None:
        """Reads or writes all that training needs to continue bit for bit.

        That is the optimizer's state and what the exchange keeps for this rank. A
        snapshot that knows nothing of an exchange, such as that of a serial script, is
        read as well. With ``double_buffering`` it waits for the exchange that goes on:
        all ranks must write a snapshot, or go on to their next update.
        """
        self.actual_optimizer.serialize(serializer)
        of_exchange = serializer["exchange"]
        is_loading = isinstance(serializer, chainer.Deserializer)
        if is_loading:
            try:
                scale = of_exchange("loss_scale", None)
            except KeyError:
                return
            self._scale_of_residuals = float(scale)
        else:
            of_exchange("loss_scale", self._scale_of_residuals)
        self._n_updates = int(of_exchange("n_updates", self._n_updates))
        if self._late is not None:
            self._late.finish(self.exchange)
            self._late.serialize(of_exchange)
        self.exchange.serialize(of_exchange)

    def close(self) -> None:
        """Frees the communicator of the exchange; a call of all ranks."""
        if self._late is not None:
            self._late.finish(self.exchange)
        self.exchange.close()

    def _backward(self, lossfun: Callable, args: Any, kwds: Any) -> None:
        with Looks(self.exchange):
            loss = lossfun(*args, **kwds)
            if getattr(self, "_use_cleargrads", True):
                self.target.cleargrads()
            else:
                self.target.zerograds()
            backward = getattr(self.actual_optimizer, "backward", None)
            if backward is not None:
                # Mixed precision's own.
                backward(loss)
            else:
                loss.backward(loss_scale=self._loss_scale)

    def _agree(self, parameters: Sequence[NamedParameter]) -> bool:
        """Compares the replicas, if it is time; returns whether gradients are valid."""
        exchange, self._n_updates = self.exchange, self._n_updates + 1
        names = {name for name, _ in parameters}
        is_new = names != self._agreed
        if not is_new and (self._n_updates - 1) % self._check_every:
            return True
        if self._late is not None:
            self._late.finish(exchange)
        lines = [f"a comparison of parameters before update number {self._n_updates}"]
        # Refused here what cannot be exchanged, before the ranks meet.
        specs_of_gradients(parameters, self._is_exempt)
        exchange.compare([*description(self.actual_optimizer, parameters), *lines])
        if not is_new:
            check_values(exchange.comm, parameters, self._n_updates, exchange.timeout)
            return True
        found = differing(exchange.comm, parameters, exchange.timeout)
        self._agreed = names
        if not found:
            return True
        give_values_of_rank_0(exchange.comm, parameters, found, exchange.timeout)
        return False

    def _average(
        self, parameters: Sequence[NamedParameter], n_samples: int | None
    ) -> None:
        """Replaces the gradients by their means."""
        gradients = [param.grad for _, param in parameters]
        self._begin(parameters, gradients, n_samples)
        for (_, param), gradient, mean in zip(
            parameters, gradients, self.exchange.finish()
        ):
            if mean is not gradient:
                param.grad = mean

    def _average_late(
        self,
        late: LateGradients,
        parameters: Sequence[NamedParameter],
        n_samples: int | None,
    ) -> None:
        """Replaces the gradients by the last ones' means, and updates with those."""
        late.finish(self.exchange)
        means = late.take()
        scale = float(self._loss_scale or 1.0)
        gradients = late.copies_of(parameters, scale)
        self._begin(parameters, gradients, n_samples)
        self.exchange.look()
        if means is not None:
            means.give_to(parameters, self._loss_scale)
            self.actual_optimizer.update(None)

    def _begin(
        self,
        parameters: Sequence[NamedParameter],
        gradients: Sequence[np.ndarray | None],
        n_samples: int | None,
    ) -> None:
        exchange = self.exchange
        exchange.begin(
            lambda: specs_of_gradients(parameters, self._is_exempt),
            [param.array for _, param in parameters],
            n_samples,
            zero_fill=self._zero_fill,
        )
        for i, gradient in enumerate(gradients):
            exchange.put(i, gradient)

    def _rescale_residuals(self) -> None:
        """Error feedback keeps what scaled gradients have lost."""
        scale = float(self._loss_scale or 1.0)
        if scale != self._scale_of_residuals:
            self.exchange.scale_residuals(scale / self._scale_of_residuals)
            self._scale_of_residuals = scale
