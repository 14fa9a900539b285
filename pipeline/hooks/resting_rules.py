"""Update rules that are disabled until their parameters have gradients.

A snapshot has the update rules of frozen parameters disabled, too. Rules that only rest
are saved as enabled::

    rule        enabled     in a snapshot
    at work     True        True
    frozen      False       False
    at rest     False       True
"""

from __future__ import annotations

import weakref

import chainer

_resting: weakref.WeakSet[chainer.UpdateRule] = weakref.WeakSet()


def let_rest(rule: chainer.UpdateRule) -> None:
    """Disables an update rule until :func:`wake` is called.

    Example:
        >>> rule = chainer.optimizers.SGD().create_update_rule()
        >>> let_rest(rule)
        >>> rule.enabled, is_at_rest(rule)
        (False, True)
        >>> wake(rule)
        >>> rule.enabled, is_at_rest(rule)
        (True, False)
    """
    rule.enabled = False
    _resting.add(rule)


def wake(rule: chainer.UpdateRule) -> None:
    """Enables a rule that rests."""
    rule.enabled = True
    _resting.discard(rule)


def is_at_rest(rule: chainer.UpdateRule) -> bool:
    """Returns whether a rule is disabled only until there is a gradient."""
    return rule in _resting and not rule.enabled
