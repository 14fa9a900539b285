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

    Hooks, hyperparameters and the target are those of the optimizer within. Hooks see
    the mean.

    The first update compares the replicas: names, shapes and dtypes of parameters, and
    the numbers that hyperparameters and hooks have. Then it compares the parameters'
    values, and the states: numbers of updates, states of update rules and of hooks,
    masters, loss scales. States that differ are an error. If values are equal the
    gradients are used. If not, all ranks get those of rank 0, with a warning, and the
    gradients, of other values, are dropped: that update changes nothing else. The same
    happens when parameters are initialized later, and after :meth:`serialize` has
    loaded a state.

    A single replica exchanges and compares nothing, and its gradients stay as they are,
    but for ``strategy='oyama2017'``, error feedback and double buffering.

    Attributes:
        actual_optimizer (chainer.Optimizer): As given.
        communicator: As given.
        exchange (Exchange): Of the gradients.
        refusal (str): Why the first update, or a pipeline's first step, will be refused
            on all ranks: some weights are streamed from disk, and the exchange copies
            gradients. Empty if it will not.
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
        # Of the step whose gradients were averaged before their update, if any.
        self._averaged_step: int | None = None
        self._has_means = False
        # A pipeline tells of its samples, and one rank's warning is enough.
        self._samples = SampleCount(pipeline is None and self.exchange.comm.rank == 0)

    @property
    def n_samples(self) -> int | None:
        """The number of samples in this rank's minibatch.

        To be set before each update, on all ranks, if their numbers differ; then the
        mean is that over all samples. It holds for one update, and is ``None`` again
        after it. An update without it that follows one with it warns, unless it was set
        to ``None``.
        """
        return self._samples.value

    @n_samples.setter
    def n_samples(self, value: int | None) -> None:
        self._samples.set(value)

    @property
    def double_buffering(self) -> bool:
        """Whether gradients are used one update late.

        Then those of a minibatch are under way during the next one.
        """
        return self._late is not None

    def setup(self, link: Any) -> MultiNodeOptimizer:
        """Sets the target.

        Args:
            link (chainer.Link): This rank's replica of the model. Within it a
                :class:`~mixed_precision.MixedPrecision` takes a list of stages as well.

        Returns:
            MultiNodeOptimizer: Itself.

        Raises:
            TypeError: If it is none.
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
        # The optimizer's own: a MixedPrecision makes one of several stages.
        parameters = parameters_of(self.target, include_uninit=True)
        self.refusal = refusal_of_streamed(parameters, self._copying)

    @property
    def _copying(self) -> str:
        """The argument by which gradients are copied; empty if there is none."""
        if self._late is not None:
            return "double_buffering=True"
        if self._backward.overlaps:
            return "overlap=True without a pipeline"
        return self.exchange.copying

    @property
    def overlap_report(self) -> str:
        """When the exchange of the last pipeline step's gradients began, and why then.

        Such as ``'during the step: 8 of 8 gradients'``, or ``'after the step'``.
        """
        if self._single is not None:
            return "never: there is one replica"
        return "after the step" if self._early is None else self._early.report

    @property
    def residuals(self) -> dict[str, np.ndarray]:
        """The residuals of error feedback by parameter name; may be changed."""
        return self.exchange.kept.residuals

    def target_changed(self) -> None:
        """Prepares for a target that has other parameters than before."""
        self._see_target()
        self._averaging.target_changed()

    def update(self, lossfun: Callable | None = None, *args: Any, **kwds: Any) -> None:
        """Updates the parameters by the mean of all ranks' gradients.

        Args:
            lossfun: If given, it is called and backward runs from the loss it returns;
                otherwise the gradients are there.
            *args: Arguments of ``lossfun``.
            **kwds: Keyword arguments of ``lossfun``.

        Raises:
            ValueError: If some weights of this rank are streamed from disk, and the
                exchange copies gradients.
            DisagreementError: If those of another rank are; or the replicas have
                different parameters, hyperparameters, numbers of updates or states; or
                values have drifted apart.
            StallError: If another rank does not come.
        """
        self._check_set_up()
        if lossfun is None:
            has_means = self._take_means()
        else:
            has_means = self._average_of(lossfun, *args, **kwds)
        if has_means:
            self.actual_optimizer.update(None)

    def average_gradients(self) -> None:
        """Replaces the gradients by the means that the next update is to apply.

        For what looks at the gradients of several optimizers before the first of them
        updates, such as clipping by their common norm. A call of all ranks. Gradients
        that are not to be applied, as the replicas have differed, are cleared.
        """
        self._has_means, self._averaged_step = self._average(), self._step
        if not self._has_means:
            self.target.cleargrads()

    @property
    def _step(self) -> int:
        return 0 if self._pipeline is None else self._pipeline.n_steps

    def _take_means(self) -> bool:
        """Sees that gradients are means; returns whether they are to be applied."""
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
        """Reads or writes all that training needs to continue bit for bit.

        That is the optimizer's state and what the exchange keeps for this rank. A
        snapshot that knows nothing of an exchange, such as that of a serial script, is
        read as well. With ``double_buffering`` it waits for the exchange that goes on:
        all ranks must write a snapshot, or go on to their next update.
        """
        self.actual_optimizer.serialize(serializer)
        if self._late is not None:
            self._late.finish()
        is_there = self._averaging.serialize(serializer)
        if is_there and self._late is not None:
            self._late.serialize(self._averaging.of_parameters(serializer))
        if isinstance(serializer, chainer.Deserializer):
            # Whether all ranks have loaded the same is seen before the next update.
            self._agreement.forget()

    def load_replicas(self, serializers: Sequence[Any]) -> None:
        """Gives error feedback the mean of what replicas had kept.

        To be called after :meth:`serialize` where there were more replicas, or fewer.

        Args:
            serializers: Of each replica that there was.
        """
        self.exchange.kept.load_means(
            [self._averaging.of_parameters(each) for each in serializers]
        )

    def loaded_parts(self) -> list[Any]:
        """Returns what else has attributes that :meth:`serialize` sets."""
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
        """Computes a loss and its gradients, and averages those."""
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
        # What it holds is needed no more.
        del loss
        return self._average()

    def _average(self) -> bool:
        """Replaces gradients by their means; returns whether those are to be applied.

        They are not where the replicas have differed, nor are there any before the
        second minibatch with ``double_buffering``.
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
        """Compares the replicas, if it is time; returns whether gradients are valid."""
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
        """Returns of how many samples the gradients are, as set or as in the step."""
        n_samples = self._samples.take()
        return self._n_samples_of_step if n_samples is None else n_samples

    def _share_tied(self, parameters: Sequence[NamedParameter] | None = None) -> None:
        if self._pipeline is not None and self._pipeline.internals.ties is not None:
            ties = self._pipeline.internals.ties
            if parameters is None:
                parameters = self._averaging.parameters()
            ties.share_gradients([param for _, param in parameters])
