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
    from pipeline.signals import StopOnSignal
    from pipeline.simulator import Costs, simulate
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
    "StallError": "communicator",
    "StopOnSignal": "signals",
    "Timeline": "timeline",
    "abort_on_error": "communicator",
    "predict": "evaluator",
    "recv_data": "point_to_point",
    "recv_grad": "point_to_point",
    "send_data": "point_to_point",
    "send_grad": "point_to_point",
    "simulate": "simulator",
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
    "StallError",
    "StopOnSignal",
    "Timeline",
    "abort_on_error",
    "predict",
    "recv_data",
    "recv_grad",
    "send_data",
    "send_grad",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"pipeline.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
