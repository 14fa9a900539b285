"""Models for pipeline-parallel training: lists of layers that can be cut.

A model is a :class:`Divisible`: a list of layers, cut by position. A :class:`Plan`
says where. :func:`profile` measures the layers, :func:`partition` cuts them into
stages of equal time, and :meth:`Plan.best` chooses how to run them as well::

    from divisible import Divisible, deferred_init, partition, profile

    with deferred_init(seed=0):  # no memory yet
        model = VGG16()
    plan = partition(profile(model, x, t), n_stages=comm.size)
    stage = model.divide(*plan.range(comm.rank))  # this stage's memory only

Names are imported when they are first used, so that schedules can be planned and
simulated, and timelines drawn, without Chainer and MPI.
"""

import importlib
from typing import Any

from divisible._version import __version__
from divisible.lazy_names import lazy_names

_load, __dir__, __all__ = lazy_names(
    __name__,
    {
        "divisible.deferred.array": ["NotMadeError"],
        "divisible.deferred.scope": ["deferred_init"],
        "divisible.layer_costs": ["LayerCost", "Profile"],
        "divisible.model": ["Divisible"],
        "divisible.partitioning": ["MemoryLimitError", "partition"],
        "divisible.plan": ["Plan"],
        "divisible.random_streams": ["RandomKey", "keyed_random_state"],
        "divisible.schedules.simulator": ["simulate"],
        "divisible.skips": ["pop", "stash"],
        "divisible.stage_costs": ["Network"],
    },
)
__all__ += ["__version__", "profile"]


def __getattr__(name: str) -> Any:
    # What is measured is what the pipeline runs, so this one name lies in the package
    # above, which is imported when it is used.
    if name == "profile":
        return importlib.import_module("pipeline.planning.profiling").profile
    return _load(name)
