"""Chainer's rules, each as a formula and as many numbers as it takes."""

import importlib

import chainer
import numpy as np
import pytest

from chainer_kernels import catalogue, update_rules
from chainer_kernels.chainer_rules import CALLS
from chainer_kernels.formulas import number_names


def rule_of(kind, **hyperparameters):
    rule = kind(**hyperparameters)
    parameter = chainer.Parameter(np.ones(2, "f"))
    parameter.grad = np.ones(2, "f")
    # Of some rules the numbers depend on the step, and on what it has left.
    rule.update(parameter)
    return rule


def test_rules_are_those_of_the_catalogue():
    named = {
        getattr(importlib.import_module(entry.module), entry.name.split(".")[0])
        for entry in catalogue.CATALOGUE
        if entry.module.startswith("chainer.optimizers.")
    }
    assert named == CALLS.keys()


@pytest.mark.parametrize("kind", CALLS, ids=lambda kind: kind.__name__)
def test_numbers_are_those_of_the_formula(kind):
    call = CALLS[kind](rule_of(kind))
    assert len(call.numbers) == len(number_names(call.formula))
    assert np.isfinite(np.array(call.numbers, "d")).all()


@pytest.mark.parametrize(
    "options, formula",
    [
        ({}, update_rules.adam),
        ({"amsgrad": True}, update_rules.amsbound),
        ({"adabound": True, "final_lr": 0.1, "gamma": 1e-3}, update_rules.adabound),
    ],
)
def test_variants_of_adam(options, formula):
    kind = chainer.optimizers.adam.AdamRule
    call = CALLS[kind](rule_of(kind, **options))
    assert call.formula is formula
    assert len(call.numbers) == len(number_names(formula))


def test_hyperparameters_keep_their_place():
    kind = chainer.optimizers.momentum_sgd.MomentumSGDRule
    call = CALLS[kind](rule_of(kind, lr=0.25, momentum=0.5))
    assert dict(zip(number_names(call.formula), call.numbers)) == {
        "lr": 0.25,
        "momentum": 0.5,
    }
