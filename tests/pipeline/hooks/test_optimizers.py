"""Optimizers that made update rules are found among all objects."""

import gc

import chainer
import chainer.links as L
import pytest

from pipeline.hooks.optimizers import find_optimizers


def rules_of(link):
    return [param.update_rule for param in link.params()]


def test_the_optimizer_of_rules():
    links = L.Linear(2, 2), L.Linear(2, 2)
    first, second = (chainer.optimizers.SGD().setup(link) for link in links)
    assert find_optimizers(rules_of(links[0])) == [first]
    assert find_optimizers(rules_of(links[1])) == [second]


def test_without_rules_no_object_is_looked_at(monkeypatch):
    # It takes 50 ms, in each step of a script that never updates.
    monkeypatch.setattr(gc, "get_objects", lambda: pytest.fail("looked"))
    assert find_optimizers([]) == []
