"""Update rules of Chainer that have a kernel over flat buffers.

Neighbouring parameters with the same rule, the same number of updates and the same
hyperparameters are updated in one call. Parameters with hooks or hyperparameters of
their own are updated in a call of their own. A parameter whose rule has no kernel is
updated by that rule.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import chainer
from chainer.optimizers.adam import AdamRule
from chainer.optimizers.momentum_sgd import MomentumSGDRule
from chainer.optimizers.sgd import SGDRule

from chainer_kernels import update_rules
from chainer_kernels.chainer_rules import CALLS
from chainer_kernels.formulas import Formula, number_names, state_names
from mixed_precision.flat import Gathered, Group
from mixed_precision.momentum_sgd16 import MomentumSGD16Rule


class Call(NamedTuple):
    """A call of a compiled loop.

    Attributes:
        formula: Formula of the update.
        numbers: Hyperparameters of the formula.
        factor: Factor of the unscaled gradients.
    """

    formula: Formula
    numbers: Sequence[float]
    factor: float = 1.0


class Kernel(NamedTuple):
    """How the parameters of an update rule are updated in one call.

    Attributes:
        formula: Formula of the update, with the rule's states, and hyperparameters as
            numbers.
        prepare: Returns the call for the rules of some parameters, their group, and the
            loss scale. ``None`` where the call is the formula with the hyperparameters
            of the names in it.
        suits: Returns whether the formula covers the options of a rule; ``None`` if the
            rule has no options.
    """

    formula: Formula
    prepare: Callable[[Sequence[Any], Group, float], Call] | None = None
    suits: Callable[[Any], bool] | None = None


def _adam(rules: Sequence[AdamRule], group: Group, loss_scale: float) -> Call:
    rules[0]._check_eps(group.compute_dtype.type)
    return Call(*CALLS[AdamRule](rules[0]))


def _is_plain_adam(rule: AdamRule) -> bool:
    return not (rule.hyperparam.amsgrad or rule.hyperparam.adabound)


def _momentum_sgd16(
    rules: Sequence[MomentumSGD16Rule], group: Group, loss_scale: float
) -> Call:
    rule, hp = rules[0], rules[0].hyperparam
    scale = rule.scale_for(loss_scale) if group.is_half else 1.0
    before = rule.scale
    # The call scales G to it.
    for each in rules:
        each.scale = scale
    if not group.is_half:
        return Call(update_rules.accumulated_sgd, (hp.lr, hp.momentum / before))
    numbers = hp.lr / scale, hp.momentum * (scale / before)
    return Call(update_rules.momentum_sgd16, numbers, factor=scale)


#: Exact types: a subclass may compute anything.
KERNELS = {
    SGDRule: Kernel(update_rules.sgd),
    MomentumSGDRule: Kernel(update_rules.momentum_sgd),
    AdamRule: Kernel(update_rules.adam, _adam, _is_plain_adam),
    MomentumSGD16Rule: Kernel(update_rules.momentum_sgd16, _momentum_sgd16),
}


class Run(NamedTuple):
    """Parameters ``first`` to ``last`` of a group, to be updated in one call.

    A run with ``has_hooks`` is a single parameter, whose rule has hooks.
    """

    group: Group
    first: int
    last: int
    has_hooks: bool


def plan(groups: Sequence[Group]) -> tuple[list[Run], list[chainer.Parameter]]:
    """Returns the runs that kernels update, and the parameters that rules update."""
    runs: list[Run] = []
    others: list[chainer.Parameter] = []
    for group in groups:
        keys = [_key(p.update_rule) for p in group.parameters]
        for key, members in itertools.groupby(range(len(keys)), keys.__getitem__):
            positions = [*members]
            first, last = positions[0], positions[-1]
            if key is None:
                others += group.parameters[first : last + 1]
            else:
                runs.append(Run(group, first, last, has_hooks=key[-1]))
    return runs, [p for p in others if p.update_rule and p.update_rule.enabled]


def has_kernel(rule: chainer.UpdateRule) -> bool:
    """Returns whether there is a kernel for an update rule that has no hooks."""
    return _key(rule) is not None


def _key(rule: chainer.UpdateRule | None) -> tuple | None:
    """Returns a key that rules updated in one call have in common; None for no kernel.

    The key's last element is whether there are hooks, with which a rule is updated
    alone.
    """
    kernel = KERNELS.get(type(rule))
    if kernel is None or not rule.enabled:
        return None
    if kernel.suits is not None and not kernel.suits(rule):
        return None
    hp = rule.hyperparam
    hooks = rule._hookable
    has_hooks = bool(hooks._pre_update_hooks or hooks._post_update_hooks)
    own = id(rule) if has_hooks or len(vars(hp)) > 1 else None
    scale = getattr(rule, "scale", None)
    return type(rule), rule.t, scale, id(hp.parent), own, has_hooks


def update(
    run: Run, gathered: Gathered, inverse: float, loss_scale: float, in_float32: bool
) -> None:
    """Updates the parameters of a run, and calls the hooks of their rules.

    Args:
        run (Run): The parameters, a run of :func:`plan`.
        gathered (Gathered): The gradients of the run's group.
        inverse (float): Factor of the gradients.
        loss_scale (float): The loss scale of this step.
        in_float32 (bool): Whether the parameters are in float32 now, as hooks need.
    """
    group, first, last, has_hooks = run
    rules = [p.update_rule for p in group.parameters[first : last + 1]]
    for rule in rules:
        rule.t += 1
    kernel = KERNELS[type(rules[0])]
    with chainer.using_device(group.device):
        states = [_state(name, run) for name in state_names(kernel.formula)]
        if has_hooks:
            _call_hooks("pre", group, first)
        call = _call(kernel, rules, group, loss_scale)
        group.kernels.update(
            call.formula,
            gathered.gradients,
            (first, last),
            group.scalar(inverse * call.factor),
            *group.buffers(in_float32),
            states,
            [group.scalar(number) for number in call.numbers],
        )
        if has_hooks:
            _call_hooks("post", group, first)


def _call(
    kernel: Kernel, rules: Sequence[Any], group: Group, loss_scale: float
) -> Call:
    if kernel.prepare is not None:
        return kernel.prepare(rules, group, loss_scale)
    names = number_names(kernel.formula)
    return Call(kernel.formula, [getattr(rules[0].hyperparam, n) for n in names])


def _call_hooks(timing: str, group: Group, position: int) -> None:
    param = group.parameters[position]
    rule = param.update_rule
    rule._hookable.call_hooks(timing, args=(rule, param))
    group.collect(slice(position, position + 1))


def _state(name: str, run: Run) -> Any:
    """Returns a flat buffer of state; the rules' states become views of it."""
    group = run.group
    flat, views = group.state(name)
    for i in range(run.first, run.last + 1):
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
    return flat
