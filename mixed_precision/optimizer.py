"""Any Chainer optimizer in mixed precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import chainer
import numpy as np

from divisible.optimizer_wrapper import OptimizerWrapper
from mixed_precision import fused
from mixed_precision.agreement import Agreement
from mixed_precision.flat import FlatBuffers, Gathered
from mixed_precision.hooks import Hooks, clipping_rate, is_clipping
from mixed_precision.loss_scale import (
    DynamicLossScale,
    LossScale,
    StaticLossScale,
    as_loss_scale,
)
from mixed_precision.memory import update_bytes
from mixed_precision.model import LinkGroup
from mixed_precision.parameters import (
    check_copies,
    check_is_whole,
    check_optimizer,
    check_parameter,
    has_master,
    unique_parameters,
)


class MixedPrecision(OptimizerWrapper):
    """Updates float16 parameters by a Chainer optimizer in float32.

    It stands where the optimizer stood: hooks, hyperparameters (``optimizer.lr``),
    ``new_epoch`` and ``serialize`` are the optimizer's. One update is

    ::

        param.grad, float16, of the scaled loss
            |   pass 1: sum squares of the unscaled; not finite with inf or nan
        all ranks: one all-reduce ------> not finite anywhere: skip, smaller scale
            |   pre-update hooks, on float32 masters and unscaled gradients
            |   pass 2: unscale, update the masters, round into param.array
            |   post-update hooks
        larger scale, after a while

    Parameters of float32 or float64 (normalizations) are updated alike, without a copy.
    The usual update rules have a kernel, one loop over all parameters, whose results
    equal Chainer's bit for bit: :doc:`/howto/mixed_precision` names them. Parameters
    with another rule are updated by it: while it and hooks run, ``param.array`` and
    ``param.grad`` *are* the float32 master and the unscaled gradient.

    ``GradientClipping`` clips by the norm of all parameters on all ranks. A parameter
    shared by two links is updated once. A step that is skipped does not count in ``t``
    and calls no hook.

    The gradients must be those of the loss times :attr:`loss_scale`::

        optimizer.backward(loss)        # loss.backward(loss_scale=float(loss_scale))
        Pipeline(stage, comm, ..., loss_scale=optimizer.loss_scale)

    or ``update(lossfun, ...)`` does it. In a loop that starts backward from received
    gradients, give ``loss_scale`` to that ``backward`` as well: it notes for the
    parameters that they are scaled. Gradients stay scaled in ``param.grad``.

    Args:
        optimizer (chainer.optimizer.GradientMethod): Not set up yet, or to be set up
            anew.
        loss_scale: A :class:`StaticLossScale`, a :class:`DynamicLossScale`, or a number
            for a static one; ``None`` for a dynamic one with its defaults.
        comm: A ChainerMN communicator or an mpi4py one of all ranks that must take the
            same decision: those of all stages and all replicas. A pipeline of several
            ranks needs it; without, each rank would skip steps of its own. Gradients of
            replicas must have been exchanged before. Parameters with the same path on
            several ranks count as one.
        timeout (float): Seconds to wait for another rank before giving up.

    Attributes:
        loss_scale (LossScale): Scales the loss; ``float(loss_scale)`` is its value.
            May be assigned what the argument may be.
        has_comm (bool): Whether ``comm`` was given.
        gradient_norm (float): The norm of the last update's gradients over all
            parameters on all ranks, unscaled, before hooks; not finite if it was
            skipped.
        n_skipped (int): Steps skipped so far.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If the optimizer or the scale cannot be used.

    Example:
        >>> import chainer.functions as F, chainer.links as L, numpy as np
        >>> from mixed_precision import float32_loss, to_float16
        >>> model = to_float16(L.Linear(4, 3))
        >>> sgd = chainer.optimizers.MomentumSGD(0.1)
        >>> optimizer = MixedPrecision(sgd, loss_scale=1024).setup(model)
        >>> optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(1e-4))
        >>> x, t = np.ones((2, 4), np.float16), np.array([0, 2], np.int32)
        >>> for _ in range(50):
        ...     loss = float32_loss(F.softmax_cross_entropy)(model(x), t)
        ...     model.cleargrads()
        ...     optimizer.backward(loss)
        ...     optimizer.update()
        >>> optimizer.t, model.W.dtype.name, bool(abs(loss.array - 0.69) < 0.02)
        (50, 'float16', True)

    See Naruse (2017), Volta Tensor Core training, "Weight update in FP32" and "Loss
    scaling"; Micikevicius et al. (2018), Mixed precision training.
    """

    # Named here because other public names are set in the wrapped optimizer.
    n_skipped = 0
    gradient_norm = math.nan

    def __init__(
        self,
        optimizer: Any,
        loss_scale: LossScale | float | None = None,
        comm: Any = None,
        timeout: float = 300.0,
    ) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout must be positive, not {timeout}")
        super().__init__(optimizer)
        check_optimizer(optimizer)
        self.loss_scale = loss_scale
        self._comm = comm
        self._agreement = Agreement(comm, timeout)
        self._buffers: FlatBuffers | None = None
        self._loaded_masters: dict[str, Any] = {}

    @property
    def loss_scale(self) -> LossScale:
        """The scale of the loss."""
        return self._scale

    @loss_scale.setter
    def loss_scale(self, value: LossScale | float | None) -> None:
        self._scale = as_loss_scale(value)

    @property
    def has_comm(self) -> bool:
        """Whether the ranks of a communicator decide together."""
        return self._comm is not None

    @property
    def _loss_scale(self) -> float:
        # What ChainerMN's and other optimizers around this one scale the loss by.
        return float(self.loss_scale)

    def loss_scaling(self, interval: int = 1000, scale: float | None = None) -> None:
        """Replaces the loss scale; see :meth:`chainer.Optimizer.loss_scaling`."""
        self.loss_scale = (
            DynamicLossScale(growth_interval=interval)
            if scale is None
            else StaticLossScale(scale)
        )

    def set_loss_scale(self, loss_scale: float) -> None:
        """Replaces the loss scale by a static one."""
        self.loss_scale = StaticLossScale(loss_scale)

    def check_nan_in_grads(self) -> None:
        """Does nothing: :meth:`update` looks for numbers that are not finite."""

    def is_safe_to_update(self) -> bool:
        """Returns whether the last gradients were finite."""
        return math.isfinite(self.gradient_norm)

    def update_loss_scale(self) -> None:
        """Does nothing: :meth:`update` changes the scale."""

    def setup(self, link: chainer.Link | Sequence[chainer.Link]) -> MixedPrecision:
        """Sets the target, and forgets masters and state.

        Args:
            link (chainer.Link or list): The model or this rank's stage; several stages
                on a rank are given as a list and updated together.

        Returns:
            MixedPrecision: Itself.

        Raises:
            TypeError: If a parameter is no floating-point array.
            ValueError: If two parameters are copies with one array; or there are
                several processes, and the rest of the model is elsewhere, without the
                ``comm`` to decide together with it.
        """
        if isinstance(link, (list, tuple)):
            link = LinkGroup(link)
        if not isinstance(link, chainer.Link):
            raise TypeError(
                f"link must be a chainer.Link or a list of them, not"
                f" {type(link).__name__}"
            )
        for path, param in link.namedparams(include_uninit=False):
            check_parameter(path, param)
        check_copies(link)
        if not self.has_comm:
            check_is_whole(link)
        self.actual_optimizer.setup(link)
        self._agreement.is_new, self._buffers = True, None
        self._loaded_masters = {}
        return self

    def target_changed(self) -> None:
        """Prepares for a target that has other parameters than before."""
        self._agreement.is_new = True

    def change_masters(self, change: Callable[[str, Any], Any]) -> None:
        """Gives parameters other masters, as where elements of them are taken away.

        Args:
            change: Takes the path of a parameter and its float32 master, and returns
                the master to go on with, of the shape that the parameter has in the
                next update.
        """
        masters = {**self._masters(), **self._loaded_masters}
        self._loaded_masters = {k: change(k, each) for k, each in masters.items()}

    def backward(self, loss: chainer.Variable) -> None:
        """Runs ``loss.backward`` with the loss scale.

        Args:
            loss (chainer.Variable): A scalar of float32 or float64.

        Raises:
            TypeError: If the loss is float16, in which the scaled loss overflows.
        """
        if loss.dtype == np.float16:
            raise TypeError(
                "the loss is float16, in which a scaled loss overflows: compute it in"
                " float32, for instance by float32_loss(F.softmax_cross_entropy)"
            )
        # Infinities are looked for in the update.
        with np.errstate(over="ignore", invalid="ignore"):
            loss.backward(loss_scale=float(self.loss_scale))

    def update(self, lossfun: Callable | None = None, *args: Any, **kwds: Any) -> None:
        """Updates the parameters, or skips the step if gradients are not finite.

        Args:
            lossfun: If given, it is called and backward runs from the loss it returns;
                otherwise the gradients are there.
            *args: Arguments of ``lossfun``.
            **kwds: Keyword arguments of ``lossfun``.

        Raises:
            FloatingPointError: If gradients are not finite and no smaller scale is
                left to try; on every rank.
            ValueError: If the gradients are not scaled by :attr:`loss_scale`, or there
                are parameters that were not there in the first update.
            DisagreementError: If the ranks are at different updates; on every rank.
            StallError: If another rank does not come.
        """
        self._check_set_up()
        if lossfun is not None:
            loss = lossfun(*args, **kwds)
            self.target.cleargrads()
            self.backward(loss)
            del loss
        self._prepare()
        scale = self._scale_of_gradients()
        gathered = self._buffers.gather()
        squared_norm, overflown = self._reduce(gathered, 1 / scale)
        self.gradient_norm = math.sqrt(squared_norm)
        if overflown:
            self.n_skipped += 1
            self.loss_scale.overflowed(overflown)
            return
        self._step(gathered, 1 / scale, squared_norm)
        self.loss_scale.stepped()

    def _prepare(self) -> None:
        """Makes the buffers, at first and when parameters have changed."""
        parameters = unique_parameters(self.target)
        self._parameters = [param for _, param in parameters]
        is_new = self._agreement.is_new
        if is_new:
            self._agreement.gather([path for path, _ in self.target.namedparams()])
        if self._buffers is None or not self._buffers.holds(parameters):
            for path, param in parameters:
                check_parameter(path, param)
            masters = {**self._masters(), **self._loaded_masters}
            buffers = FlatBuffers(parameters, masters)
            self._positions = self._agreement.positions(buffers.paths)
            self._buffers, self._loaded_masters = buffers, {}
        elif is_new:
            self._positions = self._agreement.positions(self._buffers.paths)

    def _masters(self) -> dict[str, Any]:
        return {} if self._buffers is None else self._buffers.masters()

    def _scale_of_gradients(self) -> float:
        """Returns the loss scale, having seen that it is that of the gradients."""
        scale = float(self.loss_scale)
        noted = {
            None if param._loss_scale is None else float(param._loss_scale)
            for param in self._parameters
            if param.grad is not None
        }
        # F.forget does not pass the scale on to the parameters within.
        found = noted - {None} or noted
        if found <= {scale} or scale == 1 and found <= {None}:
            return scale
        if found == {None}:
            raise ValueError(
                f"the gradients are not scaled, but the loss scale is {scale:g}: call"
                f" optimizer.backward(loss) instead of loss.backward(), or make the"
                f" pipeline with Pipeline(..., loss_scale=optimizer.loss_scale)"
            )
        raise ValueError(
            f"the gradients are scaled by {sorted(found)}, but the loss scale is"
            f" {scale:g}: call optimizer.backward(loss), and give a pipeline the object"
            f" optimizer.loss_scale, which changes, instead of a number. Of two"
            f" optimizers with one such object each changes it: make one for both,"
            f" MixedPrecision(optimizer).setup([stage, stage])"
        )

    def _reduce(
        self, gathered: Sequence[Gathered], inverse: float
    ) -> tuple[float, list[str]]:
        sums = self._buffers.sum_squares(gathered, inverse)
        return self._agreement.reduce(
            self._positions, sums, self.t, float(self.loss_scale)
        )

    def _step(
        self, gathered: Sequence[Gathered], inverse: float, squared_norm: float
    ) -> None:
        hooks = Hooks.of(self)
        runs, others = fused.plan(self._buffers.groups)
        in_float32 = (
            bool(others)
            or any(run.has_hooks for run in runs)
            or hooks.look_at_parameters
        )
        if in_float32:
            with self._buffers.in_float32(gathered, inverse) as gathered:
                self._call_pre_update_hooks(hooks.before, gathered, squared_norm)
                self._update(runs, gathered, 1.0, in_float32=True)
                for param in others:
                    param.update()
                for hook in hooks.after:
                    self._call_hook(hook)
        else:
            for hook in hooks.before:
                rate = clipping_rate(hook, squared_norm)
                inverse, squared_norm = inverse * rate, squared_norm * rate**2
            self._update(runs, gathered, inverse, in_float32=False)

    def _update(
        self,
        runs: Sequence[fused.Run],
        gathered: Sequence[Gathered],
        inverse: float,
        in_float32: bool,
    ) -> None:
        self.actual_optimizer.t += 1
        groups, scale = self._buffers.groups, float(self.loss_scale)
        for run in runs:
            gradients = gathered[groups.index(run.group)]
            fused.update(run, gradients, inverse, scale, in_float32)
        self._buffers.streamed.update(inverse)

    def _call_pre_update_hooks(
        self, hooks: Sequence[Any], gathered: Sequence[Gathered], squared_norm: float
    ) -> None:
        changed = False
        for hook in hooks:
            if not is_clipping(hook):
                self._call_hook(hook)
                changed = True
                continue
            if changed:
                # Another all-reduce, which nobody has who clips first. Whether there is
                # one depends on the hooks alone: they are the same on all ranks.
                squared_norm, _ = self._reduce(gathered, 1.0)
                changed = False
            rate = clipping_rate(hook, squared_norm)
            squared_norm *= rate**2
            if rate < 1:
                self._buffers.clip(rate)

    def _call_hook(self, hook: Any) -> None:
        if getattr(hook, "call_for_each_param", False):
            for param in self._parameters:
                hook(param.update_rule, param)
        else:
            hook(self.actual_optimizer)
        self._buffers.collect()

    def close(self) -> None:
        """Frees the communicator that it made; to be called on every rank.

        Needed only where many are made in one process, and not after an update that
        failed: it waits for the other ranks. It may be used further; the next update
        makes another communicator.
        """
        self._agreement.close()

    def update_bytes(self, param: chainer.Parameter) -> int:
        """Returns what the updates of a parameter hold besides it and its gradient.

        That is the master, the state of the update rule, and the unscaled gradient if
        there are hooks, other than ``GradientClipping``, or an update rule that looks
        at it.

        Args:
            param (chainer.Parameter): Initialized, of any model; it stays as it is.

        Returns:
            int: Bytes.

        Example:
            >>> param = chainer.Parameter(np.zeros(10, np.float16))
            >>> momentum = chainer.optimizers.MomentumSGD()
            >>> MixedPrecision(momentum).update_bytes(param) / param.size
            8.0
            >>> from mixed_precision import MomentumSGD16
            >>> MixedPrecision(MomentumSGD16()).update_bytes(param) / param.size
            2.0
        """
        rule = self.actual_optimizer.create_update_rule()
        return update_bytes(rule, param, Hooks.of(self).look_at_parameters)

    def serialize(self, serializer: Any) -> None:
        """Reads or writes all that training needs to continue bit for bit.

        That is the optimizer's state and the float32 masters, under the paths of the
        parameters, and the state of the loss scale. As with every optimizer, the
        parameters themselves are the model's to serialize.
        """
        self.actual_optimizer.serialize(serializer)
        # Those that were loaded are in the buffers from the first update on.
        masters = {**self._masters(), **self._loaded_masters}
        loaded = {}
        for path, param in unique_parameters(self.target, include_uninit=True):
            if has_master(param):
                master = masters.get(path)
                is_none = master is None or master.shape != param.shape
                if is_none and param.array is not None:
                    with chainer.using_device(param.device):
                        master = param.array.astype(np.float32)
                master = serializer[path]("master", master)
                if master is not None:
                    loaded[path] = master
        if isinstance(serializer, chainer.Deserializer):
            self._loaded_masters, self._buffers = loaded, None
        self.loss_scale.serialize(serializer["loss_scale"])
        self.n_skipped = int(serializer("n_skipped", self.n_skipped))
