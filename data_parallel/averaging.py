"""The averages of a model's gradients: their order, and the comparison of replicas.

Gradients are averaged when :meth:`Averaging.average` is called, or at the times of
:mod:`data_parallel.backward`, :mod:`data_parallel.early_gradients` or
:mod:`data_parallel.double_buffering`. A single replica averages nothing:
:mod:`data_parallel.single_replica`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import chainer

from data_parallel import json_arrays
from data_parallel.arrays import Spec
from data_parallel.exchange import Exchange
from data_parallel.parameters import (
    NamedParameter,
    in_order,
    parameters_of,
    specs_of_gradients,
)
from data_parallel.replica_agreement import ReplicaAgreement


class Averaging:
    """The base of an optimizer's exchanges of gradients.

    Args:
        optimizer (chainer.Optimizer): Optimizer with the model, and the loss scale.
        exchange (Exchange): Exchange of the gradients.
        agreement (ReplicaAgreement): Comparison of the replicas.
        exempt: Returns whether a parameter's gradient is sent in float32.
        zero_fill (bool): Whether zeros stand for a gradient that some ranks do not
            have.
        write_state: Writes to a serializer all that the next updates depend on,
            including the state of the exchange.

    Attributes:
        exchange: Exchange of the gradients.
        agreement: Comparison of the replicas.
        order: The names of parameters as backward completes their gradients; empty
            before the order is known.
        seen: The order that this rank has seen, until it is shared with the other
            ranks.
        scale_of_residuals: The loss scale of the residuals of error feedback.
    """

    def __init__(
        self,
        optimizer: chainer.Optimizer,
        exchange: Exchange,
        agreement: ReplicaAgreement,
        exempt: Callable[[chainer.Parameter], bool],
        zero_fill: bool,
        write_state: Callable[[Any], None],
    ) -> None:
        self._optimizer, self._is_exempt = optimizer, exempt
        self._zero_fill, self._write_state = zero_fill, write_state
        self.exchange, self.agreement = exchange, agreement
        self.order: list[str] = []
        self.seen: list[str] = []
        self.scale_of_residuals = 1.0

    @property
    def loss_scale(self) -> float:
        """The factor by which gradients are multiplied."""
        return float(self._optimizer._loss_scale or 1.0)

    def parameters(self) -> list[NamedParameter]:
        """Returns the model's parameters in the order in which they are exchanged."""
        return in_order(parameters_of(self._optimizer.target), self.order)

    def all_parameters(self) -> list[NamedParameter]:
        """Returns the model's parameters by name, those without a shape as well."""
        return parameters_of(self._optimizer.target, include_uninit=True)

    def target_changed(self) -> None:
        """Prepares for a model with other parameters than before."""
        self.agreement.forget()
        self.order = []

    def specs_of(self, parameters: Sequence[NamedParameter]) -> tuple[Spec, ...]:
        """Returns the descriptions of the gradients of parameters.

        Raises:
            TypeError: If one cannot be exchanged.
        """
        return specs_of_gradients(parameters, self._is_exempt)

    def is_due(self, parameters: Sequence[NamedParameter]) -> bool:
        """Returns whether the next update must compare the replicas."""
        return self.agreement.is_due(parameters)

    def agree(self, parameters: Sequence[NamedParameter]) -> bool:
        """Compares the replicas, and returns whether the gradients are valid.

        Raises:
            TypeError: If a gradient cannot be exchanged.
            DisagreementError: If the replicas have different models or states, or have
                drifted apart.
        """
        try:
            self.specs_of(parameters)
        except TypeError as error:
            self.exchange.refuse(error)
        is_valid = self.agreement.agree(
            self.exchange, self._optimizer, parameters, self._write_state
        )
        self.agree_on_order()
        return is_valid

    def agree_on_order(self) -> None:
        """Chooses rank 0's order for all ranks, if none is known; ranks may differ."""
        if not self.order:
            self.order = self.agreement.of_rank_0(self.exchange, self.seen)
            self.seen = []

    def begin(
        self,
        parameters: Sequence[NamedParameter],
        n_samples: int | None,
        weights: Sequence[Any] | None = None,
    ) -> None:
        """Begins an exchange of gradients, which are put one after the other.

        Args:
            parameters: Parameters whose gradients are exchanged.
            n_samples: Number of samples of this rank's minibatch; ``None`` if all ranks
                have the same number.
            weights: Copies of the parameters' arrays, if these change before the end of
                the exchange; otherwise ``None``.
        """
        scale = self.loss_scale
        if scale != self.scale_of_residuals:
            # The residuals are the rounding errors of scaled gradients.
            self.exchange.scale_residuals(scale / self.scale_of_residuals)
            self.scale_of_residuals = scale
        self.exchange.begin(
            lambda: self.specs_of(parameters),
            [param.array for _, param in parameters] if weights is None else weights,
            n_samples,
            zero_fill=self._zero_fill,
        )

    def finish(self, parameters: Sequence[NamedParameter]) -> None:
        """Waits for the exchange, and stores its means as the gradients.

        Args:
            parameters: The parameters given to :meth:`begin`.
        """
        self._note_loss_scale([param for _, param in parameters])
        for (_, param), mean in zip(parameters, self.exchange.finish()):
            if mean is not param.grad:
                param.grad = mean
            if getattr(param, "is_streamed", False):
                param.note_gradient()

    def _note_loss_scale(self, parameters: Sequence[chainer.Parameter]) -> None:
        """Notes the loss scale where only other replicas have a gradient.

        Elsewhere the backward has noted it. Update rules divide by what is noted.
        """
        without = [param for param in parameters if param.grad is None]
        if not without:
            return
        noted = {param._loss_scale for param in parameters if param.grad is not None}
        # F.forget does not pass the scale on to the parameters within.
        found = noted - {None} or noted or {self._optimizer._loss_scale}
        for param in without:
            (param._loss_scale, *_) = found

    def average(
        self, parameters: Sequence[NamedParameter], n_samples: int | None
    ) -> None:
        """Replaces gradients that are all complete by their means.

        Args:
            parameters: Parameters whose gradients are exchanged.
            n_samples: Number of samples; see :meth:`begin`.
        """
        self.begin(parameters, n_samples)
        for i, (_, param) in enumerate(parameters):
            self.exchange.put(i, param.grad)
        self.finish(parameters)

    def serialize(self, serializer: Any) -> bool:
        """Loads or saves the state of the next exchanges.

        Returns:
            Whether there is a state: a file of a serial script has none.
        """
        state = {
            "n_updates": self.agreement.n_updates,
            "loss_scale": self.scale_of_residuals,
        }
        state = json_arrays.serialize(serializer["exchange"], "state", state)
        if state is None:
            return False
        self.agreement.n_updates = state["n_updates"]
        self.scale_of_residuals = state["loss_scale"]
        of_parameters = self.of_parameters(serializer)
        places = {name: i for i, name in enumerate(self.order)}
        found = {}
        for name, below in of_parameters.items():
            place = json_arrays.serialize(below, "place", places.get(name))
            if place is not None:
                found[name] = place
        self.order = sorted(found, key=found.__getitem__)
        self.exchange.serialize_arrays(of_parameters)
        return True

    def of_parameters(self, serializer: Any) -> dict[str, Any]:
        """Returns the serializers for the exchange's state, by path of the parameter.

        The state is stored by parameter, because stages may be cut differently later.
        """
        return {name: serializer[name]["exchange"] for name, _ in self.all_parameters()}
