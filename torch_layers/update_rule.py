"""An optimizer of PyTorch as the update rule of one parameter.

PyTorch's optimizers treat each tensor separately, so one of them for each parameter
computes the same as one for all. Its state lies in the rule's ``state``, where Chainer
has that of its own rules: by name, in the same memory::

    AdamW   state   step        exp_avg     exp_avg_sq
    rule    state   'step'      'exp_avg'   'exp_avg_sq'     in snapshots, by parameter
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import chainer
import numpy as np
import torch

from torch_layers.arrays import to_array, to_tensor

# Length of the first axis of a small tensor; the next ones are longer by one each.
_SHORTEST = 2

Make = Callable[[list], torch.optim.Optimizer]


class TorchRule(chainer.UpdateRule):
    """The update rule of one parameter.

    Args:
        make: Makes the optimizer for a list of tensors.
        hyperparam (chainer.optimizer.Hyperparameter): The hyperparameters of all rules.
            Those that are numbers may be set for one rule alone.
        names: Names of the hyperparameters.

    Attributes:
        kind (type): The class of the optimizer.
    """

    kind: type

    def __init__(self, make: Make, hyperparam: Any, names: tuple[str, ...]) -> None:
        super().__init__(parent_hyperparam=hyperparam)
        self._make, self._names = make, names
        # Number of axes of the parameter; some states depend on it.
        self._n_axes = 1
        self._forget()

    def _forget(self) -> None:
        self._optimizer: torch.optim.Optimizer | None = None
        self._tensor: torch.Tensor | None = None
        # The array of the parameter, and the arrays of the state, when they were used.
        self._array: Any = None
        self._known: dict[str, Any] = {}

    def __reduce__(self) -> tuple:
        left_out = ("_optimizer", "_tensor", "_array", "_known")
        state = {k: v for k, v in vars(self).items() if k not in left_out}
        return _copied, (self.kind, state)

    def expect(self, param: chainer.Parameter) -> None:
        """Prepares for a parameter, before its state is known."""
        if param.is_initialized:
            self._n_axes = param.ndim

    def init_state(self, param: chainer.Variable) -> None:
        """Finds the names and shapes of the state; its values come in the first update.

        Args:
            param: A variable that stands for the parameter, with other values.
        """
        if isinstance(param, chainer.Parameter):
            return
        # A file is read with the parameter unknown, by an array of one axis.
        shape = (1,) * self._n_axes if param.ndim == 1 else param.shape
        self.state.update(self._first_state(shape, param.dtype))

    def state_bytes(self, param: chainer.Parameter) -> int:
        """Returns the bytes of the state, which PyTorch makes in the first update.

        The optimizer runs on a tensor of a few numbers, each axis of which has a length
        of its own. An axis of the state with this length is as long as the parameter's.

        Args:
            param (chainer.Parameter): The parameter, which is not changed.

        Returns:
            int: Number of bytes; 0 for a parameter that the optimizer refuses.

        Example:
            >>> make = lambda tensors: torch.optim.Adam(tensors)
            >>> rule = rule_of(torch.optim.Adam)(make, None, ())
            >>> rule.state_bytes(chainer.Parameter(np.zeros((9, 5), np.float32)))
            364
        """
        lengths = {_SHORTEST + axis: n for axis, n in enumerate(param.shape)}
        n_bytes = 0
        for value in self._first_state(tuple(lengths), param.dtype).values():
            n_bytes += value.itemsize * math.prod(
                lengths.get(n, n) for n in value.shape
            )
        return n_bytes

    def _first_state(self, shape: tuple[int, ...], dtype: Any) -> dict[str, Any]:
        """Returns the state after an update of zeros; empty if it is refused."""
        tensor = to_tensor(np.zeros(shape, dtype))
        tensor.grad = torch.zeros_like(tensor)
        optimizer = self._make([tensor])
        try:
            optimizer.step()
        except (RuntimeError, ValueError):
            # Some optimizers accept matrices only.
            return {}
        return _arrays(optimizer.state[tensor])

    def update_core(self, param: chainer.Variable) -> None:
        """Updates the parameter by one step of the optimizer."""
        if param.grad is None:
            return
        if self._array is not param.array or self._has_other_state():
            self._begin(param)
        group = self._optimizer.param_groups[0]
        for name in self._names:
            value = getattr(self.hyperparam, name)
            if not isinstance(group[name], torch.Tensor):
                group[name] = value
        self._tensor.grad = to_tensor(param.grad)
        self._optimizer.step()
        self._tensor.grad = None
        self._known = _arrays(self._optimizer.state[self._tensor])
        self.state.update(self._known)

    def _has_other_state(self) -> bool:
        """Returns whether the state has been replaced, such as by that of a file."""
        state, known = self.state, self._known
        return len(state) != len(known) or any(
            state[name] is not array for name, array in known.items()
        )

    def _begin(self, param: chainer.Variable) -> None:
        self._array = param.array
        self._tensor = to_tensor(param.array)
        self._optimizer = self._make([self._tensor])
        if self.state:
            self._optimizer.state[self._tensor] = {
                name: to_tensor(np.asarray(value) if np.isscalar(value) else value)
                for name, value in self.state.items()
            }


@functools.cache
def rule_of(kind: type) -> type[TorchRule]:
    """Returns the class of the rules for a class of optimizers.

    Snapshots have the names of rules, by which a state of another optimizer is found.

    Example:
        >>> rule_of(torch.optim.AdamW).__name__
        'TorchAdamWRule'
    """
    attributes = {"__doc__": kind.__doc__, "kind": kind}
    return type(f"Torch{kind.__name__}Rule", (TorchRule,), attributes)


def _copied(kind: type, state: dict[str, Any]) -> TorchRule:
    """Returns a rule with the state of another one, in this process or another."""
    rule = rule_of(kind)
    ret = rule.__new__(rule)
    vars(ret).update(state)
    ret._forget()
    return ret


def _arrays(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the tensors of a state as arrays; what has no value is left out."""
    return {
        name: to_array(value) if torch.is_tensor(value) else np.asarray(value)
        for name, value in state.items()
        if value is not None
    }
