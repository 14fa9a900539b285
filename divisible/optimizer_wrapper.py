"""An optimizer that stands where another one stood."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chainer import optimizer


def _forwarded(name: str) -> property:
    """A property that is the wrapped optimizer's."""
    return property(
        lambda self: getattr(self.actual_optimizer, name),
        lambda self, value: setattr(self.actual_optimizer, name, value),
    )


class OptimizerWrapper(optimizer.Optimizer):
    """Wraps an optimizer: hooks and hyperparameters are the wrapped one's.

    Args:
        actual_optimizer (chainer.Optimizer): The one to wrap.

    Raises:
        TypeError: If it is something else.
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
    # The inherited methods for hooks look here.
    _hookable = _forwarded("_hookable")

    def new_epoch(self, auto: bool = False) -> None:
        """Starts a new epoch."""
        self.actual_optimizer.new_epoch(auto)

    def is_safe_to_update(self) -> bool:
        """Returns whether the last gradients were finite, if anybody checks it."""
        return not has_skipped(self.actual_optimizer)

    def target_changed(self) -> None:
        """Prepares for a target that has other parameters than before.

        To be called on all ranks; the state of all parameters is loaded next.
        """


def has_skipped(optimizer: Any) -> bool:
    """Whether an optimizer has skipped its last update, as gradients were not finite.

    Args:
        optimizer: An optimizer of Chainer or ChainerMN, or a wrapper.

    Example:
        >>> import chainer
        >>> has_skipped(chainer.optimizers.SGD())
        False
    """
    is_wrapper = isinstance(optimizer, OptimizerWrapper)
    # Chainer's own optimizers cannot be asked before their first update.
    if not is_wrapper and not hasattr(optimizer, "_loss_scaling_isnan"):
        return False
    return not optimizer.is_safe_to_update()


def each_within(outermost: Any) -> Iterator[Any]:
    """Yields an optimizer and those that it wraps, the outermost first.

    Wrappers pass on the attributes of what is within: whether one of them has a method
    of its own, its type tells.

    Args:
        outermost: One of Chainer's or ChainerMN's, or a wrapper.

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


def _has(actual: Any, name: str) -> bool:
    """Whether an optimizer has an attribute, or one that it wraps.

    Unlike ``hasattr(actual, name)`` it computes no properties.
    """
    if name in vars(actual) or hasattr(type(actual), name):
        return True
    return isinstance(actual, OptimizerWrapper) and _has(actual.actual_optimizer, name)
