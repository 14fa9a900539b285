"""Any Chainer optimizer in mixed precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import chainer
import numpy as np

import chainer_kernels
from chainer_kernels.product_dtype import BFLOAT16
from divisible.communication.errors import TIMEOUT, check_timeout
from divisible.optimizer_hooks import Hooks
from divisible.optimizer_wrapper import OptimizerWrapper
from divisible.unconfirmed_update import Confirmation
from mixed_precision.agreement import Agreement, Decision
from mixed_precision.loss_scale import (
    DynamicLossScale,
    LossScale,
    StaticLossScale,
    as_loss_scale,
)
from mixed_precision.masters import Masters
from mixed_precision.memory import update_bytes
from mixed_precision.model import LinkGroup
from mixed_precision.parameters import (
    check_copies,
    check_has_no_float16,
    check_is_whole,
    check_optimizer,
    check_parameter,
    check_scale,
    unique_parameters,
)
from mixed_precision.step import Step
from mixed_precision.update_ahead import decided, update_ahead


class MixedPrecision(OptimizerWrapper):
    """Updates float16 parameters by a Chainer optimizer in float32.

    Use it in place of the optimizer: hooks, hyperparameters (``optimizer.lr``),
    ``new_epoch`` and ``serialize`` are the optimizer's. One update is

    ::

        param.grad, float16, of the scaled loss
            |   pass 1: sum squares of the unscaled; not finite with inf or nan
        all ranks: one all-reduce ------> not finite anywhere: skip, smaller scale
            |   pre-update hooks, on float32 masters and unscaled gradients
            |   pass 2: unscale, update the masters, round into param.array
            |   post-update hooks
        larger scale, after a while

    Parameters of float32 or float64 (normalizations) are updated in the same way,
    without a copy. The usual update rules have a kernel, one loop over all parameters,
    whose results equal Chainer's bit for bit: :doc:`/howto/mixed_precision` names them.
    A parameter whose rule has no kernel is updated by the rule. While the rule and
    hooks run, ``param.array`` and ``param.grad`` *are* the float32 master and the
    unscaled gradient.

    ``GradientClipping`` clips by the norm of all parameters on all ranks. A parameter
    shared by two links is updated once. A step that is skipped does not count in ``t``
    and calls no hook.

    The gradients must be those of the loss times :attr:`loss_scale`::

        optimizer.backward(loss)        # loss.backward(loss_scale=float(loss_scale))
        Pipeline(stage, comm, ..., loss_scale=optimizer.loss_scale)

    or call ``update(lossfun, ...)``. A loop may start backward from received gradients.
    Then give ``loss_scale`` to that ``backward`` as well, which records it in the
    parameters. Gradients stay scaled in ``param.grad``.

    Args:
        optimizer (chainer.optimizer.GradientMethod): The optimizer to wrap. Call
            ``setup`` on the wrapper, whether or not the optimizer was set up before.
        loss_scale: A :class:`StaticLossScale`, a :class:`DynamicLossScale`, or a number
            for a static one; ``None`` for a dynamic one with its defaults, or for 1 if
            ``products`` is ``'bfloat16'`` and no parameter is float16.
        comm: A ChainerMN communicator or an mpi4py one of all ranks that must take the
            same decision: those of all stages and all replicas. A pipeline of several
            ranks needs it; without it each rank would skip steps of its own. Exchange
            the gradients of replicas before the update. Parameters with the same path
            on several ranks count as one.
        timeout (float): Seconds to wait for another rank before giving up.
        products: ``'bfloat16'`` rounds the operands of float32 products to bfloat16
            from now on, in all threads of this process, as
            :func:`chainer_kernels.set_products` does. A model of float32 then needs no
            loss scale, because its gradients are float32. ``None`` changes nothing.

    Attributes:
        loss_scale (LossScale): Factor of the loss; ``float(loss_scale)`` is its value.
            Assign any value that the argument may have.
        has_comm (bool): Whether ``comm`` was given.
        gradient_norm (float): The norm of the last update's gradients over all
            parameters on all ranks, unscaled, before hooks; not finite if the step was
            skipped.
        n_skipped (int): Number of steps skipped so far.

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
    n_skipped, gradient_norm = decided("_n_skipped"), decided("_gradient_norm")
    t = decided("actual_optimizer.t")

    def __init__(
        self,
        optimizer: Any,
        *,
        loss_scale: LossScale | float | None = None,
        comm: Any = None,
        timeout: float = TIMEOUT,
        products: str | None = None,
    ) -> None:
        check_timeout(timeout)
        super().__init__(optimizer)
        check_optimizer(optimizer)
        self._is_unscaled = loss_scale is None and products == BFLOAT16
        self._scale = as_loss_scale(1 if self._is_unscaled else loss_scale)
        self._comm, self._agreement = comm, Agreement(comm, timeout)
        self._masters = Masters()
        self._later: Confirmation | None = None
        self._n_skipped, self._gradient_norm = 0, math.nan
        # The process changes after everything that may fail.
        if products is not None:
            chainer_kernels.set_products(products)

    @property
    def loss_scale(self) -> LossScale:
        """The scale of the loss."""
        self._finish()
        return self._scale

    @loss_scale.setter
    def loss_scale(self, value: LossScale | float | None) -> None:
        self._scale, self._is_unscaled = as_loss_scale(value), False

    @property
    def has_comm(self) -> bool:
        """Whether the ranks of a communicator decide together."""
        return self._comm is not None

    @property
    def _loss_scale(self) -> float:
        # Optimizers around this one, such as ChainerMN's, scale the loss by it.
        return float(self._scale)

    def loss_scaling(self, interval: int = 1000, scale: float | None = None) -> None:
        """Replaces the loss scale; see :meth:`chainer.Optimizer.loss_scaling`."""
        dynamic = DynamicLossScale(growth_interval=interval)
        self.loss_scale = dynamic if scale is None else scale

    def set_loss_scale(self, loss_scale: float) -> None:
        """Replaces the loss scale by a static one."""
        self.loss_scale = StaticLossScale(loss_scale)

    def check_nan_in_grads(self) -> None:
        """Does nothing: :meth:`update` checks whether gradients are finite."""

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
            TypeError: If a parameter is not a floating-point array.
            ValueError: If two parameters are copies with one array; if a parameter of
                float16 has no loss scale; or if other processes have layers of the
                model, and ``comm`` is missing.
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
        if self._is_unscaled:
            check_has_no_float16(link)
        if not self.has_comm:
            check_is_whole(link)
        self.actual_optimizer.setup(link)
        self._agreement.is_new, self._masters = True, Masters()
        return self

    def target_changed(self) -> None:
        """Prepares for a target whose parameters have changed."""
        self._agreement.is_new = True

    def masters(self) -> dict[str, Any]:
        """Returns by path the float32 masters that the next update continues from.

        Parameters without a master, such as those of float32, are left out; before the
        first update all are.
        """
        self._finish()
        return self._masters.by_path()

    def change_masters(self, change: Callable[[str, Any], Any]) -> None:
        """Replaces masters, for instance where elements of parameters are removed.

        Args:
            change: Takes the path of a parameter and its float32 master, and returns
                the new master, of the shape that the parameter has in the next update.
        """
        self._finish()
        self._masters.change(change)

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
        # The update checks for infinities.
        with np.errstate(over="ignore", invalid="ignore"):
            loss.backward(loss_scale=float(self.loss_scale))

    def update(self, lossfun: Callable | None = None, *args: Any, **kwds: Any) -> None:
        """Updates the parameters, or skips the step if gradients are not finite.

        Args:
            lossfun: If given, it is called and backward runs from the loss it returns;
                otherwise the gradients are expected in ``param.grad``.
            *args: Arguments of ``lossfun``.
            **kwds: Keyword arguments of ``lossfun``.

        Raises:
            FloatingPointError: If gradients are not finite and no smaller scale is left
                to try; on every rank.
            ValueError: If the gradients are not scaled by :attr:`loss_scale`, or if
                parameters were added after the first update.
            DisagreementError: If the ranks are at different updates; on every rank.
            StallError: If another rank does not come.
        """
        self._check_set_up()
        self._finish()
        if lossfun is not None:
            loss = lossfun(*args, **kwds)
            self.target.cleargrads()
            self.backward(loss)
            del loss
        step = self._next_step()
        later = self._later
        if later is not None and later.is_wanted:
            place = self.actual_optimizer, self._masters.buffers, self._scale
            update_ahead(step, *place, self._agreement, later, self._take)
            return
        decision = self._reduce(step.sum_squares())
        if later is not None:
            later.note(decision.changes_nothing(Hooks.of(self).before))
        self._take(decision, step)

    def _take(
        self, decision: Decision, step: Step | None = None, is_made: bool = False
    ) -> None:
        """Updates or skips by a decision, unless the update is made already."""
        self._gradient_norm = math.sqrt(decision.squared_norm)
        if is_made:
            return
        if decision.overflown:
            self._n_skipped += 1
            self._scale.overflowed(decision.overflown)
            return
        step = self._next_step() if step is None else step
        step.take(decision.squared_norm)
        self._scale.stepped()

    def _finish(self) -> None:
        """Waits for the outcome of an update that has not waited for it."""
        if self._later is not None:
            self._later.finish()

    def confirm_late(self, later: Confirmation | None) -> None:
        """Allows updates ahead of other ranks, which ``later`` confirms, if any."""
        self._later = later

    def _next_step(self) -> Step:
        """Returns the step of the present gradients."""
        named = unique_parameters(self.target)
        if self._agreement.is_new:
            self._agreement.gather([path for path, _ in self.target.namedparams()])
        buffers = self._masters.laid_out(named)
        self._agreement.place(buffers.paths)
        parameters, scale = [param for _, param in named], float(self._scale)
        check_scale(parameters, scale)
        return Step(
            self.actual_optimizer,
            parameters,
            buffers,
            scale,
            lambda sums: self._reduce(sums).squared_norm,
        )

    def _reduce(self, sums: np.ndarray) -> Decision:
        t = self.actual_optimizer.t
        return self._agreement.reduce(sums, t, float(self._scale))

    def close(self) -> None:
        """Frees the communicator of this optimizer; call it on every rank.

        Needed only where many optimizers are made in one process. Do not call it after
        an update that failed: it waits for the other ranks. The optimizer stays usable;
        the next update makes another communicator.
        """
        self._agreement.close()

    def update_bytes(self, param: chainer.Parameter) -> int:
        """Returns the bytes that updates hold besides a parameter and its gradient.

        These are the master, the state of the update rule, and the unscaled gradient.
        The latter is made only if an update rule has no kernel, or for hooks other than
        ``GradientClipping``.

        Args:
            param (chainer.Parameter): Initialized parameter of any model, which is not
                changed.

        Returns:
            int: Number of bytes.

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

        The state is the optimizer's state and the float32 masters, under the paths of
        the parameters, and the state of the loss scale. As with every optimizer, the
        model serializes the parameters themselves.
        """
        self._finish()
        self.actual_optimizer.serialize(serializer)
        self._masters.serialize(
            serializer, unique_parameters(self.target, include_uninit=True)
        )
        self._scale.serialize(serializer["loss_scale"])
        self._n_skipped = int(serializer("n_skipped", self._n_skipped))

    def loaded_parts(self) -> list[Any]:
        """Returns the other objects whose attributes :meth:`serialize` sets."""
        return [self._masters, self.loss_scale]
