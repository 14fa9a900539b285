"""Models for pipeline-parallel training: lists of layers that can be cut.

A model is a :class:`Divisible`: a list of layers, cut by position. A
:class:`Plan` says where.

    from divisible import Divisible, Plan

    plan = Plan.uniform(len(model), comm.size)
    stage = model.divide(*plan.range(comm.rank))
"""

from divisible._version import __version__
from divisible.model import Divisible
from divisible.plan import Plan
from divisible.random_state import RandomKey, keyed_random_state
from divisible.skips import pop, stash

__all__ = [
    "Divisible",
    "Plan",
    "RandomKey",
    "__version__",
    "keyed_random_state",
    "pop",
    "stash",
]
