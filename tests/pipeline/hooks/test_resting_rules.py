"""Rules at rest are told from rules that a script has frozen."""

import copy

import chainer
import chainer.links as L
import numpy as np
import pytest

from pipeline.hooks.resting_rules import is_at_rest, let_rest, wake


@pytest.fixture
def link():
    link = L.Linear(2, 1)
    chainer.optimizers.SGD(1.0).setup(link)
    for param in link.params():
        param.grad = np.ones_like(param.array)
    return link


def test_a_rule_at_rest_updates_nothing(link):
    before, rule = link.W.array.copy(), link.W.update_rule
    let_rest(rule)
    rule.update(link.W)
    np.testing.assert_array_equal(link.W.array, before)
    wake(rule)
    rule.update(link.W)
    np.testing.assert_array_equal(link.W.array, before - 1)


def test_a_rule_that_is_frozen_at_rest_stays_frozen(link):
    rules = [param.update_rule for param in link.params()]
    for rule in rules:
        let_rest(rule)
    link.disable_update()
    assert not any(map(is_at_rest, rules))
    for rule in rules:
        wake(rule)
    assert [rule.enabled for rule in rules] == [False, False]


def test_copies_of_a_rule_at_rest_rest_too(link):
    let_rest(link.W.update_rule)
    copied = copy.deepcopy(link).W.update_rule
    assert is_at_rest(copied)
    wake(copied)
    assert copied.enabled is True and is_at_rest(link.W.update_rule)
