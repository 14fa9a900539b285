"""A stage with two versions of its weights, for minibatches that overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import chainer

from divisible.backward.late_gradients import LateGradients
from divisible.communication.signatures import Tensors
from pipeline.stages.stage import Stage


class TwoVersionStage(Stage):
    """Runs the layers of one stage, where backwards may run in the next minibatch.

    Carried backwards use the weights of their forwards. An optimizer updates arrays in
    place, and graphs refer to them. So the stage keeps the arrays that graphs refer to,
    and the parameters get others with the same values before each update::

        minibatch       0              1                        2
        param.array     A  A  A | copy B  B  B        B  | copy A  A  ...
        carried                        A        A               B
        update                  B changes                A changes

    Args:
        args: See :class:`Stage`.
        kwargs: See :class:`Stage`.
    """

    make_gradients = LateGradients

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Number of microbatches between forward and backward, and how many of them are
        # of the minibatch before.
        self._n_in_flight = self._n_before = 0
        self._step_before = 0
        # Gradients of parameters before a flush.
        self._given: list[tuple[chainer.Parameter, Any]] = []
        # Parameters with the arrays of the microbatches in flight, by identity.
        self._kept: dict[int, tuple[chainer.Parameter, Any]] = {}

    def begin(
        self,
        step: int,
        n_microbatches: int = 0,
        complete: Callable[[chainer.Parameter], None] | None = None,
        is_updated_early: Callable[[chainer.Parameter], bool] | None = None,
    ) -> None:
        """Begins a minibatch; microbatches in flight are of the one before.

        Raises:
            ValueError: If an optimizer has updated an array that these still need.
        """
        before, held = self._step, [{**segment.held} for segment in self._segments]
        super().begin(step, n_microbatches, complete, is_updated_early)
        if not chainer.config.enable_backprop:
            return
        for segment, microbatches in zip(self._segments, held):
            segment.held.update(microbatches)
        self._n_before, self._step_before = self._n_in_flight, before
        if self._n_before:
            self._check_kept()
        if not (self._n_before or self._late.has_turned):
            self._late.turn()

    def begin_flush(self) -> None:
        """Begins the backwards that are carried, without another minibatch."""
        self._n_before, self._step_before = self._n_in_flight, self._step
        params = {id(param): param for param in self.params()}.values()
        self._given = [(param, param.grad) for param in params]
        self._late.begin()

    def end_flush(self) -> None:
        """Ends these backwards; ``param.grad`` is then what it was before."""
        for param, gradient in self._given:
            if gradient is not None:
                param.grad = gradient
        self._given = []

    def forward(
        self,
        microbatch: int,
        inputs: Tensors,
        skipped: Mapping[str, Tensors],
        is_recomputed: bool = False,
    ) -> tuple[Tensors, dict[str, Tensors]]:
        """Runs the layers on one microbatch (F)."""
        self._n_in_flight += chainer.config.enable_backprop
        return super().forward(microbatch, inputs, skipped, is_recomputed)

    def recompute(self, microbatch: int) -> None:
        """Runs the forward of one microbatch again (R), with its own weights."""
        if not self._n_before:
            super().recompute(microbatch)
            return
        with self._as_before():
            super().recompute(microbatch)

    def backward(
        self,
        microbatch: int,
        gradients: Tensors,
        skip_gradients: Mapping[str, Tensors],
        split: bool = False,
        n_microbatches: int = 1,
    ) -> tuple[Tensors, dict[str, Tensors]]:
        """Runs the backward of one microbatch (B), with the weights of its forward."""
        given = microbatch, gradients, skip_gradients, split, n_microbatches
        self._n_in_flight -= 1
        if not self._n_before:
            return super().backward(*given)
        with self._as_before():
            result = super().backward(*given)
        self._n_before -= 1
        if not self._n_before:
            self._late.turn()
        return result

    def keep_weights(self) -> None:
        """Keeps the weights of microbatches in flight, before an update of others."""
        if not self._n_in_flight:
            return
        for key, param in {id(param): param for param in self.params()}.items():
            array = param.array
            if array is None:
                continue
            _, spare = self._kept.get(key, (param, None))
            if not _fits(spare, array):
                spare = chainer.backend.get_array_module(array).empty_like(array)
            spare[...] = array
            self._kept[key] = param, array
            param.array = spare

    def _check_kept(self) -> None:
        """Refuses an update of arrays that microbatches in flight still need."""
        for param, array in self._kept.values():
            if param.array is array:
                path = next(k for k, p in self.layers.namedparams() if p is param)
                raise ValueError(
                    f"an optimizer has updated the former array of {path}, whose values"
                    f" backwards of the minibatch before still need: take an optimizer"
                    f" that updates param.array in place, or a schedule with one weight"
                    f" version"
                )

    def hand_out(self, loss_scale: float | None) -> None:
        """Stores the gradients of the last minibatch in ``param.grad``, after a flush.

        Args:
            loss_scale (float or None): Factor by which the gradients are multiplied.
        """
        self._late.begin()
        if not self._late.has_turned:
            self._late.turn()
        self._late.hand_out(loss_scale)

    def drop_gradients(self) -> None:
        """Drops the gradients that no update has applied."""
        self._late.drop()

    @property
    def _late(self) -> LateGradients:
        return self._weight_gradients

    @contextmanager
    def _as_before(self) -> Iterator[None]:
        """Returns a context with the weights and the step of the minibatch before."""
        step, self._step = self._step, self._step_before
        newest = [(param, param.array) for param, _ in self._kept.values()]
        for param, array in self._kept.values():
            param.array = array
        try:
            yield
        finally:
            for param, array in newest:
                param.array = array
            self._step = step


def _fits(spare: Any, array: Any) -> bool:
    return (
        type(spare) is type(array)
        and spare.shape == array.shape
        and spare.dtype == array.dtype
        and spare.strides == array.strides
        and chainer.backend.get_device_from_array(spare)
        == chainer.backend.get_device_from_array(array)
    )
