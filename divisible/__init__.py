"""Models for pipeline-parallel training: lists of layers that can be cut.

A model is a :class:`Divisible`: a list of layers, cut by position. A :class:`Plan`
says where. :func:`profile` measures the layers, :func:`partition` cuts them into
stages of equal time, and :meth:`Plan.best` chooses how to run them as well::

    from divisible import Divisible, deferred_init, partition, profile

    with deferred_init(seed=0):  # no memory yet
        model = VGG16()
    plan = partition(profile(model, x, t), n_stages=comm.size)
    stage = model.divide(*plan.range(comm.rank))  # this stage's memory only
"""

from typing import TYPE_CHECKING, Any

from divisible._version import __version__
from divisible.deferred_array import NotMadeError
from divisible.deferred_init import deferred_init
from divisible.layer_costs import LayerCost, Profile
from divisible.model import Divisible
from divisible.partitioning import MemoryLimitError, partition
from divisible.plan import Plan
from divisible.random_state import RandomKey, keyed_random_state
from divisible.skips import pop, stash
from divisible.stage_costs import Network

if TYPE_CHECKING:
    from pipeline.planning.profiling import profile

__all__ = [
    "Divisible",
    "LayerCost",
    "MemoryLimitError",
    "Network",
    "NotMadeError",
    "Plan",
    "Profile",
    "RandomKey",
    "__version__",
    "deferred_init",
    "keyed_random_state",
    "partition",
    "pop",
    "profile",
    "stash",
]


def __getattr__(name: str) -> Any:
    # What is measured is what the pipeline runs, so this one name lies in the package
    # above, which is imported when it is used.
    if name == "profile":
        from pipeline.planning.profiling import profile

        globals()[name] = profile
        return profile
    raise AttributeError(f"module 'divisible' has no attribute {name!r}")
