"""The state that an update rule keeps for its parameter, such as a momentum."""

from __future__ import annotations

import chainer


def rule_state_bytes(rule: chainer.UpdateRule, param: chainer.Parameter) -> int:
    """Returns the bytes of the arrays that a rule keeps for a parameter.

    Args:
        rule (chainer.UpdateRule): A rule without state. One that makes its state in the
            first update has a method ``state_bytes(param)``.
        param (chainer.Parameter): The parameter, which is not changed.

    Example:
        >>> import numpy as np
        >>> param = chainer.Parameter(np.zeros(10, np.float32))
        >>> rule_state_bytes(chainer.optimizers.Adam().create_update_rule(), param)
        80
    """
    predicted = getattr(rule, "state_bytes", None)
    if predicted is not None:
        return predicted(param)
    rule._init_states(param)
    arrays = chainer.get_array_types()
    return sum(v.nbytes for v in rule.state.values() if isinstance(v, arrays))
