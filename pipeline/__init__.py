"""Pipeline-parallel training of Divisible models over MPI.

Names are imported when they are first used, so that schedules can be planned and
simulated, and timelines drawn, without MPI and Chainer.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.communicator import DisagreementError, StallError, abort_on_error
    from pipeline.evaluator import PipelineEvaluator, predict
    from pipeline.pipeline import Pipeline
    from pipeline.point_to_point import recv_data, recv_grad, send_data, send_grad
    from pipeline.runner import ActionError
    from pipeline.schedule import Action, Message, Schedule, ScheduleError
    from pipeline.shuffle import SeededShuffle
    from pipeline.signals import StopOnSignal
    from pipeline.simulator import Costs, simulate
    from pipeline.snapshots.extension import snapshot
    from pipeline.snapshots.files import Snapshot, SnapshotError, latest_snapshot
    from pipeline.snapshots.save_and_load import load_snapshot, save_snapshot
    from pipeline.snapshots.tools import export_npz, import_npz, repartition
    from pipeline.timeline import Timeline
    from pipeline.updater import PipelineUpdater

_MODULES = {
    "Action": "schedule",
    "ActionError": "runner",
    "Costs": "simulator",
    "DisagreementError": "communicator",
    "Message": "schedule",
    "Pipeline": "pipeline",
    "PipelineEvaluator": "evaluator",
    "PipelineUpdater": "updater",
    "Schedule": "schedule",
    "ScheduleError": "schedule",
    "SeededShuffle": "shuffle",
    "Snapshot": "snapshots.files",
    "SnapshotError": "snapshots.files",
    "StallError": "communicator",
    "StopOnSignal": "signals",
    "Timeline": "timeline",
    "abort_on_error": "communicator",
    "export_npz": "snapshots.tools",
    "import_npz": "snapshots.tools",
    "latest_snapshot": "snapshots.files",
    "load_snapshot": "snapshots.save_and_load",
    "predict": "evaluator",
    "recv_data": "point_to_point",
    "recv_grad": "point_to_point",
    "repartition": "snapshots.tools",
    "save_snapshot": "snapshots.save_and_load",
    "send_data": "point_to_point",
    "send_grad": "point_to_point",
    "simulate": "simulator",
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
