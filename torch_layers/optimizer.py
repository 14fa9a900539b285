"""PyTorch's optimizers with the face of Chainer's."""

from __future__ import annotations

import functools
import json
from typing import Any

import chainer
import numpy as np
import torch
from chainer.optimizer import HyperparameterProxy

from torch_layers.update_rule import TorchRule, rule_of

# Key of the state of schedulers in a file.
_KEY = "schedulers"


class TorchOptimizer(chainer.GradientMethod):
    """An optimizer of ``torch.optim`` for any link, of PyTorch or of Chainer.

    ``setup``, ``update``, hooks, ``serialize`` and the update rules are those of
    Chainer's optimizers. So pipelines, snapshots and exchanges of gradients treat it as
    one of them. Hyperparameters that are numbers are attributes of ``hyperparam``,
    under PyTorch's names; a parameter may have others by
    ``param.update_rule.hyperparam``.

    Args:
        kind (type): A class of ``torch.optim`` that treats each tensor separately: all
            but ``LBFGS``.
        options: Its arguments, such as ``lr=1e-3``.

    Raises:
        TypeError: If ``kind`` is not such a class, or an argument is not one of it.

    Example:
        >>> import numpy as np
        >>> link = chainer.links.Linear(1, 1, initialW=1)
        >>> optimizer = TorchOptimizer(torch.optim.SGD, lr=0.5).setup(link)
        >>> link.W.grad, link.b.grad = np.ones((1, 1), 'f'), np.ones(1, 'f')
        >>> optimizer.update()
        >>> link.W.array.item(), link.b.array.item()
        (0.5, -0.5)
        >>> kind = torch.optim.lr_scheduler.StepLR
        >>> scheduler = optimizer.scheduler(kind, step_size=1)
        >>> scheduler.step()
        >>> round(optimizer.hyperparam.lr, 3)
        0.05
    """

    lr = HyperparameterProxy("lr")

    def __init__(self, kind: type[torch.optim.Optimizer], **options: Any) -> None:
        super().__init__()
        is_known = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
        if not is_known or issubclass(kind, torch.optim.LBFGS):
            raise TypeError(
                f"TorchOptimizer needs a class of torch.optim that updates each tensor"
                f" by its own gradient, not {kind!r}: such as"
                f" TorchOptimizer(torch.optim.AdamW, lr=1e-3)"
            )
        self.kind = kind
        self._make = functools.partial(_made, kind, options)
        # Learning-rate schedulers change the hyperparameters of this one.
        self._head = self._make([torch.zeros(())])
        self._schedulers: list[Any] = []
        group = self._head.param_groups[0]
        self._names = tuple(name for name, value in group.items() if _is_set(value))
        for name in self._names:
            setattr(self.hyperparam, name, group[name])
        self._head.param_groups[0] = _Group(group, self.hyperparam, self._names)

    def setup(self, link: chainer.Link) -> TorchOptimizer:
        """Sets the link to update; see :meth:`chainer.GradientMethod.setup`."""
        super().setup(link)
        for param in link.params():
            param.update_rule.expect(param)
        return self

    def create_update_rule(self) -> TorchRule:
        """Returns the rule of a parameter."""
        return rule_of(self.kind)(self._make, self.hyperparam, self._names)

    def scheduler(self, kind: type, **options: Any) -> Any:
        """Returns a learning-rate scheduler of PyTorch for this optimizer.

        Call its ``step`` on every rank, as often as a serial script does. Its state is
        saved with that of the optimizer.

        Args:
            kind (type): A class of ``torch.optim.lr_scheduler``.
            options: Its arguments.
        """
        made = kind(self._head, **options)
        self._schedulers.append(made)
        # Schedulers warn unless their optimizer has made a step before.
        self._head.step()
        return made

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Saves or loads the optimizer, its update rules and its schedulers.

        Schedulers continue from the present hyperparameters, so these are saved too.

        Raises:
            ValueError: If another number of schedulers was saved.
        """
        super().serialize(serializer)
        if not self._schedulers:
            return
        values = {name: getattr(self.hyperparam, name) for name in self._names}
        states = [_plain(each.state_dict()) for each in self._schedulers]
        if not isinstance(serializer, chainer.Deserializer):
            # Bytes, since HDF5 has no arrays of text.
            serializer(_KEY, np.array(json.dumps([values, *states]).encode()))
            return
        text = serializer(_KEY, None)
        if text is None:
            return
        saved, *found = json.loads(np.asarray(text).item())
        if len(found) != len(states):
            raise ValueError(
                f"the optimizer was saved with {len(found)} schedulers, and has"
                f" {len(states)}: make the same ones before you load"
            )
        for scheduler, state in zip(self._schedulers, found):
            scheduler.load_state_dict(state)
        # Hyperparameters of another kind of optimizer are not taken over.
        if saved.keys() == values.keys():
            for name, value in saved.items():
                is_tuple = isinstance(value, list)
                setattr(self.hyperparam, name, tuple(value) if is_tuple else value)

    def loaded_parts(self) -> list[Any]:
        """Returns the objects besides rules whose attributes a load changes."""
        return self._schedulers


class _Group(dict):
    """The group of parameters that schedulers change, and the hyperparameters with it.

    Args:
        group: The group of an optimizer.
        hyperparam (chainer.optimizer.Hyperparameter): Has the values of some names.
        names: These names.
    """

    def __init__(self, group: dict, hyperparam: Any, names: tuple[str, ...]) -> None:
        super().__init__(group)
        self._hyperparam, self._names = hyperparam, names

    def __reduce__(self) -> tuple:
        # A pickle of a dictionary sets its items before it has attributes.
        return _Group, (dict(self), self._hyperparam, self._names)

    def __getitem__(self, name: str) -> Any:
        if name in self._names:
            return getattr(self._hyperparam, name)
        return super().__getitem__(name)

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._names:
            setattr(self._hyperparam, name, value)
        super().__setitem__(name, value)


def _made(
    kind: type[torch.optim.Optimizer], options: dict[str, Any], tensors: list
) -> torch.optim.Optimizer:
    return kind(tensors, **options)


def _is_set(value: Any) -> bool:
    """Returns whether a hyperparameter is a number, or a tuple of numbers."""
    values = value if isinstance(value, tuple) else (value,)
    return bool(values) and all(type(each) in (int, float) for each in values)


def _plain(value: Any) -> Any:
    """Returns the numbers and texts of a scheduler's state, without functions."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if isinstance(k, str) and _is_plain(v)}
        return {k: _plain(v) for k, v in kept.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(each) or isinstance(each, dict) for each in value)
    return value is None or isinstance(value, (bool, int, float, str))
