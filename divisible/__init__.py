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

import lazy_loader

from divisible._version import __version__

_load, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "deferred_array": ["NotMadeError"],
        "deferred_init": ["deferred_init"],
        "layer_costs": ["LayerCost", "Profile"],
        "model": ["Divisible"],
        "partitioning": ["MemoryLimitError", "partition"],
        "plan": ["Plan"],
        "random_state": ["RandomKey", "keyed_random_state"],
        "schedules.simulator": ["simulate"],
        "skips": ["pop", "stash"],
        "stage_costs": ["Network"],
    },
)
__all__ += ["__version__", "profile"]


def __getattr__(name: str) -> Any:
    # What is measured is what the pipeline runs, so this one name lies in the package
    # above, which is imported when it is used.
    if name == "profile":
        return importlib.import_module("pipeline.planning.profiling").profile
    return _load(name)
