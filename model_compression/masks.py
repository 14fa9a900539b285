"""Pruned elements of parameters, and the hook that keeps them zero."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable

import chainer
import numpy as np

from divisible.optimizer_wrapper import has_skipped
from model_compression.hooks import HookOfParameters
from model_compression.scores import Granularity, group_shape, sums
from model_compression.shrinking import Assignment, Left

#: An array of NumPy or CuPy.
Array = Any
#: Takes shapes by path; returns a function that undoes its changes.
Fit = Callable[[Mapping[str, Sequence[int]]], Callable[[], None]]


class Mask:
    """The pruned elements of one parameter.

    Args:
        shape: Shape of the parameter; ``None`` before its layer is sized at the first
            call.
        dtype: Dtype of the parameter.
        goes_back (bool): Whether a step may be taken back.
        granularity: Groups whose effects on the loss are recorded; ``None`` for no
            record.

    Attributes:
        pruned: Pruned elements: boolean, of the parameter's shape, on its device;
            ``None`` without a shape.
        last: Elements that the last step has pruned; ``None`` where steps are not taken
            back.
        before: Values of these elements before they were pruned, zeros elsewhere.
        effects: Sum of |sum of w g| over minibatches for each group, in host memory;
            ``None`` where no method needs it.
        n_minibatches: Number of these minibatches.
    """

    def __init__(
        self,
        shape: tuple[int, ...] | None,
        dtype: np.dtype | None,
        goes_back: bool = False,
        granularity: Granularity | None = None,
    ) -> None:
        self.shape, self._goes_back = shape, goes_back
        self.pruned: Array | None = None
        self.last: Array | None = None
        self.before: Array | None = None
        if shape is not None:
            self.pruned = np.zeros(shape, bool)
            self.last = np.zeros(shape, bool) if goes_back else None
            self.before = np.zeros(shape, dtype) if goes_back else None
        self._granularity, self.effects = granularity, None
        if granularity is not None:
            self.effects = np.zeros(group_shape(shape, granularity))
        self.n_minibatches = 0

    def prune(self, more: np.ndarray, params: Iterable[chainer.Parameter]) -> None:
        """Sets more elements to zero.

        Args:
            more: Elements to prune, which are not pruned yet: boolean, of the
                parameter's shape.
            params: The parameter; several if this rank has equal copies.
        """
        params = list(params)
        device = params[0].device
        more = device.send(more)
        self._to(device)
        if self.last is not None:
            with chainer.using_device(device):
                self.last = more
                self.before = device.xp.where(more, params[0].array, 0).astype(
                    params[0].dtype
                )
        with chainer.using_device(device):
            self.pruned |= more
        for param in params:
            self.clear(param.update_rule, param)

    def take_back(self, params: Iterable[chainer.Parameter]) -> None:
        """Gives the elements of the last step the values that they had.

        Elements that were zero before stay as they are: another mask may have pruned
        them, and have restored their values already.
        """
        params = list(params)
        device = params[0].device
        self._to(device)
        with chainer.using_device(device):
            had_value = self.last & (self.before != 0)
            for param in params:
                for array in _weights(param.update_rule, param):
                    device.xp.copyto(
                        array, self.before, casting="same_kind", where=had_value
                    )
            self.pruned &= ~self.last
            self.last[...] = False

    def clear(self, rule: Any, param: chainer.Parameter) -> None:
        """Sets pruned elements to zero, in the weights and in the rule's state."""
        if self.pruned is None:
            return
        device = param.device
        self._to(device)
        arrays = _weights(rule, param)
        for value in ((rule and rule.state) or {}).values():
            if getattr(value, "shape", None) == param.shape:
                arrays.append(value)
        with chainer.using_device(device):
            for array in arrays:
                # Not by a product: overflown numbers must not become NaN.
                device.xp.copyto(array, array.dtype.type(0), where=self.pruned)

    def without(self, left: Left) -> Mask:
        """Returns the mask of the remaining part; this mask is not changed.

        Effects of blocks, which change, are recorded from zero again. Elements and rows
        keep their effects, as removed columns have had none.

        Args:
            left: The part of the parameter that remains.
        """
        found, shape = copy.copy(self), self.shape
        found.shape = left.shape_of(shape)
        for name in ("pruned", "last", "before"):
            array = getattr(self, name)
            if array is not None:
                with chainer.using_device(chainer.backend.get_device_from_array(array)):
                    setattr(found, name, left.of(array))
        if self.effects is None:
            return found
        watched = group_shape(found.shape, self._granularity)
        if self.effects.shape == watched:
            return found
        if self.effects.size == np.prod(shape):
            found.effects = left.of(self.effects.reshape(shape)).reshape(watched)
        elif left.axis == 0 and len(self.effects) == shape[0]:
            found.effects = left.of(self.effects)
        else:
            found.effects, found.n_minibatches = np.zeros(watched), 0
        return found

    def note(self, param: chainer.Parameter) -> None:
        """Adds the effect of each group on the loss in a minibatch."""
        if param.grad is None:
            return
        host = chainer.get_device("@numpy")
        weight, gradient = host.send(param.array), host.send(param.grad)
        products = np.multiply(weight, gradient, dtype=np.float64)
        # Still scaled where Chainer's own optimizer unscales later; scales change.
        products /= float(param._loss_scale or 1.0)
        self.effects += np.abs(sums(products, self._granularity))
        self.n_minibatches += 1

    def scores(self) -> np.ndarray:
        """Returns the mean effects since the last call, and sets them to zero."""
        found = self.effects / max(1, self.n_minibatches)
        self.effects[...] = 0
        self.n_minibatches = 0
        return found

    def serialize(self, serializer: Any) -> None:
        """Reads or writes the pruned elements."""
        for name in ("pruned", "last", "before") if self._goes_back else ("pruned",):
            array = getattr(self, name)
            found = serializer(name, array)
            if found is None and array is not None:
                # Nothing was pruned while the parameter had no size.
                found = chainer.backend.get_array_module(array).zeros_like(array)
            setattr(self, name, found)
        if self.effects is not None:
            self.effects = serializer("effects", self.effects)
            self.n_minibatches = int(serializer("n_minibatches", self.n_minibatches))

    def _to(self, device: chainer.backend.Device) -> None:
        """Moves the arrays to the parameter's device."""
        for name in ("pruned", "last", "before"):
            array = getattr(self, name)
            if array is not None and not isinstance(array, device.xp.ndarray):
                setattr(self, name, device.send(array))


def _weights(rule: Any, param: chainer.Parameter) -> list[Array]:
    """Returns the arrays that hold a parameter's values."""
    found = [param.array]
    master = getattr(rule, "_fp32_param", None)
    if master is not None and master.array is not None:
        found.append(master.array)
    return found


def _nothing(shapes: Mapping[str, Sequence[int]]) -> Callable[[], None]:
    """Returns a function that undoes nothing, as all sizes are right."""
    return lambda: None


class Masks(HookOfParameters):
    """The hook of an optimizer that keeps pruned elements at zero.

    Args:
        goes_back (bool): Whether a step may be taken back.
        fit: Function that :meth:`fit` calls to resize layers.
        watches (bool): Whether effects of some parameters are recorded.
        name (str): Name of the hook; an optimizer has one hook of each name.

    Attributes:
        refusal (str or None): Why the model must not be used; ``None`` if it may be
            used.
    """

    def __init__(
        self,
        goes_back: bool = False,
        fit: Fit = _nothing,
        watches: bool = False,
        name: str = "Masks",
    ) -> None:
        super().__init__()
        self.name = name
        self.refusal: str | None = None
        self._goes_back, self._fit, self._watches = goes_back, fit, watches
        self._masks: dict[str, Mask] = {}
        # Granularity of the recorded effects by path, or None without a record.
        self._selected: dict[str, Granularity | None] = {}

    def add_to(self, optimizer: Any) -> None:
        """Adds the hook to an optimizer; see :class:`HookOfParameters`."""
        super().add_to(optimizer)
        if self._watches:
            effects = Effects(self, optimizer)
            optimizer.add_hook(effects)
            # Runs before hooks that clip gradients, or add the decay of weights to
            # them.
            hooks = optimizer._hookable._pre_update_hooks
            hooks.move_to_end(effects.name, last=False)

    def check_usable(self) -> None:
        """Refuses a model that was changed in part.

        Raises:
            RuntimeError: With the :attr:`refusal`, if the model was changed in part.
        """
        if self.refusal is not None:
            raise RuntimeError(self.refusal)

    def select(self, watched: Mapping[str, Granularity | None]) -> None:
        """Selects the parameters that may be pruned, of the whole model if it is known.

        Args:
            watched: Granularity by which effects are recorded, or ``None``, by path.
        """
        self._selected = dict(watched)

    @property
    def paths(self) -> set[str]:
        """The paths of the parameters that may be pruned."""
        return {*self._selected}

    def state_of(self, path: str, param: chainer.Parameter) -> Mask | None:
        """Returns the mask of a parameter; ``None`` if it must not be pruned.

        Args:
            path: Path in the model.
            param: The parameter.
        """
        if path not in self._selected:
            return None
        mask = self._masks.get(path)
        shape = param.shape if param.is_initialized else None
        # For a parameter that a snapshot has resized, the snapshot has another mask.
        if mask is None or mask.shape != shape:
            dtype = None if shape is None else param.dtype
            self._masks[path] = Mask(
                shape, dtype, self._goes_back, self._selected[path]
            )
        return self._masks[path]

    def fit(self, shapes: Mapping[str, Sequence[int]]) -> Callable[[], None]:
        """Gives layers the sizes that they had when a snapshot was saved.

        Called before the snapshot is read, as channels may have been removed.

        Args:
            shapes: Shapes of parameters and persistent values of this rank, by path.

        Returns:
            A function that undoes the changes, if the snapshot cannot be read.

        Raises:
            RuntimeError: With the :attr:`refusal`, if the model was changed in part.
        """
        self.check_usable()
        masks = dict(self._masks)
        undo = self._fit(shapes)

        def set_back() -> None:
            undo()
            self._masks = masks

        return set_back

    def take_back(self, paths: Iterable[str]) -> None:
        """Restores the elements of this rank that the last step has pruned.

        Args:
            paths: Paths in the model, some of which this rank has.
        """
        params = self.params()
        for path in params.keys() & {*paths}:
            self.state_of(path, params[path][0]).take_back(params[path])

    def clear(self) -> None:
        """Sets pruned elements to zero, in all parameters of this rank."""
        for path, params in self.params().items():
            for param in params:
                self.state_of(path, param).clear(param.update_rule, param)

    def taking_away(self, left: Mapping[str, Sequence[Left]]) -> list[Assignment]:
        """Makes the masks of the remaining parts of parameters; changes nothing yet.

        Args:
            left: Remaining parts of each parameter by path, which may be on another
                rank.

        Returns:
            The assignments that replace the masks.
        """
        found = []
        for path in left.keys() & self._masks.keys():
            mask = functools.reduce(Mask.without, left[path], self._masks[path])
            found.append(functools.partial(self._masks.__setitem__, path, mask))
        return found

    def __call__(self, rule: Any, param: chainer.Parameter) -> None:
        """Sets the pruned elements of an updated parameter to zero.

        Raises:
            RuntimeError: With the :attr:`refusal`, if the model was changed in part.
        """
        self.check_usable()
        path = self.path_of(param)
        if path not in self._selected:
            return
        self.state_of(path, param).clear(rule, param)

    def note(self, param: chainer.Parameter) -> None:
        """Records the effects of a parameter in a minibatch, if its rule needs them."""
        path = self.path_of(param)
        if self._selected.get(path) is not None:
            self.state_of(path, param).note(param)


class Effects:
    """The hook that records the effects of parameters on the loss.

    The hook comes before the update and all other hooks, while the gradients are those
    of the loss at the present weights.

    Args:
        masks (Masks): Masks that store the effects.
        optimizer (chainer.Optimizer): Owner of the hook. Chainer's own optimizers call
            hooks also in an update that they skip.
    """

    name = "Effects"
    timing = "pre"
    call_for_each_param = True

    def __init__(self, masks: Masks, optimizer: Any) -> None:
        self._masks, self._optimizer = masks, optimizer

    def __call__(self, rule: Any, param: chainer.Parameter) -> None:
        """Records the effects of a parameter that is to be updated."""
        if not has_skipped(self._optimizer):
            self._masks.note(param)
