"""Models for pipeline-parallel training: lists of layers that can be cut.

A model is a :class:`Divisible`: a list of layers, cut by position. A
:class:`Plan` says where::

    from divisible import Divisible, Plan, deferred_init

    with deferred_init(seed=0):  # no memory yet
        model = VGG16()
    plan = Plan.uniform(len(model), comm.size)
    stage = model.divide(*plan.range(comm.rank))  # this stage's memory only
"""

from divisible._version import __version__
from divisible.deferred_array import NotMadeError
from divisible.deferred_init import deferred_init
from divisible.model import Divisible
from divisible.plan import Plan
from divisible.random_state import RandomKey, keyed_random_state
from divisible.skips import pop, stash

__all__ = [
    "Divisible",
    "NotMadeError",
    "Plan",
    "RandomKey",
    "__version__",
    "deferred_init",
    "keyed_random_state",
    "pop",
    "stash",
]
