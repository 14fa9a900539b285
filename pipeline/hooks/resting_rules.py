"""Update rules that are disabled until their parameters have gradients.

A snapshot has the update rules of frozen parameters disabled, too. Rules that only rest
are saved as enabled::

    rule        enabled     in a snapshot
    at work     True        True
    frozen      False       False
    at rest     AtRest()    True

A rule that a script freezes while it rests stays frozen.
"""

from __future__ import annotations

import chainer


class AtRest(int):
    """The value of ``enabled`` of a rule at rest: 0, which is equal to ``False``."""


def let_rest(rule: chainer.UpdateRule) -> None:
    """Disables an update rule until :func:`wake` is called.

    Example:
        >>> rule = chainer.optimizers.SGD().create_update_rule()
        >>> let_rest(rule)
        >>> bool(rule.enabled), is_at_rest(rule)
        (False, True)
        >>> wake(rule)
        >>> rule.enabled, is_at_rest(rule)
        (True, False)
    """
    rule.enabled = AtRest()


def wake(rule: chainer.UpdateRule) -> None:
    """Enables a rule, if it is still at rest."""
    if is_at_rest(rule):
        rule.enabled = True


def is_at_rest(rule: chainer.UpdateRule) -> bool:
    """Returns whether a rule is disabled only until there is a gradient."""
    return isinstance(rule.enabled, AtRest)
