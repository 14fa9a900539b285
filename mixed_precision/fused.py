"""Update rules of Chainer that have a kernel over flat buffers.

Neighbouring parameters with the same rule, the same number of updates and the same
hyperparameters are one call. Parameters with a rule of their own, with hooks of their
own, or with hyperparameters of their own are updated as ever, or in a call of their
own; nobody has to care.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import chainer
import numpy as np
from chainer.optimizers.adam import AdamRule
from chainer.optimizers.momentum_sgd import MomentumSGDRule
from chainer.optimizers.sgd import SGDRule

from mixed_precision.flat import Gathered, Group
from mixed_precision.momentum_sgd16 import MomentumSGD16Rule


class Kernel(NamedTuple):
    """How to call the kernel of an update rule.

    Attributes:
        name: Of the function in the kernels' module.
        states: The rule's states, in the order of the kernel's arguments.
        numbers: Returns the numbers that follow.
    """

    name: str
    states: tuple[str, ...]
    numbers: Callable[[Any, Any], tuple[float, ...]]


def _adam_numbers(rule: AdamRule, hp: Any) -> tuple[float, ...]:
    rule._check_eps(np.float32)
    return (
        rule.alpha_t,
        1.0 - hp.beta1,
        1.0 - hp.beta2,
        hp.eps,
        1.0 - hp.eta * hp.weight_decay_rate,
        hp.eta,
    )


#: Exact types: a subclass may do anything.
KERNELS = {
    SGDRule: Kernel("sgd", (), lambda rule, hp: (hp.lr,)),
    MomentumSGDRule: Kernel(
        "momentum_sgd", ("v",), lambda rule, hp: (hp.lr, hp.momentum)
    ),
    AdamRule: Kernel("adam", ("m", "v"), _adam_numbers),
    MomentumSGD16Rule: Kernel(
        "accumulated_sgd", ("g",), lambda rule, hp: (hp.lr, hp.momentum)
    ),
}


class Run(NamedTuple):
    """Parameters ``first`` to ``last`` of a group, to be updated in one call."""

    group: Group
    first: int
    last: int


def plan(groups: Sequence[Group]) -> tuple[list[Run], list[chainer.Parameter]]:
    """Says which parameters are updated by kernels, and which by their own rules."""
    runs: list[Run] = []
    others: list[chainer.Parameter] = []
    for group in groups:
        before = None
        for i, p in enumerate(group.parameters):
            rule = p.update_rule
            key = None if rule is None else _key(rule)
            if key is None:
                if rule is not None and rule.enabled:
                    others.append(p)
            elif key == before:
                runs[-1] = runs[-1]._replace(last=i)
            else:
                runs.append(Run(group, i, i))
            before = key
    return runs, others


def _key(rule: chainer.UpdateRule) -> tuple | None:
    """Returns what rules updated in one call have in common; None for no kernel."""
    if not rule.enabled or type(rule) not in KERNELS:
        return None
    hookable = rule._hookable
    if hookable._pre_update_hooks or hookable._post_update_hooks:
        return None
    hp = rule.hyperparam
    if type(rule) is AdamRule and (hp.amsgrad or hp.adabound):
        return None
    own = id(rule) if len(vars(hp)) > 1 else None
    return type(rule), rule.t, getattr(rule, "scale", None), id(hp.parent), own


def update(
    run: Run, gathered: Gathered, inverse: float, loss_scale: float, in_float32: bool
) -> None:
    """Updates the parameters of a run.

    Args:
        run (Run): From :func:`plan`.
        gathered (Gathered): The gradients of the run's group.
        inverse (float): What they are multiplied by.
        loss_scale (float): The loss scale of this step.
        in_float32 (bool): Whether the parameters are in float32 now.
    """
    group, first, last = run
    rules = [p.update_rule for p in group.parameters[first : last + 1]]
    rule = rules[0]
    kernel = KERNELS[type(rule)]
    for each in rules:
        each.t += 1
    name, numbers = kernel.name, kernel.numbers(rule, rule.hyperparam)
    dtype = group.compute_dtype
    if type(rule) is MomentumSGD16Rule and group.is_half:
        name, dtype = "momentum_sgd16", np.dtype(np.float16)
        scale, before = rule.scale_for(loss_scale), rule.scale
        inverse *= scale
        lr, momentum = numbers
        numbers = lr / scale, momentum * (scale / before)
        for each in rules:
            each.scale = scale
    states = [_state(state, dtype, run) for state in kernel.states]
    with chainer.using_device(group.device):
        getattr(group.kernels, name)(
            gathered.gradients,
            first,
            last,
            group.scalar(inverse),
            *group.buffers(in_float32),
            *states,
            *map(group.scalar, numbers),
        )


def _state(name: str, dtype: np.dtype, run: Run) -> Any:
    """Returns a flat buffer of state for a kernel."""
    flat, views = run.group.state(name, dtype)
    _install(run, name, views)
    return flat.view(np.uint16) if dtype == np.float16 else flat


def _install(run: Run, name: str, views: Sequence[Any]) -> None:
    """Makes the rules' states views of the flat buffer, with the values they have."""
    group, first, last = run
    for i in range(first, last + 1):
        rule = group.parameters[i].update_rule
        if rule.state is None:
            rule._state = {}
        existing = rule.state.get(name)
        if existing is views[i]:
            continue
        if existing is None:
            views[i].fill(0)
        else:
            views[i][...] = group.device.send(existing)
        rule.state[name] = views[i]
