"""An optimizer that wraps another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

from chainer import optimizer


def _forwarded(name: str) -> property:
    """Returns a property that reads and sets the wrapped optimizer's."""
    return property(
        lambda self: getattr(self.actual_optimizer, name),
        lambda self, value: setattr(self.actual_optimizer, name, value),
    )


class OptimizerWrapper(optimizer.Optimizer):
    """Wraps an optimizer, and has its attributes and methods.

    ::

        optimizer.lr, .hyperparam, .use_cleargrads()    by __getattr__
        optimizer.t, .add_hook(), .loss_scaling()       named here: every Optimizer has
                                                        them by itself

    A subclass overrides the methods in which it differs.

    Args:
        actual_optimizer (chainer.Optimizer): The optimizer to wrap.

    Raises:
        TypeError: If it is not an optimizer.

    Example:
        >>> import chainer
        >>> sgd = chainer.optimizers.SGD()
        >>> OptimizerWrapper(sgd).set_loss_scale(128)
        >>> sgd._loss_scale
        128
    """

    # Named here because __setattr__ sets other public names in the wrapped optimizer.
    actual_optimizer: Any = None

    def __init__(self, actual_optimizer: Any) -> None:
        if not isinstance(actual_optimizer, optimizer.Optimizer):
            raise TypeError(
                f"optimizer must be a Chainer optimizer such as MomentumSGD(0.01), not"
                f" {type(actual_optimizer).__name__}"
            )
        self.actual_optimizer = actual_optimizer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.actual_optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        ours = name.startswith("_") or hasattr(type(self), name)
        theirs = self.actual_optimizer
        if not ours and _has(theirs, name):
            setattr(theirs, name, value)
        else:
            super().__setattr__(name, value)

    target = _forwarded("target")
    t = _forwarded("t")
    epoch = _forwarded("epoch")
    use_auto_new_epoch = _forwarded("use_auto_new_epoch")
    # Chainer's methods, updaters and snapshots read and set these.
    _hookable = _forwarded("_hookable")
    _loss_scale = _forwarded("_loss_scale")
    _loss_scale_max = _forwarded("_loss_scale_max")
    _loss_scaling_is_dynamic = _forwarded("_loss_scaling_is_dynamic")
    _loss_scaling_isnan = _forwarded("_loss_scaling_isnan")
    _loss_scaling_isnan_ever = _forwarded("_loss_scaling_isnan_ever")
    _loss_scaling_multiplier = _forwarded("_loss_scaling_multiplier")
    _use_cleargrads = _forwarded("_use_cleargrads")
    _use_fp32_update = _forwarded("_use_fp32_update")

    def setup(self, link: Any) -> Any:
        """Sets the target; returns this optimizer."""
        self.actual_optimizer.setup(link)
        return self

    def update(self, lossfun: Callable | None = None, *args: Any, **kwds: Any) -> None:
        """Updates the parameters."""
        self.actual_optimizer.update(lossfun, *args, **kwds)

    def new_epoch(self, auto: bool = False) -> None:
        """Starts a new epoch."""
        self.actual_optimizer.new_epoch(auto)

    def add_hook(
        self, hook: Any, name: str | None = None, timing: str = "auto"
    ) -> None:
        """Adds a hook."""
        self.actual_optimizer.add_hook(hook, name, timing)

    def remove_hook(self, name: str) -> None:
        """Removes a hook."""
        self.actual_optimizer.remove_hook(name)

    def call_hooks(self, timing: str = "pre") -> None:
        """Calls the hooks of a timing, in their order."""
        self.actual_optimizer.call_hooks(timing)

    def call_hook(self, hook: Any) -> None:
        """Calls a hook, with the wrapped optimizer or with its parameters."""
        self.actual_optimizer.call_hook(hook)

    def serialize(self, serializer: Any) -> None:
        """Loads or saves the state."""
        self.actual_optimizer.serialize(serializer)

    def loss_scaling(self, interval: int = 1000, scale: float | None = None) -> None:
        """Sets how the loss is scaled; see :meth:`chainer.Optimizer.loss_scaling`."""
        self.actual_optimizer.loss_scaling(interval, scale)

    def set_loss_scale(self, loss_scale: float) -> None:
        """Sets a fixed loss scale."""
        self.actual_optimizer.set_loss_scale(loss_scale)

    def check_nan_in_grads(self) -> None:
        """Checks, with a dynamic loss scale, whether gradients are finite."""
        self.actual_optimizer.check_nan_in_grads()

    def is_safe_to_update(self) -> bool:
        """Returns whether the last gradients were finite, if they are checked."""
        return not has_skipped(self.actual_optimizer)

    def update_loss_scale(self) -> None:
        """Changes the loss scale after an update, if it is dynamic."""
        self.actual_optimizer.update_loss_scale()

    def target_changed(self) -> None:
        """Prepares for a target with other parameters than before.

        Call this on all ranks. The state of all parameters is loaded next.
        """


def has_skipped(optimizer: Any) -> bool:
    """Returns whether the last update was skipped, as gradients were not finite.

    Args:
        optimizer: An optimizer of Chainer or ChainerMN, or a wrapper.

    Example:
        >>> import chainer
        >>> has_skipped(chainer.optimizers.SGD())
        False
    """
    is_wrapper = isinstance(optimizer, OptimizerWrapper)
    # Chainer's own optimizers have no answer before their first update.
    if not is_wrapper and not hasattr(optimizer, "_loss_scaling_isnan"):
        return False
    return not optimizer.is_safe_to_update()


def each_within(outermost: Any) -> Iterator[Any]:
    """Yields an optimizer and those that it wraps, the outermost first.

    A wrapper has the attributes of the wrapped optimizer. Only its type shows whether
    it has a method of its own.

    Args:
        outermost: An optimizer of Chainer or ChainerMN, or a wrapper.

    Example:
        >>> import chainer
        >>> sgd = chainer.optimizers.SGD()
        >>> wrapper = OptimizerWrapper(sgd)
        >>> list(each_within(wrapper)) == [wrapper, sgd]
        True
    """
    while outermost is not None:
        yield outermost
        outermost = getattr(outermost, "actual_optimizer", None)


def innermost(outermost: Any) -> Any:
    """Returns the optimizer within all wrappers, which may be the given one.

    Example:
        >>> import chainer
        >>> sgd = chainer.optimizers.SGD()
        >>> innermost(OptimizerWrapper(sgd)) is innermost(sgd) is sgd
        True
    """
    *_, found = each_within(outermost)
    return found


def _has(actual: Any, name: str) -> bool:
    """Returns whether an optimizer, or one that it wraps, has an attribute.

    Unlike ``hasattr(actual, name)`` this computes no properties.
    """
    if name in vars(actual) or hasattr(type(actual), name):
        return True
    return isinstance(actual, OptimizerWrapper) and _has(actual.actual_optimizer, name)
