"""An optimizer whose gradients are means over replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import chainer
import numpy as np

from data_parallel.averaging import Averaging
from data_parallel.backward import Backward
from data_parallel.double_buffering import LateGradients
from data_parallel.early_gradients import EarlyGradients
from data_parallel.exchange import Exchange
from data_parallel.parameters import (
    Exempt,
    NamedParameter,
    is_exempt,
    parameters_of,
    refusal_of_streamed,
)
from data_parallel.replica_agreement import ReplicaAgreement
from data_parallel.sample_count import SampleCount
from data_parallel.single_replica import SingleReplica
from divisible.optimizer_wrapper import OptimizerWrapper


class MultiNodeOptimizer(OptimizerWrapper):
    """An optimizer of a replica; :func:`create_multi_node_optimizer` makes it.

    ::

        param.grad ---exchange---> mean of the replicas ---> actual_optimizer.update()

    Hooks, hyperparameters and the target are those of the wrapped optimizer. Hooks get
    the mean.

    The first update compares the replicas: names, shapes and dtypes of parameters, and
    the numbers of hyperparameters and hooks. Then it compares the parameters' values,
    and the states: numbers of updates, states of update rules and of hooks, master
    weights, loss scales. Different states are an error. If values are equal, the
    gradients are used. If not, all ranks get the values of rank 0, with a warning. The
    gradients, which belong to other values, are dropped, and that update changes
    nothing else. The same happens when parameters are initialized later, and after
    :meth:`serialize` has loaded a state.

    A single replica exchanges and compares nothing, and its gradients stay unchanged.
    Exceptions are ``strategy='oyama2017'``, error feedback and double buffering.

    Attributes:
        actual_optimizer (chainer.Optimizer): The wrapped optimizer.
        communicator: The given communicator.
        exchange (Exchange): Exchange of the gradients.
        refusal (str): Reason why the first update, or a pipeline's first step, will be
            refused on all ranks: weights are streamed from disk, and the exchange
            copies gradients. Empty if it will not be refused.
    """

    # Named here because other public names are set in the wrapped optimizer.
    communicator: Any = None
    exchange: Any = None
    refusal = ""

    def __init__(
        self,
        actual_optimizer: Any,
        communicator: Any,
        make_exchange: Callable[[], Exchange],
        double_buffering: bool,
        zero_fill: bool,
        exempt: Exempt,
        agreement: ReplicaAgreement,
        overlap: bool,
        pipeline: Any,
    ) -> None:
        super().__init__(actual_optimizer)
        exempted = is_exempt(exempt)
        self._agreement, self._pipeline = agreement, pipeline
        self.communicator = communicator
        self.exchange = make_exchange()
        self._averaging = Averaging(
            actual_optimizer,
            self.exchange,
            agreement,
            exempted,
            zero_fill,
            self.serialize,
        )
        self._late: LateGradients | None = None
        self._early: EarlyGradients | None = None
        self._single: SingleReplica | None = None
        if double_buffering:
            self._late = LateGradients(self._averaging)
        elif not self.exchange.is_needed:
            self._single = SingleReplica(actual_optimizer, self._averaging)
        elif pipeline is not None:
            self._early = EarlyGradients(self._averaging, overlap)
        overlaps = overlap and not (double_buffering or pipeline)
        self._backward = Backward(actual_optimizer, self._averaging, overlaps)
        # The step whose gradients were averaged before their update, if any.
        self._averaged_step: int | None = None
        self._has_means = False
        # A pipeline sets the number of samples. A warning on one rank is enough.
        self._samples = SampleCount(pipeline is None and self.exchange.comm.rank == 0)

    @property
    def n_samples(self) -> int | None:
        """The number of samples in this rank's minibatch.

        Set it before each update, on all ranks, if their numbers differ. The mean is
        then over all samples. The number holds for one update, and is ``None`` after
        it. If an update without it follows one with it, a warning is given, unless the
        number was set to ``None``.
        """
        return self._samples.value

    @n_samples.setter
    def n_samples(self, value: int | None) -> None:
        self._samples.set(value)

    @property
    def double_buffering(self) -> bool:
        """Whether gradients are used one update late.

        The gradients of a minibatch are then exchanged during the next one.
        """
        return self._late is not None

    def setup(self, link: Any) -> MultiNodeOptimizer:
        """Sets the target.

        Args:
            link (chainer.Link): This rank's replica of the model. If the wrapped
                optimizer is a :class:`~mixed_precision.MixedPrecision`, it may also be
                a list of stages.

        Returns:
            MultiNodeOptimizer: This optimizer.

        Raises:
            TypeError: If ``link`` is not a link.
        """
        self.actual_optimizer.setup(link)
        self._see_target()
        self._agreement.forget()
        if self._late is not None:
            self._late.finish()
            self._late = LateGradients(self._averaging)
        if self._early is not None:
            self._early.drop()
            self._pipeline.internals.early_exchanges.add(self._early)
        if self._pipeline is not None:
            self._pipeline.internals.vetoes.add(self)
        return self

    def _see_target(self) -> None:
        # A MixedPrecision makes one target of several stages.
        parameters = parameters_of(self.target, include_uninit=True)
        self.refusal = refusal_of_streamed(parameters, self._copying)

    @property
    def _copying(self) -> str:
        """The argument for which gradients are copied; empty if there is none."""
        if self._late is not None:
            return "double_buffering=True"
        if self._backward.overlaps:
            return "overlap=True without a pipeline"
        return self.exchange.copying

    @property
    def overlap_report(self) -> str:
        """When the exchange of the last pipeline step's gradients began, and why then.

        Examples are ``'during the step: 8 of 8 gradients'`` and ``'after the step'``.
        """
        if self._single is not None:
            return "never: there is one replica"
        return "after the step" if self._early is None else self._early.report

    @property
    def residuals(self) -> dict[str, np.ndarray]:
        """The residuals of error feedback by parameter name; may be changed."""
        return self.exchange.kept.residuals

    def target_changed(self) -> None:
        """Prepares for a target with other parameters than before."""
        self._see_target()
        self._averaging.target_changed()

    def update(self, lossfun: Callable | None = None, *args: Any, **kwds: Any) -> None:
        """Updates the parameters by the mean of all ranks' gradients.

        Args:
            lossfun: Function that returns a loss, from which backward runs. Without it
                the present gradients are used.
            *args: Arguments of ``lossfun``.
            **kwds: Keyword arguments of ``lossfun``.

        Raises:
            ValueError: If some weights of this rank are streamed from disk, and the
                exchange copies gradients.
            DisagreementError: If weights of another rank are streamed so. Also if the
                replicas have different parameters, hyperparameters, numbers of updates
                or states, or their values have drifted apart.
            StallError: If another rank does not call this in time.
        """
        self._check_set_up()
        if lossfun is None:
            has_means = self._take_means()
        else:
            # Gradients that were averaged before are replaced.
            self._averaged_step = None
            has_means = self._average_of(lossfun, *args, **kwds)
        if has_means:
            self.actual_optimizer.update(None)

    def average_gradients(self) -> None:
        """Replaces the gradients by the means that the next update applies.

        This serves code that reads the gradients of several optimizers before the first
        of them updates, such as clipping by their common norm. A call of all ranks. If
        the replicas have differed, the gradients are invalid, and are cleared.
        """
        self._has_means, self._averaged_step = self._average(), self._step
        if not self._has_means:
            self.target.cleargrads()

    @property
    def _step(self) -> int:
        return 0 if self._pipeline is None else self._pipeline.n_steps

    def _take_means(self) -> bool:
        """Ensures that gradients are means; returns whether they are to be applied."""
        if self._averaged_step is None:
            return self._average()
        was_averaged = self._averaged_step == self._step
        self._averaged_step = None
        if not was_averaged:
            return self._average()
        late = self._samples.value
        self._samples.value = None
        if late not in (None, self._n_samples_of_step):
            raise ValueError(
                f"n_samples is {late}, but the gradients have been averaged without"
                f" it, as another optimizer clips by them: set it on all optimizers"
                f" before the first one's update"
            )
        return self._has_means

    @property
    def _n_samples_of_step(self) -> int | None:
        return None if self._pipeline is None else self._pipeline.n_samples

    def serialize(self, serializer: Any) -> None:
        """Loads or saves all that training needs to continue bit for bit.

        This is the optimizer's state, and the state of the exchange for this rank. A
        snapshot without a state of the exchange, such as that of a serial script, can
        also be loaded: residuals and means of earlier updates are then dropped. With
        ``double_buffering`` this waits for the exchange that is under way: all ranks
        must save a snapshot, or go on to their next update.
        """
        self.actual_optimizer.serialize(serializer)
        if self._late is not None:
            self._late.finish()
        if self._averaging.serialize(serializer):
            if self._late is not None:
                self._late.serialize(self._averaging.of_parameters(serializer))
        elif serializer("t", None) is not None:
            # A serial file. Where a snapshot has restored the optimizer already, the
            # state of an updater is read with it, and there is not even this number.
            self.exchange.kept.forget()
            if self._late is not None:
                self._late.serialize({})
        if isinstance(serializer, chainer.Deserializer):
            # The next update checks whether all ranks have loaded the same.
            self._agreement.forget()

    def load_replicas(self, serializers: Sequence[Any]) -> None:
        """Gives error feedback the mean of the residuals of several replicas.

        Call it after :meth:`serialize` if there were more or fewer replicas.

        Args:
            serializers: A serializer for each former replica.
        """
        self.exchange.kept.load_means(
            [self._averaging.of_parameters(each) for each in serializers]
        )

    def loaded_parts(self) -> list[Any]:
        """Returns other objects with attributes that :meth:`serialize` sets."""
        own = [self._averaging, self._agreement, self._late]
        return [*own, *self.exchange.kept.parts()]

    def close(self) -> None:
        """Frees the communicator of the exchange; a call of all ranks."""
        if self._late is not None:
            self._late.finish()
        if self._early is not None:
            self._early.drop()
        self.exchange.close()

    def _average_of(self, lossfun: Callable, *args: Any, **kwds: Any) -> bool:
        """Computes a loss and its gradients, and averages the gradients."""
        if self._single is not None:
            self._single.backward(lossfun, *args, **kwds)
            return self._average()
        if self._early is not None:
            self._early.drop()
        loss = self._backward.loss_of(lossfun, *args, **kwds)
        parameters = self._averaging.parameters()
        if self._backward.may_average(parameters):
            self._backward.average(loss, parameters, self._taken_n_samples())
            return True
        self._backward.run(loss, parameters)
        # This frees the graph, which is not needed any more.
        del loss
        return self._average()

    def _average(self) -> bool:
        """Replaces gradients by their means; returns whether to apply them.

        They are not applied if the replicas have differed. With ``double_buffering``
        there are none before the second minibatch.
        """
        if self._single is not None:
            self._single.check(self._taken_n_samples(), self.refusal)
            self._share_tied()
            return True
        if self._early is not None and self._early.is_under_way:
            self._early.average(self._samples.take())
            self._share_tied(self._early.parameters)
            return True
        parameters = self._averaging.parameters()
        n_samples = self._taken_n_samples()
        if not self._agree(parameters):
            # Other stages may go on, and wait for this one.
            self._share_tied(parameters)
            return False
        if self._late is None:
            self._averaging.average(parameters, n_samples)
        elif not self._late.average(parameters, n_samples, self._loss_scale):
            return False
        self._share_tied(parameters)
        return True

    def _agree(self, parameters: Sequence[NamedParameter]) -> bool:
        """Compares the replicas if it is due; returns whether gradients are valid."""
        if self._averaging.is_due(parameters):
            if self._late is not None:
                self._late.finish()
            if self.refusal:
                self.exchange.refuse(ValueError(self.refusal))
            return self._averaging.agree(parameters)
        self._agreement.count()
        if self._early is not None and parameters:
            self._averaging.agree_on_order()
        return True

    def _taken_n_samples(self) -> int | None:
        """Returns the number of samples of the gradients, as set or as in the step."""
        n_samples = self._samples.take()
        return self._n_samples_of_step if n_samples is None else n_samples

    def _share_tied(self, parameters: Sequence[NamedParameter] | None = None) -> None:
        if self._pipeline is not None and self._pipeline.internals.ties is not None:
            ties = self._pipeline.internals.ties
            if parameters is None:
                parameters = self._averaging.parameters()
            ties.share_gradients([param for _, param in parameters])
