"""Pipeline-parallel training of Divisible models over MPI."""

from pipeline.communicator import DisagreementError, StallError, abort_on_error
from pipeline.pipeline import Pipeline
from pipeline.point_to_point import recv_data, recv_grad, send_data, send_grad
from pipeline.runner import ActionError
from pipeline.schedule import Schedule, ScheduleError

__all__ = [
    "ActionError",
    "DisagreementError",
    "Pipeline",
    "Schedule",
    "ScheduleError",
    "StallError",
    "abort_on_error",
    "recv_data",
    "recv_grad",
    "send_data",
    "send_grad",
]
