"""Pipeline-parallel training of Divisible models over MPI.

::

    actions            the vocabulary of schedules
    schedules          what each rank runs in which order, and how long that takes
    recomputation      the same with forwards that run again
    timeline           what ran when, predicted or measured; trace and plot: as files
    performance_model  the paper's equations
    planning           profiles of layers, and the plan that runs fastest

    pipeline           what a training script calls; checks of its arguments, the
                       layout of the stages on the ranks, the automatic schedule
    runner             executes a schedule, on stages and over a transport
    stages             forward and backward of the layers
    messages           what ranks send each other

    training           updater and evaluator for Chainer's trainer
    snapshots          runs on disk
    commands           the command line

Names are imported when they are first used, so that schedules can be planned and
simulated, and timelines drawn, without MPI and Chainer.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.messages.communicator import (
        DisagreementError,
        StallError,
        abort_on_error,
    )
    from pipeline.messages.point_to_point import (
        recv_data,
        recv_grad,
        send_data,
        send_grad,
    )
    from pipeline.pipeline import Pipeline
    from pipeline.runner import ActionError
    from pipeline.schedules.schedule import Action, Message, Schedule, ScheduleError
    from pipeline.schedules.simulator import Costs, simulate
    from pipeline.snapshots.extension import snapshot
    from pipeline.snapshots.files import Snapshot, SnapshotError, latest_snapshot
    from pipeline.snapshots.save_and_load import load_snapshot, save_snapshot
    from pipeline.snapshots.tools import export_npz, import_npz, repartition
    from pipeline.timeline import Timeline
    from pipeline.training.evaluator import PipelineEvaluator, predict
    from pipeline.training.shuffle import SeededShuffle
    from pipeline.training.signals import StopOnSignal
    from pipeline.training.updater import PipelineUpdater

_MODULES = {
    "Action": "schedules.schedule",
    "ActionError": "runner",
    "Costs": "schedules.simulator",
    "DisagreementError": "messages.communicator",
    "Message": "schedules.schedule",
    "Pipeline": "pipeline",
    "PipelineEvaluator": "training.evaluator",
    "PipelineUpdater": "training.updater",
    "Schedule": "schedules.schedule",
    "ScheduleError": "schedules.schedule",
    "SeededShuffle": "training.shuffle",
    "Snapshot": "snapshots.files",
    "SnapshotError": "snapshots.files",
    "StallError": "messages.communicator",
    "StopOnSignal": "training.signals",
    "Timeline": "timeline",
    "abort_on_error": "messages.communicator",
    "export_npz": "snapshots.tools",
    "import_npz": "snapshots.tools",
    "latest_snapshot": "snapshots.files",
    "load_snapshot": "snapshots.save_and_load",
    "predict": "training.evaluator",
    "recv_data": "messages.point_to_point",
    "recv_grad": "messages.point_to_point",
    "repartition": "snapshots.tools",
    "save_snapshot": "snapshots.save_and_load",
    "send_data": "messages.point_to_point",
    "send_grad": "messages.point_to_point",
    "simulate": "schedules.simulator",
    "snapshot": "snapshots.extension",
}

__all__ = [
    "Action",
    "ActionError",
    "Costs",
    "DisagreementError",
    "Message",
    "Pipeline",
    "PipelineEvaluator",
    "PipelineUpdater",
    "Schedule",
    "ScheduleError",
    "SeededShuffle",
    "Snapshot",
    "SnapshotError",
    "StallError",
    "StopOnSignal",
    "Timeline",
    "abort_on_error",
    "export_npz",
    "import_npz",
    "latest_snapshot",
    "load_snapshot",
    "predict",
    "recv_data",
    "recv_grad",
    "repartition",
    "save_snapshot",
    "send_data",
    "send_grad",
    "simulate",
    "snapshot",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"pipeline.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
