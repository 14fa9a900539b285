"""An update that is made before other ranks have confirmed it.

::

    copies       update                              confirmed: nothing to do
    parameters   as if no gradient were clipped      wrong: the copies are put back,
    states, t    and all were finite                        the right update is made

The right update continues from the very bits that the first one found. Settings, such
as a learning rate, may have changed meanwhile. It uses those of the first one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import chainer
import numpy as np

#: Attributes of an update rule that users set. Updates only read them.
_FLAGS = ("enabled", "_use_fp32_update")


class UnconfirmedUpdate(NamedTuple):
    """An update that the numbers of all ranks will confirm or not.

    Attributes:
        reduction: The reduction of these numbers, which has begun.
        is_right: Takes the outcome of the reduction, and returns whether the update is
            the right one.
        again: Takes the outcome, and makes the right update from the state before.
        loss_scale: The loss scale after the update; ``None`` if the update has none.
        is_surely_wrong: Whether this rank knows already that the update is wrong.
    """

    reduction: Any
    is_right: Callable[[Any], bool]
    again: Callable[[Any], None]
    loss_scale: float | None = None
    is_surely_wrong: bool = False


class Confirmation(Protocol):
    """Confirms the updates of a rank's optimizers late.

    Attributes:
        is_wanted (bool): Whether the next update does not wait for other ranks.
        copies (UpdateCopies): Copies for this update.
    """

    is_wanted: bool
    copies: UpdateCopies

    def begin(self, update: UnconfirmedUpdate) -> None:
        """Takes over an update that other ranks have not confirmed."""

    def note(self, is_right: bool) -> None:
        """Records whether an update without a wait would have been the right one."""

    def finish(self) -> None:
        """Waits for other ranks, if an update is unconfirmed, and corrects it."""


class UpdateCopies:
    """Copies of everything that an update changes.

    Example:
        >>> import chainer
        >>> link = chainer.links.Linear(2, 1, initialW=1)
        >>> adam = chainer.optimizers.Adam(0.5).setup(link)
        >>> link.W.grad, link.b.grad = np.ones((1, 2), 'f'), np.ones(1, 'f')
        >>> copies = UpdateCopies()
        >>> copies.take([adam], with_gradients=False)
        >>> copies.n_bytes
        12
        >>> adam.update()
        >>> with copies.put_back():
        ...     link.W.array, adam.t, link.W.update_rule.state
        (array([[1., 1.]], dtype=float32), 0, None)
    """

    def __init__(self) -> None:
        # References to arrays, with their copies, by the arrays' ids. Copies serve
        # again and again.
        self._copies: dict[int, tuple[Callable[[], Any], Any]] = {}
        self._optimizers: Sequence[tuple[Any, int]] = ()
        self._params: Sequence[tuple] = ()
        self._rules: Sequence[tuple[Any, dict, dict | None]] = ()
        self._flags: Sequence[tuple[dict, dict]] = ()
        self._states: Sequence[tuple[dict, dict]] = ()
        self._settings: Sequence[tuple[dict, dict]] = ()

    @property
    def n_bytes(self) -> int:
        """Bytes of the copies."""
        return sum(copy.nbytes for _, copy in self._copies.values())

    def take(
        self,
        optimizers: Sequence[chainer.GradientMethod],
        with_gradients: bool,
        arrays: Iterable[Any] = (),
        states: Iterable[Any] = (),
    ) -> None:
        """Copies what an update of the optimizers will change.

        Args:
            optimizers: The optimizers, without wrappers.
            with_gradients (bool): Whether the update changes the gradients.
            arrays: Further arrays that the update changes.
            states: Further objects whose attributes it changes, all of them numbers.
        """
        known = {id(p): p for o in optimizers for p in o.target.params()}
        params = [p for p in known.values() if p.is_initialized]
        # Rules count updates before their parameter has an array.
        rules = [p.update_rule for p in known.values() if p.update_rule is not None]
        self._optimizers = [(o, o.t) for o in optimizers]
        self._params = [(p, id(p.array), p.grad, p._loss_scale) for p in params]
        self._rules = [(rule, _numbers(rule), _state(rule)) for rule in rules]
        self._flags = [
            (vars(rule), {name: vars(rule)[name] for name in _FLAGS}) for rule in rules
        ]
        self._states = [(vars(each), dict(vars(each))) for each in states]
        self._settings = [(d, dict(d)) for d in _settings(optimizers, rules)]
        changed = [*arrays]
        for param, _, gradient, _ in self._params:
            rule = param.update_rule
            if rule is not None and rule.enabled:
                changed += [param.array, *_arrays(rule)]
                if with_gradients and gradient is not None:
                    changed.append(gradient)
        self._copy(changed)

    def _copy(self, arrays: Sequence[Any]) -> None:
        before, self._copies = self._copies, {}
        for array in arrays:
            known, copy = before.get(id(array), (None, None))
            with chainer.using_device(chainer.backend.get_device_from_array(array)):
                if known is not None and known() is array:
                    copy[...] = array
                else:
                    known, copy = _reference(array), array.copy()
            self._copies[id(array)] = known, copy

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Takes the update back. In the context, settings are those of its time."""
        for reference, copy in self._copies.values():
            with chainer.using_device(chainer.backend.get_device_from_array(copy)):
                array = reference()
                # The array of a parameter that was given another one is free.
                if array is not None:
                    array[...] = copy
        for optimizer, t in self._optimizers:
            optimizer.t = t
        for rule, numbers, state in self._rules:
            vars(rule).update(numbers)
            rule._state = None if state is None else dict(state)
        for param, key, gradient, loss_scale in self._params:
            if key in self._copies:
                reference, copy = self._copies[key]
                array = reference()
                param.array = copy.copy() if array is None else array
            param.grad, param._loss_scale = gradient, loss_scale
        _assign(self._states)
        settings = [(d, dict(d)) for d, _ in self._settings]
        flags = [(d, {name: d[name] for name in _FLAGS}) for d, _ in self._flags]
        _assign(self._settings)
        for attributes, kept in self._flags:
            attributes.update(kept)
        try:
            yield
        finally:
            _assign(settings)
            for attributes, present in flags:
                attributes.update(present)


def _reference(array: Any) -> Callable[[], Any]:
    """Returns a function that returns an array, as long as others have it as well.

    Kernels make sure of weights that others have, which takes as long as a small layer.
    """
    return weakref.ref(array) if type(array) is np.ndarray else lambda: array


def _numbers(rule: chainer.UpdateRule) -> dict[str, Any]:
    """Returns the attributes of a rule that are numbers or None, such as ``t``."""
    return {
        name: value
        for name, value in vars(rule).items()
        if (value is None or isinstance(value, (int, float, np.generic)))
        and name not in (*_FLAGS, "_state")
    }


def _state(rule: chainer.UpdateRule) -> dict[str, Any] | None:
    return None if rule.state is None else dict(rule.state)


def _arrays(rule: chainer.UpdateRule) -> Iterator[Any]:
    """Yields the arrays of a rule: its state, and the parameter in float32."""
    for value in (rule.state or {}).values():
        if isinstance(value, chainer.get_array_types()):
            yield value
    if rule._fp32_param is not None and rule._fp32_param.array is not None:
        yield rule._fp32_param.array


def _settings(
    optimizers: Iterable[chainer.GradientMethod], rules: Iterable[chainer.UpdateRule]
) -> Iterator[dict]:
    """Yields the dictionaries with settings: hyperparameters, hooks, their rates."""
    for owner in (*optimizers, *rules):
        yield vars(owner.hyperparam)
        for hooks in (
            owner._hookable._pre_update_hooks,
            owner._hookable._post_update_hooks,
        ):
            yield hooks
            yield from map(vars, hooks.values())


def _assign(contents: Iterable[tuple[dict, dict]]) -> None:
    """Gives dictionaries their contents."""
    for target, content in contents:
        target.clear()
        target.update(content)
