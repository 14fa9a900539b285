"""The formula of ``update_rules``, and its numbers, that Chainer's rules amount to."""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple

from chainer.optimizers.ada_delta import AdaDeltaRule
from chainer.optimizers.ada_grad import AdaGradRule
from chainer.optimizers.adam import AdamRule
from chainer.optimizers.corrected_momentum_sgd import CorrectedMomentumSGDRule
from chainer.optimizers.momentum_sgd import MomentumSGDRule
from chainer.optimizers.msvag import MSVAGRule
from chainer.optimizers.nesterov_ag import NesterovAGRule
from chainer.optimizers.rmsprop import RMSpropRule
from chainer.optimizers.rmsprop_graves import RMSpropGravesRule
from chainer.optimizers.sgd import SGDRule
from chainer.optimizers.smorms3 import SMORMS3Rule

from chainer_kernels import update_rules
from chainer_kernels.formulas import Formula


class Call(NamedTuple):
    """An update as a formula.

    Attributes:
        formula: One of ``update_rules``.
        numbers: Its hyperparameters in the order of its arguments, as Chainer's rule
            computes them before they meet an array.
    """

    formula: Formula
    numbers: tuple[Any, ...]


def _sgd(rule: SGDRule) -> Call:
    return Call(update_rules.sgd, (rule.hyperparam.lr,))


def _momentum_sgd(rule: MomentumSGDRule) -> Call:
    hp = rule.hyperparam
    return Call(update_rules.momentum_sgd, (hp.lr, hp.momentum))


def _adam(rule: AdamRule) -> Call:
    hp = rule.hyperparam
    numbers = (
        rule.alpha_t,
        1.0 - hp.beta1,
        1.0 - hp.beta2,
        hp.eps,
        1.0 - hp.eta * hp.weight_decay_rate,
        hp.eta,
    )
    if not (hp.amsgrad or hp.adabound):
        return Call(update_rules.adam, numbers)
    bounds = rule.bounds if hp.adabound else (-math.inf, math.inf)
    formula = update_rules.amsbound if hp.amsgrad else update_rules.adabound
    return Call(formula, (*numbers, *bounds))


def _corrected_momentum_sgd(rule: CorrectedMomentumSGDRule) -> Call:
    hp = rule.hyperparam
    return Call(update_rules.corrected_momentum_sgd, (hp.lr, hp.momentum))


def _nesterov_ag(rule: NesterovAGRule) -> Call:
    lr, momentum = rule.hyperparam.lr, rule.hyperparam.momentum
    numbers = (lr, momentum, momentum * momentum, (1 + momentum) * lr)
    return Call(update_rules.nesterov_ag, numbers)


def _ada_grad(rule: AdaGradRule) -> Call:
    hp = rule.hyperparam
    return Call(update_rules.ada_grad, (hp.lr, hp.eps))


def _ada_delta(rule: AdaDeltaRule) -> Call:
    hp = rule.hyperparam
    return Call(update_rules.ada_delta, (hp.rho, 1 - hp.rho, hp.eps))


def _rmsprop(rule: RMSpropRule) -> Call:
    hp = rule.hyperparam
    eps = (0.0, hp.eps) if hp.eps_inside_sqrt else (hp.eps, 0.0)
    return Call(update_rules.rmsprop, (hp.lr, hp.alpha, 1 - hp.alpha, *eps))


def _rmsprop_graves(rule: RMSpropGravesRule) -> Call:
    hp = rule.hyperparam
    numbers = (hp.lr, hp.alpha, 1 - hp.alpha, hp.momentum, hp.eps)
    return Call(update_rules.rmsprop_graves, numbers)


def _smorms3(rule: SMORMS3Rule) -> Call:
    hp = rule.hyperparam
    return Call(update_rules.smorms3, (hp.lr, hp.eps))


def _msvag(rule: MSVAGRule) -> Call:
    hp, power = rule.hyperparam, rule.beta_power
    rho = ((1.0 - hp.beta) ** 2 * (1.0 - power**2)) / (
        (1.0 - power) ** 2 * (1.0 - hp.beta**2)
    )
    rho = min(rho, 0.9999)
    numbers = (1 - hp.beta, 1 - power, rho, 1 - rho, hp.eta, hp.weight_decay_rate)
    return Call(update_rules.msvag, (hp.lr, *numbers))


#: Functions by the exact type of a rule: a subclass may do anything.
CALLS: dict[type, Callable[[Any], Call]] = {
    SGDRule: _sgd,
    MomentumSGDRule: _momentum_sgd,
    CorrectedMomentumSGDRule: _corrected_momentum_sgd,
    NesterovAGRule: _nesterov_ag,
    AdamRule: _adam,
    AdaGradRule: _ada_grad,
    AdaDeltaRule: _ada_delta,
    RMSpropRule: _rmsprop,
    RMSpropGravesRule: _rmsprop_graves,
    SMORMS3Rule: _smorms3,
    MSVAGRule: _msvag,
}

#: All that :data:`CALLS` come to.
FORMULAS: tuple[Formula, ...] = (
    update_rules.sgd,
    update_rules.momentum_sgd,
    update_rules.corrected_momentum_sgd,
    update_rules.nesterov_ag,
    update_rules.adam,
    update_rules.adabound,
    update_rules.amsbound,
    update_rules.ada_grad,
    update_rules.ada_delta,
    update_rules.rmsprop,
    update_rules.rmsprop_graves,
    update_rules.smorms3,
    update_rules.msvag,
)
